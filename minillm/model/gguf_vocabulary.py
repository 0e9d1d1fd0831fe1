"""The tokenizer in a GGUF file's metadata (``tokenizer.*`` in ggml's ``docs/gguf.md``)."""

from pathlib import Path
from typing import Any

import tokenizers
from gguf import TokenType
from tokenizers import AddedToken, Regex
from tokenizers.models import BPE
from tokenizers.normalizers import NFC
from tokenizers.pre_tokenizers import ByteLevel, Digits, PreTokenizer, Sequence, Split

from minillm.model.checkpoint import ModelError, Settings
from minillm.model.gguf_file import read_gguf
from minillm.model.vocabulary import Vocabulary

_LLAMA_3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN_2 = _LLAMA_3.replace(r"\p{N}{1,3}", r"\p{N}")

_PREFIX = "tokenizer.ggml."


def read_gguf_vocabulary(path: Path) -> Vocabulary:
    """Read the tokenizer of a GGUF file.

    Raises ModelError for a damaged file, a tokenizer that is not byte-level BPE, and an unknown pre-tokenizer.
    """
    settings = Settings(path, read_gguf(path).metadata)
    kind = settings.get(_PREFIX + "model")
    if kind != "gpt2":
        family = " (SentencePiece)" if kind == "llama" else ""
        raise ModelError(
            f"{path} has a tokenizer of kind {kind!r}{family}, but only byte-level BPE ('gpt2') is implemented: "
            "choose another model, or send token ids"
        )
    tokens, types = _array(settings, "tokens"), _array(settings, "token_type")
    pre_tokenizer = settings.get(_PREFIX + "pre")
    add_bos = settings.get(_PREFIX + "add_bos_token")
    ends = (_token_id(settings, name, len(tokens)) for name in ("eos", "eot", "eom"))
    return Vocabulary(
        bpe=_bpe(settings, pre_tokenizer, tokens, types),
        special_tokens={
            token_id: AddedToken(token, special=True)
            for token_id, (token, kind) in enumerate(zip(tokens, types, strict=True))
            if kind in (TokenType.CONTROL, TokenType.UNKNOWN)
        },
        size=len(tokens),
        bos_token_id=_token_id(settings, "bos", len(tokens)),
        eos_token_id=_token_id(settings, "eos", len(tokens)),
        add_bos=_is_llama_3(pre_tokenizer) if add_bos is None else add_bos,
        end_token_ids=frozenset(token_id for token_id in ends if token_id is not None),
        chat_template=settings.get("tokenizer.chat_template"),
    )


def _array(settings: Settings, name: str) -> list[Any]:
    values: list[Any] | None = settings.get(_PREFIX + name)
    if values is None:
        raise ModelError(f"{settings.path} lacks {_PREFIX}{name}: convert the model again with a current llama.cpp")
    return values


def _token_id(settings: Settings, name: str, size: int) -> int | None:
    key = f"{_PREFIX}{name}_token_id"
    token_id: int | None = settings.get(key)
    if token_id is not None and token_id >= size:
        raise ModelError(f"{settings.path} sets {key} to {token_id}, but has {size} tokens: convert the model again")
    return token_id


def _bpe(settings: Settings, pre_tokenizer: str, tokens: list[str], types: list[int]) -> tokenizers.Tokenizer:
    kinds = (TokenType.NORMAL, TokenType.USER_DEFINED)
    vocab = {token: token_id for token_id, token in enumerate(tokens) if types[token_id] in kinds}
    merges = [tuple(merge.split(" ")) for merge in _array(settings, "merges")]
    try:
        # Llama 3 takes a word that is a token whole, without asking whether the merges lead there.
        bpe = tokenizers.Tokenizer(BPE(vocab, merges, ignore_merges=_is_llama_3(pre_tokenizer)))
    except Exception as error:  # the package raises no narrower type
        raise ModelError(f"{settings.path} has a damaged vocabulary ({error}): convert the model again") from None
    bpe.pre_tokenizer = _pre_tokenizer(settings, pre_tokenizer)
    if pre_tokenizer == "qwen2":
        bpe.normalizer = NFC()
    user_defined = [token for token, kind in zip(tokens, types, strict=True) if kind == TokenType.USER_DEFINED]
    bpe.add_tokens([AddedToken(token, normalized=False) for token in user_defined])
    return bpe


def _is_llama_3(pre_tokenizer: str) -> bool:
    return pre_tokenizer in ("llama-bpe", "llama3", "llama-v3")


def _pre_tokenizer(settings: Settings, name: str) -> PreTokenizer:
    """How text is cut before merging, by llama.cpp's names; the cuts are those of each model's ``tokenizer.json``."""
    add_prefix_space = bool(settings.get(_PREFIX + "add_space_prefix"))
    as_gpt_2, uncut = (ByteLevel(add_prefix_space, use_regex=use_regex) for use_regex in (True, False))
    if name == "gpt-2":
        return as_gpt_2
    if name == "smollm":
        return Sequence([Digits(individual_digits=True), as_gpt_2])
    if _is_llama_3(name):
        return Sequence([Split(Regex(_LLAMA_3), "isolated"), uncut])
    if name == "qwen2":
        return Sequence([Split(Regex(_QWEN_2), "isolated"), uncut])
    raise ModelError(
        f"{settings.path} asks for the pre-tokenizer {name!r}, but only gpt-2, smollm, llama-bpe and qwen2 are "
        "implemented: choose another model, or its Hugging Face folder"
    )
