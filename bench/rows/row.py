"""What a measurement is made of.

A row is a description. Its case, with tensors and functions, is made when the row is measured.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from bench.measure import Call
from bench.record import Target

__all__ = ["Case", "Row"]


@dataclass(frozen=True, slots=True)
class Case:
    """The contenders of a row, ready to run, and ``check``, which raises if a result is wrong.

    ``calls`` and ``rounds`` are set if calls are slow or cannot be repeated freely, as in
    compiling. ``settle`` waits for the device to finish.
    """

    contenders: Mapping[str, Call]
    check: Callable[[], None]
    calls: int | None = None
    rounds: int | None = None
    settle: Call = lambda: None


@dataclass(frozen=True, slots=True)
class Row:
    """One measurement: ``subject`` is timed and compared with ``baseline``, if there is one.

    With a ``floor``, that contender's time is subtracted from both first. If the unit is bytes,
    contenders return a number of bytes and nothing is timed. A row is left out if the package that
    it ``needs`` is missing. ``threads`` is for torch and for kernels on the CPU. ``interpreted``
    rows also run in Triton's interpreter. ``seconds`` is roughly how long the row takes on two
    cores, for the estimate of the time left.
    """

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
    seconds: float = 5.0
