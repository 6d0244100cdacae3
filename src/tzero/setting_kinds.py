"""What a setting may be: a switch, a number, a word, a text, a command.

Enters: text from the environment, or a value that a program gives. Leaves: the value, or
`Malformed`. It must not know any setting, nor the environment.
"""

from __future__ import annotations

import dataclasses
import re
import shlex
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

__all__ = [
    "COMMAND",
    "FLEET",
    "REMOTE",
    "SWITCH",
    "Kind",
    "Malformed",
    "number",
    "one_form",
    "one_of",
    "one_word",
    "several",
    "some_text",
]

_T = TypeVar("_T")
_T_co = TypeVar("_T_co", covariant=True)


class Malformed(Exception):
    """The text of a variable does not parse; the reader names the variable."""


@dataclasses.dataclass(frozen=True, slots=True)
class Kind(Generic[_T_co]):
    """What a setting may be: as text in the environment, and as a value in an override."""

    parse: Callable[[str], _T_co]  # text that is not empty; raises Malformed
    accepts: Callable[[object], bool]
    texts: Sequence[str]  # what the environment may hold, in words
    values: Sequence[str]  # what an override may pass, in words


def one_of(*choices: tuple[str, _T, str]) -> Kind[_T]:
    """One of several values, each given as (text, value, meaning); a meaning may be empty."""
    known = {text: value for text, value, _ in choices}

    def parse(text: str) -> _T:
        if text not in known:
            raise Malformed
        return known[text]

    return Kind(
        parse,
        lambda value: any(type(value) is type(each) and value == each for each in known.values()),
        [f"{text!r} ({meaning})" if meaning else repr(text) for text, _, meaning in choices],
        [repr(value) for value in known.values()],
    )


def one_word(*words: str) -> Kind[str]:
    """One of several words."""
    return one_of(*((word, word, "") for word in words))


def number(least: int, unit: str = "", zero: str = "") -> Kind[int]:
    """A whole number from ``least``; ``zero`` is what 0 means."""

    def parse(text: str) -> int:
        if not (text.isascii() and text.isdecimal()) or int(text) < least:
            raise Malformed
        return int(text)

    of_unit = f" of {unit}" if unit else ""
    words = f"a whole number{of_unit} from {least}" + (f" ({zero})" if zero else "")
    return Kind(parse, lambda value: type(value) is int and value >= least, (words,), (words,))


def some_text(what: str, example: str = "") -> Kind[str]:
    """Any text that is not empty."""
    words = f"{what}, such as {example!r}" if example else what
    return Kind(
        lambda text: text, lambda value: isinstance(value, str) and bool(value), (words,), (what,)
    )


def _split(text: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise Malformed from error


def _is_command(value: object) -> bool:
    return isinstance(value, tuple) and bool(value) and all(isinstance(w, str) for w in value)


def several(*words: str) -> Kind[tuple[str, ...]]:
    """Some of several words, also in the plural, with commas between; ``all`` for all of them."""

    def singular(word: str) -> str:
        forms = (word, word.removesuffix("s"), word.removesuffix("es"))
        return next((each for each in forms if each in words), word)

    def parse(text: str) -> tuple[str, ...]:
        found = tuple(singular(word.strip()) for word in text.split(",") if word.strip())
        if not accepts(found) and "all" not in found:
            raise Malformed
        return words if "all" in found else found

    def accepts(value: object) -> bool:
        return isinstance(value, tuple) and all(each in words for each in value)

    listed = f"some of {', '.join(words)}, with commas between, or 'all'"
    return Kind(parse, accepts, (listed,), (f"a tuple of some of {', '.join(words)}",))


SWITCH = one_of(("0", False, "off"), ("1", True, "on"))
COMMAND: Kind[tuple[str, ...]] = Kind(
    _split,
    _is_command,
    ("a command in shell quoting, such as 'clang-19' or 'ccache gcc'",),
    ("a tuple of words, such as ('ccache', 'gcc')",),
)


def one_form(forms: str, *words: str) -> Kind[str]:
    """A text that matches a regular expression, which the words describe."""

    def parse(text: str) -> str:
        if not re.fullmatch(forms, text):
            raise Malformed
        return text

    return Kind(
        parse,
        lambda value: isinstance(value, str) and bool(re.fullmatch(forms, value)),
        words,
        words,
    )


FLEET = one_form(
    r"c10d|(redis|rediss|unix)://.+|file:///.+",
    "'c10d' (the store of torchrun)",
    "a URL of redis or of a directory, such as 'file:///data'",
)
REMOTE = one_form(  # without the slashes, fsspec would take any text for a directory's name
    r"(?s)c10d(:\d+)?|file:///.+|(?!file:)[A-Za-z][\w+.-]*(::.+)?://.+",
    "a URL, such as 'redis://host:6379/0', 's3://bucket/tzero' or 'file:///data'",
)
