"""What a host function and its kernels are made of, as a digest: what was tuned is kept under it.

Enters: a host function. Leaves: a digest of its text and, transitively, of the functions, kernels
and plain constants that it names; the same in every process and on every machine. It must not know
what is in the text. Decorators are left out, for the configs to try are written there, and so are
lines that are empty or a comment.

A change that it does not see costs speed, and nothing else: what is remembered under a digest is
which config was fastest, and each of them is right.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import textwrap
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any

from tzero.config import Config
from tzero.reading.purity import LIBRARIES

__all__ = ["digest"]

_PLAIN = (bool, int, float, str, type(None), Config)
_DEEP = 32


def digest(function: Callable[..., Any]) -> str:
    """The digest of a host function, in sixteen digits.

    >>> digest(lambda x: x) == digest(lambda x: x), digest(lambda x: x) == digest(lambda x: -x)
    (True, False)
    """
    texts: dict[int, str] = {}
    kept: list[Any] = []  # what the ids belong to
    _read(function, texts, kept, _DEEP)
    return hashlib.sha256("\0".join(texts.values()).encode("utf-8", "replace")).hexdigest()[:16]


def _read(function: Any, texts: dict[int, str], kept: list[Any], deep: int) -> None:
    below = _function(function)
    if below is None or id(below) in texts or not deep:
        return
    kept.append(below)
    texts[id(below)] = _text(below)
    constants = []
    for name, value in _named(below):
        if isinstance(value, _PLAIN):
            constants.append(f"{name}={value!r}")
        elif not _is_library(value):
            _read(value, texts, kept, deep - 1)
    texts[id(below)] += "\n" + "\n".join(constants)


def _function(value: Any) -> FunctionType | None:
    """The Python function in a function, a kernel of Triton's or tzero's, or a method."""
    for _ in range(_DEEP):
        if isinstance(value, FunctionType):
            return value
        inner = [getattr(value, name, None) for name in ("fn", "function", "__func__", "func")]
        value = next((each for each in inner if each is not None), None)
        if value is None or isinstance(value, type):
            return None
    return None


def _named(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """What the code of a function names in the world around it, in the order of the code."""
    names = dict.fromkeys(_names(function.__code__))
    world = function.__globals__
    free = function.__code__.co_freevars
    for name, cell in zip(free, function.__closure__ or (), strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    for name in names:
        value = world.get(name)
        if name in world:
            yield name, value
        if isinstance(value, ModuleType) and not _is_library(value):
            yield from ((each, vars(value)[each]) for each in names if each in vars(value))


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _is_library(value: Any) -> bool:
    below = _function(value)
    owner = value.__name__ if isinstance(value, ModuleType) else getattr(below, "__module__", "")
    return str(owner).partition(".")[0] in LIBRARIES


def _text(function: FunctionType) -> str:
    """The text of a function without its decorators; its code, where there is no text."""
    try:
        text = textwrap.dedent(inspect.getsource(function))
        [definition, *_] = ast.parse(text).body
    except (OSError, TypeError, SyntaxError, ValueError):  # a lambda may begin within a line
        return _code(function.__code__)
    if not isinstance(definition, ast.FunctionDef):
        return _code(function.__code__)
    lines = text.splitlines()[definition.lineno - 1 : definition.end_lineno]
    stripped = (line.rstrip() for line in lines)
    return "\n".join(line for line in stripped if line and not line.lstrip().startswith("#"))


def _code(code: CodeType) -> str:
    inner = [_code(each) if isinstance(each, CodeType) else repr(each) for each in code.co_consts]
    return "\n".join([code.co_code.hex(), *code.co_names, *code.co_varnames, *inner])
