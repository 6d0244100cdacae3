"""What a measurement is made of.

A row is known before anything is imported or allocated; its case, with tensors and functions, is
made when its turn comes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from bench.measure import Call
from bench.record import Target

__all__ = ["Case", "Row"]


@dataclass(frozen=True, slots=True)
class Case:
    """The contenders of a row, ready to run, and ``check``, which raises if one of them is wrong.

    ``calls`` and ``rounds`` are set where a call cannot simply be repeated: compiling, say.
    ``settle`` waits for what a device still has to do.
    """

    contenders: Mapping[str, Call]
    check: Callable[[], None]
    calls: int | None = None
    rounds: int | None = None
    settle: Call = lambda: None


@dataclass(frozen=True, slots=True)
class Row:
    """One measurement: ``subject`` is timed, against ``baseline`` where there is one. With a
    ``floor``, what both take above that contender is compared. Where the unit is bytes, contenders
    return how many, and nothing is timed. ``needs`` is a package without which it is left out;
    ``device`` is the one that it is about, ``threads`` is how many torch and kernels on the CPU
    use."""

    id: str
    title: str
    make: Callable[[], Case]
    subject: str = "triton"
    baseline: str | None = "torch"
    floor: str | None = None
    unit: str = "ms"
    target: Target | None = None
    interpreted: bool = True
    needs: str | None = None
    device: str = "cpu"
    threads: int = 2
