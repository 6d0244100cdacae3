"""Judges one case: is it right with tzero, and how are its calls made?

Enters: a `Case`. Leaves: a `Verdict`, or `Wrong` if a call with tzero differs from the plain call.

Each shape is called several times, with new data each time: plainly, and with tzero. The results,
the arguments afterwards and the aliasing between them are compared bit for bit, and the results
once more after all calls, so that a result that a later call writes to is found. A second kernel
makes the calls in verify mode.

How a call is made is observed, not asked: Python's profiler sees whether the host function ran, or
any other Python code. Only the reason of a fallback is tzero's own word.

Autotuners take their first config without timing it, so that plain calls and calls with tzero
launch the same code. One thread runs each grid, so that atomic additions have one order.
"""

from __future__ import annotations

import inspect
import itertools
import logging
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Literal

import torch
from triton.runtime.autotuner import Autotuner

import tzero
from tests.corpus.case import Case, Given
from tests.corpus.same import aliases, difference
from tzero import settings

__all__ = ["CALLS", "Status", "Verdict", "Wrong", "judge", "quiet"]

CALLS = 3
"""Calls of each shape: one is recorded, the others are replayed."""

Status = Literal["native", "python", "fallback", "raises", "skipped"]
ORDER: tuple[Status, ...] = ("native", "python", "fallback", "raises", "skipped")


class Wrong(AssertionError):
    """A call with tzero did something else than the plain call."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """How the calls of a case are made; the worst of its shapes counts. `reason` says why they fall
    back, what they raise, or why the case cannot run on the CPU."""

    status: Status
    reason: str = ""


@contextmanager
def quiet() -> Iterator[None]:
    """Tune without timing, launch on one thread, and hide the warnings of the projects."""
    numbers = itertools.count()
    bench, threads = Autotuner._bench, torch.get_num_threads()
    Autotuner._bench = lambda self, *args, config, **meta: [float(next(numbers))] * 3
    torch.set_num_threads(1)
    logger = logging.getLogger("tzero")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
        Autotuner._bench = bench
        torch.set_num_threads(threads)


def judge(case: Case) -> Verdict:
    """Judge a case; raises `Wrong` if a call was wrong."""
    with quiet():
        try:
            _call(case.function, case.given(0, 0), 0)
        except Exception as error:  # whatever a project raises without a GPU
            return Verdict("skipped", _said(error))
        with settings.override(verify=False):
            verdict = _compared(case, CALLS, observe=True)
        if verdict.status != "raises":
            with settings.override(verify=True):
                verified = _compared(case, 2, observe=False)
            if verified.status == "raises":
                raise Wrong(f"{case.id}, in verify mode: {verified.reason}")
    return verdict


def _compared(case: Case, calls: int, observe: bool) -> Verdict:
    try:
        kernel = tzero.kernel(case.function)
    except Exception as error:  # that tzero raises at all is what is recorded
        return Verdict("raises", _said(error))
    verdicts, kept = [], []
    for shape, number in itertools.product(range(3), range(calls)):
        seed = 100 * shape + number
        plain, mine = case.given(shape, seed), case.given(shape, seed)
        expected = None if shape == 1 else _call(case.function, plain, seed)
        try:
            got = _call(kernel, mine, seed)
        except Exception as error:  # the plain call shows that it should not raise
            _call(case.function, case.given(shape, seed), seed)
            return Verdict("raises", _said(error))
        if shape == 1:  # here tzero was the first to compile
            expected = _call(case.function, plain, seed)
        where = f"{case.id}, shape {case.shapes[shape]}, call {number}"
        _check(plain, expected, mine, got, where)
        kept.append((plain, expected, mine, got, f"{where}, after all calls"))
        if observe and number == calls - 1:
            verdicts.append(_observed(case, kernel, shape))
    for each in kept:
        _check(*each)
    return (
        max(verdicts, key=lambda each: ORDER.index(each.status)) if verdicts else Verdict("native")
    )


def _call(function: Callable[..., Any], call: Given, seed: int) -> Any:
    torch.manual_seed(seed)
    return function(*call.args, **call.kwargs)


def _check(plain: Given, expected: Any, mine: Given, got: Any, where: str) -> None:
    for found in (
        difference(expected, got, "result"),
        difference(plain, mine, "arguments"),
    ):
        if found:
            raise Wrong(f"{where}: {found}")
    one, two = aliases((plain, expected)), aliases((mine, got))
    if one != two:
        raise Wrong(f"{where}: aliasing is {one} plainly, {two} with tzero")


def _observed(case: Case, kernel: Any, shape: int) -> Verdict:
    """How one more call is made."""
    ran = _code_run(kernel, case.given(shape, 98))
    if not ran:
        return Verdict("native")
    host = {_code(case.function), _code(inspect.unwrap(case.function))}
    if not any(code in host or "/helion/" in code.co_filename for code in ran):
        return Verdict("python", f"Python runs {', '.join(dict.fromkeys(map(_name, ran)))}")
    return Verdict("fallback", _shown(_why(kernel, case.given(shape, 99))))


def _why(kernel: Any, call: Given) -> str:
    """Why a call falls back: the event of one more call, or what `explain` said before it."""
    seen: list[str] = []
    explained = kernel.explain(*call.args, **call.kwargs).refusal

    def note(event: Any) -> None:
        if event.kind == "fallback":
            seen.append(event.reason.removeprefix("not replayed: "))

    with tzero.events.observe(note):
        kernel(*call.args, **call.kwargs)
    return seen[0] if seen else explained or "no reason is given"


def _code_run(kernel: Any, call: Given) -> list[CodeType]:
    """The code of every Python function that a call runs."""
    ran: list[CodeType] = []

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            ran.append(frame.f_code)

    args, kwargs = call
    sys.setprofile(note)
    try:
        kernel(*args, **kwargs)
    finally:
        sys.setprofile(None)
    return ran


def _code(function: Any) -> CodeType | None:
    return getattr(function, "__code__", None)


def _name(code: CodeType) -> str:
    """The module and the name of a function; of one inside another, that of the other."""
    return f"{Path(code.co_filename).stem}.{code.co_qualname.partition('.<locals>')[0]}"


def _said(error: BaseException) -> str:
    first, *others = str(error).strip().splitlines() or [""]
    if first.endswith(":") and others:  # Triton's errors show the code first
        first = others[-1].strip()
    return _shown(f"{type(error).__name__}: {first}" if first else type(error).__name__)


def _shown(text: str) -> str:
    """Text without addresses and paths, which differ between machines."""
    text = re.sub(r"0x[0-9a-f]{6,}", "0x...", text)
    text = re.sub(r", at \S*/tests/corpus/judge.py:\d+", "", text)
    text = re.sub(r"/[\w./+-]*/(?=(liger_kernel|fla|helion|torch|triton|tests)/)", "", text)
    return re.sub(r"(?<![\w./])/[\w./+-]+/", "", text)[:300]
