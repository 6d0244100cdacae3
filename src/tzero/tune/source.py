"""A digest of the source of a host function and its kernels, under which outcomes are remembered.

Enters: a host function. Leaves: a digest of its source and, transitively, of the functions, kernels
and plain constants that it names; the same in every process and on every machine. It must not know
what the source means. Decorators are left out, because they contain the list of configs, and so are
empty lines and comments.

Constants are numbers, texts, and tuples of them; defaults of parameters count as well. The contents
of lists, dicts, tensors and objects do not: programs change them all the time. So a remembered
config was right with this source and these constants.
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

__all__ = ["digest", "reached"]

_PLAIN = (bool, int, float, complex, str, bytes, type(None), Config)
_DEEP = 32


def digest(function: Callable[..., Any]) -> str:
    """The digest of a host function: sixteen hexadecimal digits.

    >>> digest(lambda x: x) == digest(lambda x: x), digest(lambda x: x) == digest(lambda x: -x)
    (True, False)
    """
    texts: dict[int, str] = {}
    kept: list[Any] = []  # keeps the objects alive, so that their ids are not reused
    _read(function, texts, kept, _DEEP)
    return hashlib.sha256("\0".join(texts.values()).encode("utf-8", "replace")).hexdigest()[:16]


def reached(function: Callable[..., Any]) -> list[Any]:
    """The objects that a host function names, and transitively those of the functions that it
    names: globals and closure variables without functions, constants and libraries.

    >>> held = [1]
    >>> reached(lambda x: x + held[0])
    [[1]]
    """
    found: list[Any] = []
    below = _function(function)
    waiting = [] if below is None else [below]
    known = {id(each) for each in waiting}
    while waiting:
        for _, value in _named(waiting.pop()):
            if id(value) in known or isinstance(value, _PLAIN) or _is_library(value):
                continue
            known.add(id(value))
            inner = _function(value)
            if inner is None:
                found.append(value)
            elif id(inner) not in known:
                known.add(id(inner))
                waiting.append(inner)
    return found


def _read(function: Any, texts: dict[int, str], kept: list[Any], deep: int) -> None:
    below = _function(function)
    if below is None or id(below) in texts or not deep:
        return
    kept.append(below)
    texts[id(below)] = _text(below)
    constants = []
    for name, value in [*_named(below), *_defaults(below)]:
        if _is_constant(value):
            constants.append(f"{name}={_constant(value)}")
        elif not _is_library(value):
            _read(value, texts, kept, deep - 1)
    texts[id(below)] += "\n" + "\n".join(constants)


def _is_constant(value: Any) -> bool:
    if isinstance(value, tuple | frozenset):
        return all(_is_constant(each) for each in value)
    return isinstance(value, _PLAIN)


def _constant(value: Any) -> str:
    if isinstance(value, tuple | frozenset):
        texts = [_constant(each) for each in value]
        return f"({', '.join(texts if isinstance(value, tuple) else sorted(texts))})"
    return repr(value)


def _defaults(function: FunctionType) -> Iterator[tuple[str, Any]]:
    for k, value in enumerate(function.__defaults__ or ()):
        yield f"default {k}", value
    yield from (function.__kwdefaults__ or {}).items()


def _function(value: Any) -> FunctionType | None:
    """The Python function inside a wrapper, under the attribute names of Triton's and tzero's
    kernels, methods and partials."""
    for _ in range(_DEEP):
        if isinstance(value, FunctionType):
            return value
        inner = [getattr(value, name, None) for name in ("fn", "function", "__func__", "func")]
        value = next((each for each in inner if each is not None), None)
        if value is None or isinstance(value, type):
            return None
    return None


def _named(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """The globals and closure variables that a function names, in the order of its code."""
    names = dict.fromkeys(_names(function.__code__))
    variables = function.__globals__
    free = function.__code__.co_freevars
    for name, cell in zip(free, function.__closure__ or (), strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    for name in names:
        value = variables.get(name)
        if name in variables:
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
    """The source of a function without its decorators; its bytecode, where there is no source."""
    try:
        text = textwrap.dedent(inspect.getsource(function))
        [definition, *_] = ast.parse(text).body
    except (OSError, TypeError, SyntaxError, ValueError):  # a lambda may begin inside a line
        return _code(function.__code__)
    if not isinstance(definition, ast.FunctionDef):
        return _code(function.__code__)
    lines = text.splitlines()[definition.lineno - 1 : definition.end_lineno]
    stripped = (line.rstrip() for line in lines)
    return "\n".join(line for line in stripped if line and not line.lstrip().startswith("#"))


def _code(code: CodeType) -> str:
    inner = [_code(each) if isinstance(each, CodeType) else repr(each) for each in code.co_consts]
    return "\n".join([code.co_code.hex(), *code.co_names, *code.co_varnames, *inner])
