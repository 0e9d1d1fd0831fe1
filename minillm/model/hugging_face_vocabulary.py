"""The tokenizer in a Hugging Face folder: ``tokenizer.json``, with settings in smaller files beside it."""

import json
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken

from minillm.model.checkpoint import ModelError
from minillm.model.json_file import read_json
from minillm.model.vocabulary import Vocabulary

Json = dict[str, Any]


def read_hugging_face_vocabulary(folder: Path) -> Vocabulary:
    """Read ``tokenizer.json`` and the settings beside it, each where it is present.

    These are ``tokenizer_config.json``, ``chat_template.jinja``, and ``generation_config.json`` (else ``config.json``)
    for the tokens that end an answer. Raises ModelError for a missing ``tokenizer.json``, for damaged files and for
    a tokenizer that is not byte-level BPE.
    """
    tokenizer = _tokenizer_json(folder)
    config = _read_if_present(folder / "tokenizer_config.json")
    generation = _read_if_present(folder / "generation_config.json") or _read_if_present(folder / "config.json")
    added = _added_tokens(folder, tokenizer)
    ids = _vocab(folder, tokenizer) | {token["content"]: token["id"] for token in added}
    bos_token_id, eos_token_id = (_token_id(folder, config, name, ids) for name in ("bos_token", "eos_token"))
    return Vocabulary(
        bpe=_bpe(folder, tokenizer, added),
        special_tokens={token["id"]: _added_token(token) for token in added if token["special"]},
        size=max(ids.values()) + 1,
        bos_token_id=bos_token_id,
        eos_token_id=eos_token_id,
        add_bos=_adds_bos(folder, tokenizer, config, bos_token_id),
        end_token_ids=_end_token_ids(folder, generation.get("eos_token_id"), eos_token_id),
        chat_template=_chat_template(folder, config),
    )


def _tokenizer_json(folder: Path) -> Json:
    tokenizer = _read_if_present(folder / "tokenizer.json")
    if not tokenizer and (folder / "tokenizer.model").is_file():
        raise ModelError(
            f"{folder} has only tokenizer.model, a SentencePiece tokenizer, but only byte-level BPE is implemented: "
            "choose another model, or send token ids"
        )
    if not tokenizer:
        raise ModelError(f"{folder} has no tokenizer.json: download it, or save the tokenizer again with transformers")
    model = tokenizer.get("model") or {}
    kind = model.get("type") or ("BPE" if "merges" in model else None)  # files of 2020 do not name it
    if kind != "BPE" or '"ByteLevel"' not in json.dumps([tokenizer.get("pre_tokenizer"), tokenizer.get("decoder")]):
        name = "SentencePiece-style BPE" if kind == "BPE" else kind
        raise ModelError(
            f"{folder} has a tokenizer of kind {name}, but only byte-level BPE is implemented: "
            "choose another model, or send token ids"
        )
    return tokenizer


def _read_if_present(path: Path) -> Json:
    """The file's object; empty where there is no such file."""
    return read_json(path) if path.is_file() else {}


def _vocab(folder: Path, tokenizer: Json) -> dict[str, int]:
    vocab = tokenizer["model"].get("vocab")
    if not (isinstance(vocab, dict) and vocab and all(map(_is_token_id, vocab.values()))):
        raise _malformed(folder / "tokenizer.json", "vocab", "a table of tokens and their ids")
    return vocab


def _added_tokens(folder: Path, tokenizer: Json) -> list[Json]:
    added = tokenizer.get("added_tokens") or []
    if not (isinstance(added, list) and all(map(_is_added_token, added))):
        raise _malformed(folder / "tokenizer.json", "added_tokens", "a list of tokens with id, content and flags")
    return added


def _is_added_token(token: Any) -> bool:
    return (
        isinstance(token, dict)
        and isinstance(token.get("content"), str)
        and _is_token_id(token.get("id"))
        and all(isinstance(token.get(flag), bool) for flag in ("special", "lstrip", "rstrip"))
    )


def _is_token_id(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**31


def _malformed(path: Path, key: str, rule: str) -> ModelError:
    return ModelError(f"{path}: {key} must be {rule}: download it again, or save it again with transformers")


def _bpe(folder: Path, tokenizer: Json, added: list[Json]) -> tokenizers.Tokenizer:
    """The tokenizer without its special tokens, and without what it would put around a text.

    Added tokens that are not special join the vocabulary proper, so that they keep their ids.
    """
    special = {token["content"] for token in added if token["special"]}
    plain = [token for token in added if not token["special"]]
    vocab = {token: token_id for token, token_id in tokenizer["model"]["vocab"].items() if token not in special}
    vocab |= {token["content"]: token["id"] for token in plain}
    changes = {
        "added_tokens": plain,
        "model": {**tokenizer["model"], "vocab": vocab, "unk_token": None},
        "post_processor": None,
    }
    return _build(folder, {**tokenizer, **changes})


def _build(folder: Path, tokenizer: Json) -> tokenizers.Tokenizer:
    """A tokenizer that neither cuts nor pads what it encodes."""
    try:
        return tokenizers.Tokenizer.from_str(json.dumps({**tokenizer, "truncation": None, "padding": None}))
    except Exception as error:  # the package raises no narrower type
        raise ModelError(f"{folder / 'tokenizer.json'} is damaged ({error}): download it again") from None


def _added_token(token: Json) -> AddedToken:
    return AddedToken(token["content"], lstrip=token["lstrip"], rstrip=token["rstrip"], special=True)


def _token_id(folder: Path, config: Json, name: str, ids: dict[str, int]) -> int | None:
    """The id of a token that is named by its text, or by a description that holds the text."""
    token: Any = config.get(name)
    text = token.get("content") if isinstance(token, dict) else token
    if not isinstance(text, str | None):
        raise _malformed(folder / "tokenizer_config.json", name, "a token's text")
    return None if text is None else ids.get(text)


def _adds_bos(folder: Path, tokenizer: Json, config: Json, bos_token_id: int | None) -> bool:
    """``add_bos_token`` where it is given, else what the post-processor puts around an empty text."""
    if isinstance(config.get("add_bos_token"), bool):
        return bool(config["add_bos_token"])
    empty = {**tokenizer, "added_tokens": [], "model": {"type": "BPE", "vocab": {}, "merges": []}}
    added = _build(folder, empty).encode("").ids
    if added not in ([], [bos_token_id]):
        raise ModelError(
            f"{folder} has a tokenizer that puts the tokens {added} around a text, but only a leading bos token is "
            "implemented: choose another model, or send token ids"
        )
    return bool(added)


def _end_token_ids(folder: Path, named: Any, eos_token_id: int | None) -> frozenset[int]:
    ids = [*(named if isinstance(named, list) else [named]), eos_token_id]
    found = [token_id for token_id in ids if token_id is not None]
    if not all(map(_is_token_id, found)):
        raise _malformed(folder, "eos_token_id", "a token id or a list of them")
    return frozenset(found)


def _chat_template(folder: Path, config: Json) -> str | None:
    """A file of its own, or a setting: one template, or several of which one is called default."""
    path = folder / "chat_template.jinja"
    if path.is_file():
        return path.read_text("utf-8")
    template = config.get("chat_template")
    if isinstance(template, list) and all(isinstance(entry, dict) for entry in template):
        template = next((entry.get("template") for entry in template if entry.get("name") == "default"), None)
    if not isinstance(template, str | None):
        raise _malformed(folder / "tokenizer_config.json", "chat_template", "a text, or a list of named texts")
    return template
