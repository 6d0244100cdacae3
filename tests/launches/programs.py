"""Programs that need a process of their own: they fork, spawn, or count what is left behind.

``python -m tests.launches.programs <name> <tier> [...]`` runs one; it exits with 0 if all is well.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import sys
from typing import Any

import torch

from tests import tiers  # before Triton: it chooses the backend
from tests.launches import kernels
from tests.launches.looking import VERSION

SECONDS = 600


def started(tier: int) -> tuple[Any, torch.Tensor]:
    """A warm kernel and its output."""
    import triton

    kernel = tiers.jit_maker(tier)(kernels.fill)
    device = triton.runtime.driver.active.get_active_torch_device()
    out = torch.zeros(33, dtype=torch.int64, device=device)
    for _ in range(4):
        kernel[(1,)](out, 7, 32, BLOCK=32)
    return kernel, out


def check(kernel: Any, out: torch.Tensor) -> None:
    """Launches that are warm, that are new, and that are refused."""
    for offset, value in ((0, 7), (1, 7), (0, 9), (1, 16), (0, 1), (0, 2**40)):
        out.zero_()
        kernel[(1,)](out[offset:], value, 32, BLOCK=32)
        assert out.tolist() == [0] * offset + [value] * 32 + [0] * (1 - offset)
    try:
        kernel[(1,)](out, 7)
    except TypeError as error:
        assert "missing 2 required positional arguments" in str(error)
    else:
        raise AssertionError("arguments were missing, and nobody said so")


def fork(tier: int) -> None:
    """Children launch what their parent has warmed up, at any depth; the parent goes on."""
    kernel, out = started(tier)
    for _ in range(3):
        child = os.fork()
        if child == 0:
            signal.alarm(SECONDS)
            check(kernel, out)
            grandchild = os.fork()
            if grandchild == 0:
                check(kernel, out)
                os._exit(0)
            os._exit(os.waitpid(grandchild, 0)[1])
        check(kernel, out)
        assert os.waitpid(child, 0)[1] == 0


def in_the_spawned(tier: int) -> None:
    check(*started(tier))


def spawn(tier: int) -> None:
    """A process that is started afresh launches too."""
    check(*started(tier))
    child = multiprocessing.get_context("spawn").Process(target=in_the_spawned, args=(tier,))
    child.start()
    child.join(SECONDS)
    assert child.exitcode == 0, child.exitcode


# -- what is left behind -------------------------------------------------------------------------


def resident() -> int:
    """Bytes of memory that this process has in use."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Round:
    """Launches of every kind, again and again."""

    def __init__(self, tier: int) -> None:
        self.kernel, self.out = started(tier)
        self.rest = self.out[1:]
        self.value = 123_456_789
        self.grid = lambda meta: (1,)

    def launch(self, times: int) -> None:
        kernel, out, rest, value, grid = self.kernel, self.out, self.rest, self.value, self.grid
        for k in range(times // 10):
            for _ in range(5):
                kernel[(1,)](out, value, 32, BLOCK=32)
            kernel[(1,)](rest, value, 32, BLOCK=32)
            kernel[grid](out, n=32, value=value, BLOCK=32)
            kernel[(1,)](out, 2.5, 32, BLOCK=32, num_warps=2)
            kernel[(1 + k % 3, 1, 1, k)](out, value, 32, BLOCK=32)  # a tuple never seen before
            try:
                kernel[(1,)](out, value, 32, BLOCK=32, unknown=k % 7)
            except KeyError:
                pass
            else:
                raise AssertionError("an unknown keyword was taken")

    def counts(self) -> tuple[int, ...]:
        """References to everything that goes into a launch, and how many objects there are."""
        gc.collect()
        held = (self.out, self.rest, self.value, self.grid, self.kernel)
        return (*map(sys.getrefcount, held), len(gc.get_objects()))


def leak(tier: int, times: int) -> None:
    """Many launches leave nothing behind: no references, no objects, no memory."""
    rounds = Round(tier)
    rounds.launch(max(20_000, times // 10))
    before, memory = rounds.counts(), resident()
    rounds.launch(times)
    after, grown = rounds.counts(), resident() - memory
    *references, kernel, objects = (b - a for a, b in zip(before, after, strict=True))
    assert references == [0] * len(references), references
    # A kernel keeps a bounded number of grids; a tenth of the launches had one of their own.
    assert max(abs(kernel), abs(objects)) < times // 20, (kernel, objects)
    # 100,000 launches that lost 24 bytes each, the least an object takes, would be beyond this.
    assert grown < 2 << 20, grown


def kernels_go(tier: int, times: int) -> None:
    """Thousands of kernels, launched and put away, leave nothing behind."""
    make = tiers.jit_maker(tier)
    _, out = started(tier)

    def some(count: int) -> None:
        for _ in range(count):
            kernel = make(kernels.put)
            kernel[(1,)](out, 7)
            kernel[(1,)](out, 9)
        gc.collect()

    some(times // 4)
    before, memory = len(gc.get_objects()), resident()
    some(times)
    assert len(gc.get_objects()) - before < 500
    if VERSION >= (3, 9):  # older Tritons do not unload what they loaded
        # The first hundreds of kernels still fill pools of memory, whoever made them.
        assert resident() - memory < (2 << 20) + 1000 * times, (resident() - memory) / times


PROGRAMS = {each.__name__: each for each in (fork, spawn, leak, kernels_go)}

if __name__ == "__main__":
    PROGRAMS[sys.argv[1]](*map(int, sys.argv[2:]))
