"""What a client asks for: a request and how to sample its answer."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How to sample; names and meanings follow vLLM's ``SamplingParams``.

    n                   samples of the same prompt
    max_tokens          most tokens to generate, at least 1
    min_tokens          before this many tokens stops are ignored, and the end-of-text and stop tokens are banned
    temperature         0 is greedy
    top_k               0 or -1 keeps the whole vocabulary
    top_p               keep the likeliest tokens whose mass reaches this share, in (0, 1]
    min_p               drop tokens below this share of the likeliest one's probability, in [0, 1]
    repetition_penalty  above 1 discourages tokens of prompt and output (CTRL, Keskar et al. 2019, section 4.1)
    seed                with branch and output index the only source of randomness: the same call gives the same text
    stop                strings that end the output; the text before the match is kept
    stop_token_ids      token ids that end the output, kept in the token ids and left out of the text
    ignore_eos          generate past the end-of-text token
    logprobs            report this many of the likeliest tokens beside each chosen one; None reports nothing

    Raises ValueError for a value outside of its range.
    """

    n: int = 1
    max_tokens: int = 16
    min_tokens: int = 0
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    seed: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None

    def __post_init__(self) -> None:
        if isinstance(self.stop, str):
            object.__setattr__(self, "stop", (self.stop,))
        object.__setattr__(self, "stop", tuple(self.stop))
        object.__setattr__(self, "stop_token_ids", tuple(self.stop_token_ids))
        for rule, holds in self._rules():
            if not holds:
                raise ValueError(rule)

    def _rules(self) -> list[tuple[str, bool]]:
        return [
            (f"n is {self.n}; ask for at least 1 sample", self.n >= 1),
            (f"max_tokens is {self.max_tokens}; ask for at least 1 token", self.max_tokens >= 1),
            (
                f"min_tokens is {self.min_tokens}; it must lie between 0 and max_tokens ({self.max_tokens})",
                0 <= self.min_tokens <= self.max_tokens,
            ),
            (
                f"temperature is {self.temperature}; it must be finite and at least 0 (0 is greedy)",
                0 <= self.temperature < float("inf"),
            ),
            (f"top_k is {self.top_k}; use 0 or -1 for the whole vocabulary, or at least 1", self.top_k >= -1),
            (f"top_p is {self.top_p}; it must lie in (0, 1], and 1 keeps every token", 0 < self.top_p <= 1),
            (f"min_p is {self.min_p}; it must lie in [0, 1], and 0 keeps every token", 0 <= self.min_p <= 1),
            (
                f"repetition_penalty is {self.repetition_penalty}; it must be finite and above 0 (1 is none)",
                0 < self.repetition_penalty < float("inf"),
            ),
            (f"seed is {self.seed}; it must lie in [0, 2**63)", 0 <= self.seed < 2**63),
            ("stop holds an empty string, which would end every output at once; leave it out", all(self.stop)),
            (
                f"stop_token_ids holds {min(self.stop_token_ids, default=0)}; token ids start at 0",
                min(self.stop_token_ids, default=0) >= 0,
            ),
            (f"logprobs is {self.logprobs}; use None, or 0 and above", self.logprobs is None or self.logprobs >= 0),
        ]

    @property
    def greedy(self) -> bool:
        """Whether the likeliest token is always chosen."""
        return self.temperature == 0


@dataclass(frozen=True, slots=True)
class Request:
    """One request as the scheduler and the engine see it.

    ``arrival`` and ``deadline`` are in seconds on the engine's clock. A smaller ``priority`` is more urgent; 0 means
    the policy's default. ``session`` names the conversation that a request continues, and ``cache_salt`` whose prefixes
    it may share: for policies that keep caches beyond a request. ``expected_output`` (tokens) is read only by the
    simulated model and by Orca's Oracle and Pow2 reservations: a real server cannot know it.
    """

    id: str
    prompt_token_ids: tuple[int, ...]
    params: SamplingParams = field(default_factory=SamplingParams)
    arrival: float = 0.0
    priority: int = 0
    deadline: float | None = None
    session: str | None = None
    cache_salt: str | None = None
    expected_output: int | None = None
