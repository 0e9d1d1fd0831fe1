"""When an output ends, and which of its text is final."""

from collections.abc import Sequence

from minillm.model.tokenizer import IncrementalDetokenizer, Tokenizer
from minillm.request import SamplingParams
from minillm.sequence import FinishReason


class OutputText:
    """The text of one output as its tokens come, and the decision to stop.

    Without a tokenizer it only counts and compares token ids. The cost of a token does not depend on how many came
    before. ``stop_reason`` is the stop string or stop token id that ended the output; as in vLLM it is None after an
    end-of-text token. Raises ValueError for stop strings without a tokenizer.
    """

    def __init__(
        self, params: SamplingParams, eos_token_ids: frozenset[int] = frozenset(), tokenizer: Tokenizer | None = None
    ) -> None:
        if params.stop and tokenizer is None:
            raise ValueError(
                f"the stop string {params.stop[0]!r} cannot be found in token ids alone; give a tokenizer, "
                "or use stop_token_ids"
            )
        self.stop_reason: int | str | None = None
        self.num_tokens = 0
        self._params = params
        self._eos_token_ids = frozenset() if params.ignore_eos else eos_token_ids
        self._detokenizer = None if tokenizer is None else IncrementalDetokenizer(tokenizer)
        self._final: list[str] = []
        self._held = ""

    def push(self, token_id: int) -> FinishReason | None:
        """Take the next token and say why the output ends with it, if it does.

        Stops are looked for in the tokens after the first ``min_tokens``; a stop on the last token that ``max_tokens``
        allows is a stop. A token that stops is left out of the text; of one that completes a stop string, what comes
        before the match stays. Of several stop strings the one that is complete first counts.
        """
        self.num_tokens += 1
        may_stop = self.num_tokens > self._params.min_tokens
        if may_stop and self._is_stop_token(token_id):
            self.close()
            return "stop"
        if self._detokenizer is not None and self._read(self._detokenizer.push(token_id), may_stop):
            return "stop"
        if self.num_tokens >= self._params.max_tokens:
            self.close()
            return "length"
        return None

    def take(self) -> str:
        """The text that became final since the last call: no later token can change it or cut it off."""
        text = "".join(self._final)
        self._final.clear()
        return text

    def close(self) -> None:
        """No token will follow: what was held back is final, an unfinished character included."""
        self._final.append(self._held)
        self._held = ""
        if self._detokenizer is not None:
            self._final.append(self._detokenizer.flush())

    def _is_stop_token(self, token_id: int) -> bool:
        if token_id in self._eos_token_ids:
            return True
        if token_id in self._params.stop_token_ids:
            self.stop_reason = token_id
            return True
        return False

    def _read(self, text: str, may_stop: bool) -> bool:
        """Append decoded text, and cut it if a stop string is now complete."""
        seen, self._held = len(self._held), self._held + text
        match = _first_match(self._held, seen, self._params.stop) if may_stop else None
        if match is not None:
            end, self.stop_reason = match
            self._release(end - len(self.stop_reason))
            self._held = ""
            return True
        self._release(len(self._held) - _undecided(self._held, self._params.stop))
        return False

    def _release(self, length: int) -> None:
        self._final.append(self._held[:length])
        self._held = self._held[length:]


def _first_match(text: str, seen: int, stops: Sequence[str]) -> tuple[int, str] | None:
    """End and string of the match that is complete first, among those that end after ``seen`` characters."""
    starts = ((text.find(stop, max(0, seen + 1 - len(stop))), stop) for stop in stops)
    return min(((start + len(stop), stop) for start, stop in starts if start >= 0), default=None, key=lambda m: m[0])


def _undecided(text: str, stops: Sequence[str]) -> int:
    """Length of the longest suffix of the text that may yet become a stop string."""
    lengths = (
        length
        for stop in stops
        for length in range(min(len(stop) - 1, len(text)), 0, -1)
        if text.endswith(stop[:length])
    )
    return max(lengths, default=0)
