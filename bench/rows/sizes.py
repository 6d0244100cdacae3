"""What a call costs whose size was never seen: beside the same size again, and an exact plan.

The size of each call of `new` was never seen by its kernel, though others of its class were. `same`
repeats one size. Both take other tensors in each call. `exact` is a plan for one size alone, with
static_shapes=True. All sizes take the same number of programs. Views are made before a sample is
timed, not in it.
"""

from __future__ import annotations

import ctypes
import functools
import gc
import itertools
import os
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import tzero
from bench import kernels, sized_kernels
from bench.measure import Call, Loop
from bench.record import Target
from bench.rows.row import Case, Row
from tzero import settings

__all__ = ["ROWS"]

COUNTS = (2, 8, 16)
CALLS = 512
"""How many calls a sample has: fewer than the plans that a kernel keeps by default."""

SIZES = range(4 * kernels.LAUNCH_BLOCK + 1, 5 * kernels.LAUNCH_BLOCK + 1)
AGAIN = SIZES[len(SIZES) // 2]
KNOWN = (3072, 3073, 3088, 3089, 3104, 3105)
"""The sizes that a kernel has seen before: multiples of 16, on which Triton specializes, and
others."""

NEW, SAME, CLASS = 1.3, 1.1, 1e-3
MEMORY = 20e6

HOSTS: dict[int, dict[int, Callable[..., Tensor]]] = {
    1: {2: kernels.add2, 8: kernels.add8, 16: kernels.add16},
    5: {2: sized_kernels.five2, 8: sized_kernels.five8, 16: sized_kernels.five16},
}
"""The host functions by their launches and tensors."""


def _kernel(host: Callable[..., Tensor], **options: Any) -> Any:
    with settings.override(tier=2):
        return tzero.kernel(**options)(host)


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def _calls(function: Callable[..., Any], sets: Sequence[Sequence[Any]]) -> None:
    for given in sets:
        function(*given)


class _Sized:
    """A host function's kernels, and tensors of any size for them."""

    def __init__(self, launches: int, count: int, device: str) -> None:
        self.host = HOSTS[launches][count]
        self.device = device
        self.storages = [torch.randn(SIZES[-1], device=device) for _ in range(count)]
        self.again = [self.tensors(AGAIN) for _ in range(CALLS)]
        self.exact = _kernel(self.host, static_shapes=True)
        self.same = self.warm()
        self.new, self.unseen = self.same, self.again
        self.chance = random.Random(0)

    def tensors(self, size: int) -> list[Tensor]:
        return [each[:size] for each in self.storages]

    def warm(self) -> Any:
        """A new kernel that has seen sizes of the class."""
        kernel = _kernel(self.host)
        for size in (*KNOWN, *KNOWN):
            kernel(*self.tensors(size))
        return kernel

    def prepare(self) -> None:
        """Sizes that a new kernel never saw; then some calls that are not timed."""
        self.new = self.warm()
        self.unseen = [self.tensors(size) for size in self.chance.sample(SIZES, CALLS)]
        for kernel in (self.same, self.exact):
            _calls(kernel, self.again)
        _wait(self.device)

    def check(self) -> None:
        self.prepare()
        for kernel in (self.new, self.same, self.exact):
            for tensors in (*self.unseen[:20], *self.again[:3]):
                expected = torch.stack(tensors).sum(0)
                torch.testing.assert_close(kernel(*tensors), expected)


def _case(launches: int, count: int, device: str, only: Sequence[str]) -> Case:
    sized = _Sized(launches, count, device)
    runs: dict[str, Callable[[], None]] = {
        "new": lambda: _calls(sized.new, sized.unseen),
        "same": lambda: _calls(sized.same, sized.again),
        "exact": lambda: _calls(sized.exact, sized.again),
        "triton": lambda: _calls(sized.host, sized.unseen),
    }
    contenders: dict[str, Call] = {name: Loop(_whole(runs[name])) for name in only}
    return Case(contenders, sized.check, calls=CALLS, settle=sized.prepare)


def _whole(run: Callable[[], None]) -> Callable[[int], None]:
    """The calls of a sample, which are prepared: as many as there are."""
    return lambda times: run()


# -- new classes -----------------------------------------------------------------------------------


def _class(device: str) -> Case:
    """The calls that make a class known: its first size, and its second, which is recorded with
    what varied left open. The binaries are compiled before."""
    storage = torch.randn(SIZES[-1], device=device)
    names = (f"class {k}" for k in itertools.count())
    kernel = _kernel(sized_kernels.add_as)
    open_at_once = _kernel(sized_kernels.add_as, static_shapes=False)
    known = [""]

    def call(which: Any, size: int, name: str) -> Tensor:
        found: Tensor = which(storage[:size], storage[:size], name)
        return found

    def prepare() -> None:
        for which in (kernel, open_at_once):
            for size in KNOWN:
                call(which, size, "warm")
        known[0] = next(names)
        call(kernel, KNOWN[0], known[0])
        _wait(device)

    def check() -> None:
        for which in (kernel, open_at_once):
            prepare()
            for size in (*KNOWN, *SIZES[:20]):
                torch.testing.assert_close(call(which, size, known[0]), 2 * storage[:size])

    contenders: dict[str, Call] = {
        "second size": lambda: call(kernel, SIZES[15], known[0]),
        "first size": lambda: call(kernel, SIZES[15], next(names)),
        "static_shapes=False": lambda: call(open_at_once, SIZES[15], next(names)),
    }
    return Case(contenders, check, calls=1, settle=prepare)


# -- memory ----------------------------------------------------------------------------------------


def _resident() -> int:
    """The bytes of this process in memory, without what malloc keeps for later."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def _pairs(count: int) -> Iterator[tuple[int, int]]:
    """Distinct sizes of small matrices."""
    side = 2 + int(count**0.5)
    return itertools.islice(itertools.product(range(2, side + 2), repeat=2), count)


def _memory(sizes: int) -> Case:
    """How much memory a process gains by calls of that many sizes."""
    kernel = _kernel(kernels.add2)
    storage = torch.randn((int(sizes**0.5) + 4) ** 2)

    def call(rows: int, columns: int) -> Tensor:
        x = storage[: rows * columns].view(rows, columns)
        found: Tensor = kernel(x, x)
        return found

    def check() -> None:
        for rows, columns in ((3, 5), (4, 6), (16, 16), (7, 9)) * 2:
            expected = 2 * storage[: rows * columns].view(rows, columns)
            torch.testing.assert_close(call(rows, columns), expected)

    def gained() -> int:
        before = _resident()
        for rows, columns in _pairs(sizes):
            call(rows, columns)
        return _resident() - before

    return Case({"tzero": gained}, check, rounds=1)


def _row(name: str, title: str, make: Callable[[], Case], **facts: Any) -> Row:
    return Row(name, title, make, **{"unit": "us", "interpreted": False, **facts})


def _on(device: str) -> tuple[str, str]:
    return ("cuda.", " on CUDA") if device == "cuda" else ("", "")


def _against(
    what: str, title: str, subject: str, baseline: str, more: tuple[str, ...], at_most: float
) -> Iterator[Row]:
    for device, launches, count in itertools.product(("cpu", "cuda"), HOSTS, COUNTS):
        prefix, suffix = _on(device)
        five = "" if launches == 1 else f" in {launches} launches"
        yield _row(
            f"{prefix}sizes.{what}.{count}{'' if launches == 1 else f'.launches.{launches}'}",
            f"{title}, {count} tensors{five}{suffix}",
            functools.partial(_case, launches, count, device, (subject, baseline, *more)),
            subject=subject,
            baseline=baseline,
            target=Target("ratio", at_most),
            device=device,
            threads=1,
            seconds=10.0,
        )


ROWS = (
    *_against("new", "A size never seen, over one seen", "new", "same", ("triton",), NEW),
    *_against("same", "A size again, over a plan for it", "same", "exact", (), SAME),
    *(
        _row(
            f"{_on(device)[0]}sizes.class",
            f"The call that records a class of sizes{_on(device)[1]}",
            functools.partial(_class, device),
            subject="second size",
            baseline=None,
            target=Target("value", CLASS),
            device=device,
        )
        for device in ("cpu", "cuda")
    ),
    *(
        _row(
            f"sizes.memory.{sizes}",
            f"Memory gained by {sizes:,} sizes",
            functools.partial(_memory, sizes),
            subject="tzero",
            baseline=None,
            unit="bytes",
            target=Target("value", MEMORY),
            seconds=sizes / 1e5,
        )
        for sizes in (10_000, 1_000_000)
    ),
)
