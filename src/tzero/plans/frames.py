"""The stack during a recording: the host function's line, and code that interrupts it.

Enters: the code of a host function and of its helpers, and the stack of this thread. Leaves: lines,
files, and the name of code that runs during the host function without being called by it. It must
not know what is recorded.
"""

from __future__ import annotations

import sys
from collections.abc import Container, Iterable, Iterator
from types import CodeType, FrameType
from typing import Any

from tzero.adapters import intercept, triton_entries
from tzero.adapters.python_frames import Codes
from tzero.backends import source_kernel
from tzero.launches import python
from tzero.reading.purity import LIBRARIES

__all__ = ["Stack", "is_timed"]

_LAUNCHING = frozenset(
    {
        *(module.__name__ for module in (source_kernel, intercept, python, triton_entries)),
        *(__name__, "tzero.plans.record", "tzero.launches.native"),
        *("triton.runtime.jit", "helion.runtime", "helion.runtime.triton.launcher"),
    }
)
"""Modules whose frames may lie between a launch in a host function and its recording."""

_OWN = frozenset({"tzero", "torch", "triton"})


class Stack:
    """The stack of this thread while a host function is recorded. `code` is the host function's;
    `helpers` are the functions it may call whose code was read.

    ::

        Stack(add.__code__, [helper]).line()
    """

    def __init__(self, code: Any, helpers: Iterable[Any]) -> None:
        self._code = code
        self.known: Container[CodeType] = Codes(_code_in([code, *helpers]))
        """The code that the host function may run."""
        self._harmless: dict[int, Any] = {}  # globals of frames it has called, by their code's id
        self._kept: list[CodeType] = []  # that code, so that the ids stay its own

    def line(self) -> int:
        """The current line of the host function; 0 if it is not running."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            if frame.f_code is self._code:
                return frame.f_lineno or 0
            frame = frame.f_back
        return 0

    def place(self) -> tuple[str, int]:
        """The current file and line of the host function or its helper."""
        frame = self.caller()
        return ("", 0) if frame is None else (frame.f_code.co_filename, frame.f_lineno)

    def caller(self) -> FrameType | None:
        """The frame of the host function or its helper that calls torch or a kernel."""
        for frame in _frames():
            if frame.f_globals.get("__name__", "").partition(".")[0] not in _OWN:
                return frame
        return None

    def launching(self) -> FrameType | None:
        """The host function's frame, if it launches directly: neither through a helper, nor in a
        call of itself, whose arguments are others."""
        found: FrameType | None = None
        for frame in _frames():
            if found is None and frame.f_globals.get("__name__") not in _LAUNCHING:
                found = frame
                if frame.f_code is not self._code:
                    return None
            elif frame.f_code is self._code:
                return None
        return found

    def stranger(self) -> str:
        """The name of code on the stack that the host function did not call: a finalizer, a signal
        handler, a weak reference callback. Empty if there is none."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            code = frame.f_code
            if code is self._code:
                return ""
            if self._harmless.get(id(code)) is not frame.f_globals and self._is_strange(frame):
                return code.co_name
            frame = frame.f_back
        return ""

    def _is_strange(self, frame: FrameType) -> bool:
        """Whether the host function did not call what a frame runs."""
        code, module = frame.f_code, _module(frame)
        if code.co_name == "__del__" or module == "weakref":
            return True
        # Generated methods of dataclasses and named tuples have no source file.
        is_generated = code.co_filename == "<string>" and code.co_name.startswith("__")
        is_called = module.partition(".")[0] in LIBRARIES or code in self.known
        if is_called and frame.f_globals.get("__name__") is not None:  # else its caller counts
            self._harmless[id(code)] = frame.f_globals
            self._kept.append(code)
        return not (is_generated or is_called)


def is_timed() -> bool:
    """Whether a Triton autotuner is timing candidates now.

    >>> is_timed()
    False
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name in ("_bench", "_do_bench"):
            return True
        frame = frame.f_back
    return False


def _frames() -> Iterator[FrameType]:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back


def _module(frame: FrameType) -> str:
    """The module of a frame; for code that tzero generated, its caller's."""
    found = frame.f_globals.get("__name__")
    if found is None and frame.f_back is not None:
        found = frame.f_back.f_globals.get("__name__")
    return found or ""


def _code_in(things: Iterable[Any]) -> Iterator[CodeType]:
    """The code of functions, and the code nested in it."""
    for thing in things:
        code = thing if isinstance(thing, CodeType) else getattr(thing, "__code__", None)
        if isinstance(code, CodeType):
            yield code
            yield from _code_in(each for each in code.co_consts if isinstance(each, CodeType))
