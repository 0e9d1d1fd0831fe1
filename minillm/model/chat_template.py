"""Chat messages to a prompt, by the jinja2 template that comes with a model."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from typing import Any, NoReturn, TypedDict

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import AddedToken

from minillm.model.utf8 import utf8

ROLES = ("system", "developer", "user", "assistant", "tool")


class Message(TypedDict):
    """One turn of a conversation. ``role`` is one of ``ROLES``."""

    role: str
    content: str


def check_messages(messages: Sequence[Message]) -> None:
    """Raise ValueError unless there are messages, each with a known role, valid text and nothing else."""
    if not messages:
        raise ValueError("the list of messages is empty; give at least one")
    for message in messages:
        if message.keys() != {"role", "content"} or not isinstance(message["content"], str):
            raise ValueError(f"the message {message!r} must have a role and a content, which is a string, and no more")
        if message["role"] not in ROLES:
            raise ValueError(f"the role {message['role']!r} is unknown; use one of {', '.join(ROLES)}")
        utf8(message["content"])


class ChatTemplate:
    """Renders messages such that a special token in the prompt can only come from the template.

    Where a special token's text stands in a message, its first character is disguised as a lone surrogate, which no
    valid text contains. The template thus sees, trims and searches the real content but for such places. In the
    rendered text special tokens are found before the disguise comes off.
    """

    def __init__(self, source: str, special_tokens: Mapping[int, AddedToken], variables: Mapping[str, str]) -> None:
        self._source = source
        self._variables = variables
        self._ids = {token.content: token_id for token_id, token in special_tokens.items()}
        self._texts = tuple(self._ids)
        self._longest = max(map(len, self._texts), default=0)
        self._pattern = _any_of(special_tokens.values())
        first_characters = sorted({text[0] for text in self._texts})
        self._first_character = re.compile("|".join(map(re.escape, first_characters)) or "(?!)")
        self._disguise = {ord(char): 0xD800 + index for index, char in enumerate(first_characters)}
        self._reveal = {surrogate: char for char, surrogate in self._disguise.items()}

    def render(self, messages: Sequence[Message]) -> list[str | int]:
        """The prompt up to where the assistant answers: texts, and between them the ids of special tokens.

        Raises ValueError for malformed messages, and when the template refuses them.
        """
        check_messages(messages)
        disguised = [{"role": message["role"], "content": self._disguised(message["content"])} for message in messages]
        try:
            rendered = self._template.render(messages=disguised, add_generation_prompt=True, **self._variables)
        except jinja2.TemplateError as error:
            raise ValueError(f"the model's chat template refuses these messages: {error}") from None
        return self._split(rendered)

    @cached_property
    def _template(self) -> jinja2.Template:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = _to_json
        environment.globals.update(raise_exception=_refuse, strftime_now=_now, tools=None, documents=None)
        return environment.from_string(self._source)

    def _disguised(self, content: str) -> str:
        end = len(content.rstrip())

        def disguise(match: re.Match[str]) -> str:
            starts = self._may_start_special(content, match.start(), end)
            return match[0].translate(self._disguise) if starts else match[0]

        return self._first_character.sub(disguise, content)

    def _may_start_special(self, content: str, position: int, end: int) -> bool:
        """Whether a special token stands here, or the start of one that what follows the message might complete.

        ``end`` is where the content ends once a template has trimmed white space from it.
        """
        if content.startswith(self._texts, position):
            return True
        cut_off = end - position < self._longest
        return cut_off and any(text.startswith(content[position:end]) for text in self._texts)

    def _split(self, rendered: str) -> list[str | int]:
        pieces: list[str | int] = []
        start = 0
        for match in self._pattern.finditer(rendered):
            pieces += [rendered[start : match.start()].translate(self._reveal), self._ids[match[0].strip()]]
            start = match.end()
        pieces.append(rendered[start:].translate(self._reveal))
        return [piece for piece in pieces if piece != ""]


def _any_of(tokens: Iterable[AddedToken]) -> re.Pattern[str]:
    """Matches any of the tokens, the longest first, with the white space that it swallows."""
    ordered = sorted(tokens, key=lambda token: len(token.content), reverse=True)
    patterns = [r"\s*" * token.lstrip + re.escape(token.content) + r"\s*" * token.rstrip for token in ordered]
    return re.compile("|".join(patterns) or "(?!)")


def _refuse(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _now(format: str) -> str:
    return datetime.now().strftime(format)


def _to_json(value: Any, **options: Any) -> str:
    """Plain JSON, where jinja2's own filter would escape for HTML."""
    return json.dumps(value, **{"ensure_ascii": False, **options})
