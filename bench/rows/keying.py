"""What finding a bound kernel costs: reading the arguments and the table lookup.

Compared with Helion's `_base_specialization_key` and `bind`, in the same process and on the same
tensors. Nothing is launched.
"""

from __future__ import annotations

import functools
import gc
import tracemalloc
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import tzero
from bench.kernels import add2
from bench.measure import Loop, calls_of
from bench.record import Target
from bench.rows.row import Case, Row
from tzero import settings

__all__ = ["ROWS"]

N = 4096
MANY = 10_000


def _host(x: Tensor, y: Tensor) -> Tensor:
    return x


def _host8(a: Tensor, b: Tensor, c: Tensor, d: Tensor, e: Tensor, f: Tensor, g: Tensor,
           h: Tensor) -> Tensor:  # fmt: skip
    return a


def _host16(a: Tensor, b: Tensor, c: Tensor, d: Tensor, e: Tensor, f: Tensor, g: Tensor,
            h: Tensor, a2: Tensor, b2: Tensor, c2: Tensor, d2: Tensor, e2: Tensor, f2: Tensor,
            g2: Tensor, h2: Tensor) -> Tensor:  # fmt: skip
    return a


_HOSTS = {2: _host, 8: _host8, 16: _host16}


def _pair(count: int) -> tuple[tzero.Kernel[Tensor], Any, tuple[Tensor, ...]]:
    """A tzero kernel and a Helion kernel, both bound, and their arguments."""
    from bench.helion_kernels import SUMS

    inputs = tuple(torch.randn(N) for _ in range(count))
    ours, theirs = tzero.kernel(_HOSTS[count]), SUMS[count]
    ours.bind(*inputs)
    theirs.bind(inputs)
    return ours, theirs, inputs


def _extract(count: int) -> Case:
    ours, theirs, inputs = _pair(count)

    def check() -> None:
        changed = (*inputs[:-1], inputs[-1].double())
        assert ours.extract(inputs) == ours.key(*inputs) != ours.extract(changed)

    return Case(
        {
            "tzero": functools.partial(ours.extract, inputs),
            "helion": functools.partial(theirs._base_specialization_key, inputs),
        },
        check,
    )


def _bind(count: int) -> Case:
    ours, theirs, inputs = _pair(count)

    def check() -> None:
        changed = (*inputs[:-1], inputs[-1].double())
        assert ours.bind(*inputs) is ours.bind(*inputs)
        assert ours.bind(*inputs) is not ours.bind(*changed)
        assert theirs.bind(inputs) is theirs.bind(tuple(inputs))

    return Case(
        {
            "tzero": functools.partial(ours.bind, inputs),
            "helion": functools.partial(theirs.bind, inputs),
        },
        check,
    )


def _call(count: int) -> Case:
    inputs = tuple(torch.randn(N) for _ in range(count))
    host = _HOSTS[count]
    kernel = tzero.kernel(host)

    def check() -> None:
        assert kernel(*inputs) is inputs[0]

    return Case(
        {
            "tzero": functools.partial(kernel, *inputs),
            "the function alone": functools.partial(host, *inputs),
        },
        check,
    )


def _filled(entries: int) -> tzero.Kernel[Tensor]:
    kernel = tzero.kernel(_host)
    storage = torch.empty(1)
    y = torch.randn(N)
    with settings.override(max_specializations=MANY + 1):
        for size in range(N, N + entries):
            kernel.bind(storage.expand(size), y)
    return kernel


def _entries() -> Case:
    x, y = torch.empty(1).expand(N), torch.randn(N)
    many, one = _filled(MANY), _filled(1)

    def check() -> None:
        assert many.stats().entries == MANY
        assert one.stats().entries == 1
        many(x, y)
        one(x, y)
        assert many.stats().misses == MANY

    return Case(
        {"10,000": functools.partial(many, x, y), "one": functools.partial(one, x, y)}, check
    )


def _bytes_an_entry() -> float:
    """The Python memory that an entry takes: the mean of 1,000 new ones."""
    kernel = _filled(1)
    storage = torch.empty(1)
    y = torch.randn(N)
    gc.collect()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for size in range(2 * N, 2 * N + 1000):
            kernel.bind(storage.expand(size), y)
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return (after - before) / 1000


def _memory() -> Case:
    def check() -> None:
        assert _bytes_an_entry() > 100

    return Case({"tzero": _bytes_an_entry}, check, rounds=3)


def _measure_off() -> Case:
    """While nothing is recorded, `measure.active()` is all that a hit pays for measuring."""
    x, y = torch.randn(N), torch.randn(N)
    kernel = tzero.kernel(_host)

    def check() -> None:
        with tzero.measure.recording() as record:
            kernel(x, y)
        assert record.count("bind", kernel.name) == 1
        assert tzero.measure.active() is None

    return Case({"the question": tzero.measure.active, "hit": lambda: kernel(x, y)}, check)


def _measure_on() -> Case:
    """A replayed call in an open record, and the same call without one."""
    x, y = torch.randn(N), torch.randn(N)
    kernel = tzero.kernel(add2)
    for _ in range(3):
        kernel(x, y)

    def recorded(times: int) -> None:
        with tzero.measure.recording():
            for _ in range(times):
                kernel(x, y)

    def check() -> None:
        with tzero.measure.recording() as record:
            torch.testing.assert_close(kernel(x, y), x + y)
        assert record.count("run", kernel.name) == 1

    return Case({"recorded": Loop(recorded), "call": calls_of(kernel, [(x, y)])}, check)


def _beside_helion(what: str, title: str, make: Callable[[int], Case], count: int) -> Row:
    return Row(
        f"key.{what}.{count}",
        title.format(count),
        functools.partial(make, count),
        subject="tzero",
        baseline="helion",
        unit="us",
        target=Target("ratio", 0.5),
        interpreted=False,
        needs="helion",
    )


ROWS = (
    *(
        _beside_helion("extract", "Compute the key of {} tensors", _extract, count)
        for count in _HOSTS
    ),
    *(
        _beside_helion("bind", "Find the bound kernel of {} tensors", _bind, count)
        for count in _HOSTS
    ),
    *(
        Row(
            f"key.call.{count}",
            f"Call of an empty host function, {count} tensors",
            functools.partial(_call, count),
            subject="tzero",
            baseline=None,
            unit="us",
            interpreted=False,
        )
        for count in _HOSTS
    ),
    Row(
        "key.entries.10000",
        "Such a call with 10,000 entries cached",
        _entries,
        subject="10,000",
        baseline="one",
        unit="us",
        target=Target("ratio", 1.15),
        interpreted=False,
    ),
    Row(
        "key.measure.off",
        "Cost of tzero.measure while it is off",
        _measure_off,
        subject="the question",
        baseline="hit",
        unit="us",
        target=Target("ratio", 0.05),
        interpreted=False,
    ),
    Row(
        "key.measure.on",
        "A replayed call while tzero.measure records it",
        _measure_on,
        subject="recorded",
        baseline="call",
        unit="us",
        target=Target("ratio", 1.4),
        interpreted=False,
    ),
    Row(
        "key.memory",
        "Memory of a table entry",
        _memory,
        subject="tzero",
        baseline=None,
        unit="bytes",
        target=Target("value", 4096),
        interpreted=False,
    ),
)
