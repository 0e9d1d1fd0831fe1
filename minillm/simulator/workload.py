"""Workloads: when requests arrive, how long they are, and what they say. Seeded, so that a run can be repeated."""

import csv
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minillm.model.tokenizer import Tokenizer
from minillm.request import Request, SamplingParams

Prompts = Sequence[tuple[int, ...]]
"""The prompts' token ids, one tuple per request."""


@dataclass(frozen=True, slots=True)
class Length:
    """How long a request is: tokens of its prompt, and tokens that it generates. Raises ValueError for less than 1."""

    prompt_tokens: int
    output_tokens: int

    def __post_init__(self) -> None:
        if self.prompt_tokens < 1 or self.output_tokens < 1:
            raise ValueError(
                f"a request of {self.prompt_tokens} prompt and {self.output_tokens} output tokens cannot run; "
                "both must be at least 1"
            )


def arrival_times(count: int, rate: float, seed: int, burstiness: float = 1.0) -> NDArray[np.float64]:
    """Arrival of each of ``count`` requests, in seconds ``[count]``, at ``rate`` requests a second.

    The gaps are drawn from a Gamma distribution of shape ``burstiness`` and mean 1 / rate: their coefficient of
    variation is burstiness ** -0.5, so 1 is a Poisson process, less comes in bursts, and more is steadier. All moments
    are drawn at once and scaled so that the last is count / rate, which takes the seed's luck out of the rate. Both
    as vLLM's ``bench serve`` has them. At an infinite rate all arrive at 0.

    Raises ValueError for a rate or a burstiness that is not positive.
    """
    if not rate > 0:
        raise ValueError(f"the rate is {rate} requests a second; it must be above 0, and inf sends all at once")
    if not 0 < burstiness < np.inf:
        raise ValueError(f"the burstiness is {burstiness}; it must be finite and above 0, and 1 is a Poisson process")
    if np.isinf(rate) or not count:
        return np.zeros(count)
    gaps = np.random.default_rng(seed).gamma(burstiness, 1 / (rate * burstiness), count)
    moments: NDArray[np.float64] = gaps.cumsum()
    return moments * (count / rate / float(moments[-1]))


SPREAD = 0.7
"""Standard deviation of the logarithm of lognormal lengths."""

LONGEST = 4.0
"""Lognormal lengths are cut at so many times their mean, which takes about 1 % off the mean."""


def lognormal_lengths(count: int, prompt_mean: float, output_mean: float, seed: int) -> list[Length]:
    """Many short requests and a few long ones, prompt and output independent of each other.

    Raises ValueError for a mean below 1 token.
    """
    random = np.random.default_rng(seed)
    prompts, outputs = (_lognormal(random, count, mean) for mean in (prompt_mean, output_mean))
    return [Length(int(prompt), int(output)) for prompt, output in zip(prompts, outputs, strict=True)]


def _lognormal(random: np.random.Generator, count: int, mean: float) -> NDArray[np.int64]:
    if not 1 <= mean < np.inf:
        raise ValueError(f"the mean length is {mean} tokens; it must be finite and at least 1")
    drawn = random.lognormal(np.log(mean) - SPREAD**2 / 2, SPREAD, count)
    return np.clip(np.rint(drawn), 1, LONGEST * mean).astype(np.int64)


def fixed_lengths(count: int, prompt_tokens: int, output_tokens: int) -> list[Length]:
    """Requests that are all equally long."""
    return [Length(prompt_tokens, output_tokens)] * count


def read_lengths(path: Path) -> list[Length]:
    """Lengths from a file with the columns ``prompt_tokens`` and ``output_tokens``, as CSV or as JSON lines.

    Raises ValueError that names the line for one without these two numbers, and OSError for a file that cannot be read.
    """
    with path.open(encoding="utf-8", newline="") as file:
        rows = map(json.loads, file) if path.suffix == ".jsonl" else csv.DictReader(file)
        return [_length(path, number, row) for number, row in enumerate(rows, 1)]


def _length(path: Path, number: int, row: dict[str, Any]) -> Length:
    try:
        return Length(int(row["prompt_tokens"]), int(row["output_tokens"]))
    except (KeyError, TypeError) as error:
        raise ValueError(f"{path}, request {number}: give prompt_tokens and output_tokens in each row") from error
    except ValueError as error:
        raise ValueError(f"{path}, request {number}: {error}") from error


def lengths_named(kind: str, count: int, prompt_tokens: int, output_tokens: int, seed: int) -> list[Length]:
    """``count`` lengths: "lognormal" around these means, "fixed" at them, or the first of a CSV or JSON lines file.

    Raises ValueError for any other kind, and for a file that holds fewer.
    """
    if kind == "lognormal":
        return lognormal_lengths(count, prompt_tokens, output_tokens, seed)
    if kind == "fixed":
        return fixed_lengths(count, prompt_tokens, output_tokens)
    path = Path(kind)
    if path.suffix not in (".csv", ".jsonl"):
        raise ValueError(
            f"the lengths {kind!r} are unknown; use lognormal, fixed, or the path of a .csv or .jsonl file"
        )
    lengths = read_lengths(path)
    if len(lengths) < count:
        raise ValueError(f"{path} holds {len(lengths)} requests and {count} are asked for; ask for fewer")
    return lengths[:count]


def random_prompts(lengths: Iterable[Length], vocab_size: int, seed: int) -> Prompts:
    """Prompts of random token ids, for models whose outputs nobody reads."""
    random = np.random.default_rng(seed)
    return [tuple(random.integers(vocab_size, size=length.prompt_tokens).tolist()) for length in lengths]


def text_prompts(lengths: Iterable[Length], tokenizer: Tokenizer) -> Prompts:
    """Prompts of real text. Each begins with a passage of its own, goes on with those that follow, and is cut."""
    passages = (files("minillm") / "data" / "prompts.txt").read_text(encoding="utf-8").splitlines()
    return [
        _passages_from(index % len(passages), passages, tokenizer, length.prompt_tokens)
        for index, length in enumerate(lengths)
    ]


def _passages_from(first: int, passages: list[str], tokenizer: Tokenizer, prompt_tokens: int) -> tuple[int, ...]:
    once = text = "\n".join(passages[first:] + passages[:first])
    token_ids = tokenizer.encode(text)
    while len(token_ids) < prompt_tokens:
        text += "\n" + once
        token_ids = tokenizer.encode(text)
    return tuple(token_ids[:prompt_tokens])


def build_workload(lengths: Sequence[Length], prompts: Prompts, arrivals: Iterable[float]) -> list[Request]:
    """Greedy requests ``r00``, ``r01``, ... that generate exactly as many tokens as their lengths say.

    Forced lengths give every policy the same work, whatever the model would have said.
    """
    digits = len(str(len(lengths) - 1))
    return [
        Request(
            id=f"r{index:0{digits}}",
            prompt_token_ids=prompt,
            params=SamplingParams(max_tokens=length.output_tokens, temperature=0.0, ignore_eos=True),
            arrival=float(arrival),
            expected_output=length.output_tokens,
        )
        for index, (length, prompt, arrival) in enumerate(zip(lengths, prompts, arrivals, strict=True))
    ]
