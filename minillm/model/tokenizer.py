"""Text to token ids and back.

A token is a few bytes, and a text is the bytes of its tokens in a row, read as UTF-8. One character may spread over
several tokens; bytes that are no UTF-8 read as U+FFFD.
"""

import codecs
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path

from minillm.model.chat_template import ChatTemplate, Message, check_messages
from minillm.model.checkpoint import ModelError
from minillm.model.gguf_vocabulary import read_gguf_vocabulary
from minillm.model.hugging_face_vocabulary import read_hugging_face_vocabulary
from minillm.model.utf8 import utf8
from minillm.model.vocabulary import Vocabulary


class Tokenizer(ABC):
    """Text to token ids and back. Special tokens are never the reading of a text, and never read as text.

    vocab_size     number of token ids
    eos_token_ids  all tokens that end an answer
    """

    vocab_size: int
    eos_token_ids: frozenset[int]

    @abstractmethod
    def encode(self, text: str) -> list[int]:
        """The token ids of a text, after the bos token where the model wants one.

        Raises ValueError for text that is no valid Unicode or that the vocabulary cannot express.
        """

    @abstractmethod
    def token_bytes(self, token_id: int) -> bytes:
        """The bytes of one token: none for special tokens, and for ids that only pad the model's vocabulary."""

    @abstractmethod
    def apply_chat_template(self, messages: Sequence[Message]) -> list[int]:
        """The prompt that asks the assistant to answer. Raises ValueError for messages that make none."""

    def decode(self, token_ids: Iterable[int]) -> str:
        """The text of a sequence of tokens."""
        return b"".join(map(self.token_bytes, token_ids)).decode("utf-8", "replace")


class IncrementalDetokenizer:
    """Decodes token by token. All texts it returns, in a row, equal ``decode`` of all tokens.

    Bytes of an unfinished character wait for those that follow, so a character is never split.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._token_bytes = tokenizer.token_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_id: int) -> str:
        """The text that the next token makes final."""
        return self._decoder.decode(self._token_bytes(token_id))

    def flush(self) -> str:
        """The text of what waits when no token follows."""
        return self._decoder.decode(b"", final=True)


class ByteTokenizer(Tokenizer):
    """A token for each byte, and 256 for the end: the tokenizer of tiny random models."""

    vocab_size = 257
    eos_token_ids = frozenset({256})

    def encode(self, text: str) -> list[int]:
        """The bytes of the text."""
        return list(utf8(text))

    def token_bytes(self, token_id: int) -> bytes:
        """The byte itself."""
        return bytes([token_id]) if 0 <= token_id < 256 else b""

    def apply_chat_template(self, messages: Sequence[Message]) -> list[int]:
        """A line for each message, and the start of the assistant's."""
        check_messages(messages)
        lines = [f"{message['role']}: {message['content']}\n" for message in messages]
        return self.encode("".join(lines) + "assistant:")


class BPETokenizer(Tokenizer):
    """Byte-level byte-pair encoding (GPT-2, Radford et al. 2019, section 2.2)."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocab_size = vocabulary.size
        self.eos_token_ids = vocabulary.end_token_ids
        self._vocabulary = vocabulary
        self._bpe = vocabulary.bpe
        added = self._bpe.get_added_tokens_decoder()
        self._added_bytes = {token_id: token.content.encode() for token_id, token in added.items()}
        self._missing = {byte for char, byte in _BYTES.items() if self._bpe.token_to_id(char) is None}

    def encode(self, text: str) -> list[int]:
        """The token ids of the text, in which special tokens are text like any other."""
        token_ids = self._encode(text)
        vocabulary = self._vocabulary
        if vocabulary.add_bos and vocabulary.bos_token_id is not None:
            return [vocabulary.bos_token_id, *token_ids]
        return token_ids

    def token_bytes(self, token_id: int) -> bytes:
        """What the token's characters stand for; an added token stands for its own text."""
        if token_id in self._added_bytes:
            return self._added_bytes[token_id]
        token = self._bpe.id_to_token(token_id) if token_id >= 0 else None
        return b"" if token is None else _spelled(token)

    def apply_chat_template(self, messages: Sequence[Message]) -> list[int]:
        """The prompt by the model's own template, in which the template's special tokens are special."""
        token_ids: list[int] = []
        for piece in self._chat_template.render(messages):
            token_ids += [piece] if isinstance(piece, int) else self._encode(piece)
        return token_ids

    @cached_property
    def _chat_template(self) -> ChatTemplate:
        vocabulary = self._vocabulary
        if vocabulary.chat_template is None:
            raise ValueError("this model comes without a chat template; give it a plain prompt")
        variables = {
            "bos_token": vocabulary.special_text(vocabulary.bos_token_id),
            "eos_token": vocabulary.special_text(vocabulary.eos_token_id),
        }
        return ChatTemplate(vocabulary.chat_template, vocabulary.special_tokens, variables)

    def _encode(self, text: str) -> list[int]:
        lost = self._missing.intersection(utf8(text))
        if lost:
            character = next(char for char in text if lost.intersection(char.encode()))
            raise ValueError(
                f"the text holds {character!r}, which needs a byte that this model has no token for; "
                "remove or replace the character"
            )
        token_ids: list[int] = self._bpe.encode(text).ids
        return token_ids


def load_tokenizer(path: Path) -> Tokenizer:
    """The tokenizer of a GGUF file or a Hugging Face folder.

    Raises ModelError when it is missing, damaged or not byte-level BPE.
    """
    if not path.exists():
        raise ModelError(f"there is no model at {path}: give a .gguf file or a Hugging Face model folder")
    return BPETokenizer(read_hugging_face_vocabulary(path) if path.is_dir() else read_gguf_vocabulary(path))


def _spelled(token: str) -> bytes:
    """The bytes that a token of a vocabulary stands for; some converters write tokens out instead."""
    try:
        return bytes(_BYTES[char] for char in token)
    except KeyError:
        return token.encode()


def _byte_alphabet() -> dict[str, int]:
    """The characters that stand for bytes inside a vocabulary (``bytes_to_unicode`` of GPT-2's ``encoder.py``).

    A printable byte is written as itself; the others are written with the characters from U+0100 on.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(0x100) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + index): byte for index, byte in enumerate(others)}


_BYTES = _byte_alphabet()
