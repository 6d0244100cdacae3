"""One plan over sizes, replayed by many threads at once, each with sizes of its own."""

from __future__ import annotations

import random
import threading

import pytest
import torch
import triton

from tests.plans.tiers import available, of_tier
from tests.sizes.kernels import BLOCK, copied, increase, note

THREADS, CALLS = 4, 150


def host(x: torch.Tensor, n: int) -> tuple[torch.Tensor, ...]:
    """Operators of torch and launches, which let other threads run in the middle of a call."""
    total = x + 1.0
    out = torch.empty((x.shape[0], x.shape[1] + n))
    out.zero_()
    increase[(triton.cdiv(out.numel(), BLOCK),)](out, n, out.numel(), BLOCK=BLOCK)
    log = torch.zeros(8, dtype=torch.int64)
    note[(x.shape[0], n)](log, x.shape[0], x.shape[1], n)
    return total.sum(0), out, log, copied(x[1:]), x.view(-1)


@pytest.mark.parametrize("options", [{}, {"static_shapes": False}, {"pool": True}])
def test_threads_with_other_sizes_do_not_see_each_other(options: dict[str, bool]) -> None:
    available(2)
    kernel = of_tier(2, host, **options)
    wrong: list[object] = []
    start = threading.Barrier(THREADS)

    def work(seed: int) -> None:
        chance = random.Random(seed)
        start.wait()
        for _ in range(CALLS):
            x = torch.randn(chance.randrange(2, 40), chance.randrange(2, 40))
            n = chance.randrange(2, 9)
            found, expected = kernel(x, n), host(x, n)
            for mine, its in zip(found, expected, strict=True):
                if mine.shape != its.shape or not torch.equal(mine, its):
                    wrong.append((x.shape, n, mine, its))

    for size in (3, 5, 9):
        kernel(torch.randn(size, size + 1), size)
    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(THREADS)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert not wrong, wrong[0]
