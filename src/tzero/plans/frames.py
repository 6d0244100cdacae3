"""The stack under a recording: where the host function is, and whose code runs.

Enters: the code of a host function and of its helpers, and the stack of this thread. Leaves: lines,
places, and the name of code that runs in the middle of the host function without being called by
it. It must not know what is recorded.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from types import CodeType, FrameType
from typing import Any

from tzero.adapters import intercept, triton_launch
from tzero.backends import source_kernel
from tzero.launches import python
from tzero.reading.purity import LIBRARIES

__all__ = ["Stack", "is_timed"]

_LAUNCHING = frozenset(
    {
        *(module.__name__ for module in (source_kernel, intercept, python, triton_launch)),
        *(__name__, "tzero.plans.record", "tzero.launches.native"),
        *("triton.runtime.jit", "helion.runtime", "helion.runtime.triton.launcher"),
    }
)
"""Modules whose frames stand between a launch that is written in a host function and its record."""

_OWN = frozenset({"tzero", "torch", "triton"})


class Stack:
    """The stack of this thread while a host function is recorded; `code` is the host function's,
    `helpers` are functions that it may call, as far as their code was read.

    ::

        Stack(add.__code__, [helper]).line()
    """

    def __init__(self, code: Any, helpers: Iterable[Any]) -> None:
        self._code = code
        self._known = frozenset(_code_in([code, *helpers]))

    def line(self) -> int:
        """The line at which the host function is; 0 where it is not running."""
        return next((f.f_lineno for f in _frames() if f.f_code is self._code), 0)

    def place(self) -> tuple[str, int]:
        """The file and line at which the host function, or its helper, is."""
        for frame in _frames():
            if frame.f_globals.get("__name__", "").partition(".")[0] not in _OWN:
                return frame.f_code.co_filename, frame.f_lineno
        return "", 0

    def launching(self) -> FrameType | None:
        """The host function's frame, if only Triton and tzero stand between it and a launch."""
        frame = next((f for f in _frames() if f.f_globals.get("__name__") not in _LAUNCHING), None)
        return frame if frame is not None and frame.f_code is self._code else None

    def stranger(self) -> str:
        """The name of code on the stack that the host function does not call: a finalizer, a
        handler of a signal, a callback of a weak reference. Empty where there is none."""
        for frame in _frames():
            code = frame.f_code
            if code is self._code:
                return ""
            module = _module(frame)
            if code.co_name == "__del__" or module == "weakref":
                return code.co_name
            # Methods that dataclasses and named tuples generate have no source to read.
            generated = code.co_filename == "<string>" and code.co_name.startswith("__")
            if not (code in self._known or generated or module.partition(".")[0] in LIBRARIES):
                return code.co_name
        return ""


def is_timed() -> bool:
    """Whether an autotuner of Triton's times candidates now.

    >>> is_timed()
    False
    """
    return any(frame.f_code.co_name in ("_bench", "_do_bench") for frame in _frames())


def _frames() -> Iterator[FrameType]:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back


def _module(frame: FrameType) -> str:
    """The module of a frame's code; for code that tzero has generated, its caller's."""
    caller = frame.f_back
    found = frame.f_globals.get("__name__")
    if found is None and caller is not None:
        found = caller.f_globals.get("__name__")
    return found or ""


def _code_in(things: Iterable[Any]) -> Iterator[CodeType]:
    """The code of functions, and the code nested in it."""
    for thing in things:
        code = thing if isinstance(thing, CodeType) else getattr(thing, "__code__", None)
        if isinstance(code, CodeType):
            yield code
            yield from _code_in(each for each in code.co_consts if isinstance(each, CodeType))
