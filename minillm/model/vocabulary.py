"""What a model file says about its tokens, whichever format it has."""

from collections.abc import Mapping
from dataclasses import dataclass

import tokenizers


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The parts of a tokenizer with byte-level BPE.

    bpe             encodes text; it has no special token, so no text ever becomes one
    special_tokens  by id, the tokens that only the model and its chat template write
    size            number of token ids
    bos_token_id    starts a text, if ``add_bos``; chat templates write it themselves
    eos_token_id    the model's name for the end of text; a template may use it
    end_token_ids   all tokens that end an answer: end of text, end of turn, end of message
    chat_template   source of a jinja2 template
    """

    bpe: tokenizers.Tokenizer
    special_tokens: Mapping[int, tokenizers.AddedToken]
    size: int
    bos_token_id: int | None
    eos_token_id: int | None
    add_bos: bool
    end_token_ids: frozenset[int]
    chat_template: str | None

    def special_text(self, token_id: int | None) -> str:
        """A special token's text, as templates write it; empty for None and for other tokens."""
        token = None if token_id is None else self.special_tokens.get(token_id)
        return "" if token is None else token.content
