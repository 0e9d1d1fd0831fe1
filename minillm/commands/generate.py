"""``minillm generate``: an answer in the terminal, as it comes."""

from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from minillm.request import SamplingParams

if TYPE_CHECKING:
    from minillm.llm import LLM
    from minillm.outputs import RequestOutput

POLICY = "vllm"
INTERRUPTED = 130
"""What shells give a program that Ctrl-C ended: 128 and the number of SIGINT."""


def generate(
    prompt: Annotated[str, typer.Argument(help="A question or, with --raw, a text to continue.")],
    *,
    chat: Annotated[bool, typer.Option("--chat/--raw", help="Use the model's chat template, or the bare text.")] = True,
    model: Annotated[Path | None, typer.Option(help="GGUF file or Hugging Face folder.")] = None,
    dtype: Annotated[str, typer.Option(help="auto, float64, float32, bfloat16 or float16.")] = "auto",
    n: Annotated[int, typer.Option(help="Samples of the answer.")] = 1,
    max_tokens: Annotated[int, typer.Option(help="Most tokens of an answer.")] = 256,
    min_tokens: Annotated[int, typer.Option(help="Stop no earlier than after this many tokens.")] = 0,
    temperature: Annotated[float, typer.Option(help="0 always takes the likeliest token.")] = 0.0,
    top_k: Annotated[int, typer.Option(help="Keep this many of the likeliest tokens; 0 keeps all.")] = 0,
    top_p: Annotated[float, typer.Option(help="Keep the likeliest tokens that together have this probability.")] = 1.0,
    min_p: Annotated[
        float, typer.Option(help="Drop tokens below this share of the likeliest one's probability.")
    ] = 0.0,
    repetition_penalty: Annotated[float, typer.Option(help="Above 1 discourages tokens that occurred.")] = 1.0,
    seed: Annotated[int, typer.Option(help="The same seed gives the same text.")] = 0,
    stop: Annotated[list[str] | None, typer.Option(help="End before this text. May be repeated.")] = None,
    ignore_eos: Annotated[bool, typer.Option("--ignore-eos", help="Go on past the end-of-text token.")] = False,
    stats: Annotated[bool, typer.Option("--stats", help="Say at the end how fast it was.")] = False,
) -> None:
    """Answer a question, or continue a text."""
    params = SamplingParams(
        n=n,
        max_tokens=max_tokens,
        min_tokens=min_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repetition_penalty=repetition_penalty,
        seed=seed,
        stop=tuple(stop or ()),
        ignore_eos=ignore_eos,
    )
    from minillm.llm import LLM

    llm = LLM(model, policy=POLICY, dtype=dtype)
    asked = llm.tokenizer.apply_chat_template([{"role": "user", "content": prompt}]) if chat else prompt
    try:
        error = write(llm.stream(asked, params))
    except KeyboardInterrupt:
        typer.echo()
        raise typer.Exit(INTERRUPTED) from None
    if error:
        typer.echo(f"minillm: {error}", err=True)
        raise typer.Exit(1)
    if stats:
        typer.echo(speed(llm), err=True)


def write(parts: "Iterable[RequestOutput]") -> str | None:
    """Print the first sample as it comes, and the others after it. Returns what went wrong, if anything did."""
    errors: list[str] = []
    others: dict[int, list[str]] = defaultdict(list)
    for part in parts:
        for sample in part.outputs:
            if sample.index == 0:
                typer.echo(sample.text, nl=False)
            else:
                others[sample.index].append(sample.text)
            errors += [sample.error] if sample.error else []
    typer.echo()
    for index in sorted(others):
        typer.echo(f"\nSample {index + 1}:\n{''.join(others[index])}")
    return errors[0] if errors else None


def speed(llm: "LLM") -> str:
    """How long the first token took, and how fast tokens came in all."""
    from minillm.metrics import summarise

    summary = summarise(llm.engine.recording(POLICY))
    return f"first token after {summary.ttft.mean:.2f} s; {summary.output_tokens_per_s:.1f} tokens/s in all"
