"""Programs that run in their own process, because they start workers by fork and by spawn.

Enters: how workers start, and a tier, on the command line. Leaves: an exit code, and a message if
it is not 0. Everything that workers need is at module level, because a spawned worker imports it.
"""

from __future__ import annotations

import sys
import threading
from typing import Any

import torch
import torch.multiprocessing as mp
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

from tests.integrations.torch import hosts
from tests.plans.tiers import counted, verifying

ITEMS = 12


def kernel(tier: int) -> Any:
    return hosts.made(tier)


class Scaled(Dataset[torch.Tensor]):
    """Items that a kernel computes in the worker; a kernel is an attribute."""

    def __init__(self, tier: int) -> None:
        self.tier = tier
        self.doubled = hosts.doubled

    def __len__(self) -> int:
        return ITEMS

    def __getitem__(self, k: int) -> torch.Tensor:
        assert get_worker_info() is not None
        found: torch.Tensor = kernel(self.tier).scaled(torch.full((4,), float(k)), 3.0)
        return self.doubled(found)


class Streamed(IterableDataset[torch.Tensor]):
    def __init__(self, tier: int) -> None:
        self.tier = tier

    def __iter__(self) -> Any:
        worker = get_worker_info()
        for k in range(worker.id, ITEMS, worker.num_workers):
            yield kernel(self.tier).scaled(torch.full((4,), float(k)), 6.0)


def collate(items: list[torch.Tensor]) -> torch.Tensor:
    """Sums a batch with a kernel in the worker."""
    total = torch.zeros(4)
    for each in items:
        total = hosts.made(2 if _native() else 1).summed(total, each)
    return total


def _native() -> bool:
    try:
        hosts.made(2)
    except ImportError:
        return False
    return True


def load(method: str, tier: int) -> None:
    """Batches that workers make and this process reads. Spawning takes seconds, so there are fewer
    spawned workers."""
    expected = sum(6.0 * k for k in range(ITEMS))
    for dataset in (Scaled(tier), Streamed(tier))[: 2 if method == "fork" else 1]:
        loader = DataLoader(
            dataset,
            batch_size=3,
            num_workers=2 if method == "fork" else 1,
            collate_fn=collate,
            multiprocessing_context=method,
            persistent_workers=True,
        )
        for _ in range(2):
            found = sum(kernel(tier).scaled(batch, 1.0) for batch in loader)
            assert found.tolist() == [expected] * 4, found


def write(method: str, tier: int, shared: torch.Tensor, row: int, done: Any) -> None:
    grown = kernel(tier).grown
    with counted(hosts.grown) as runs:
        for _ in range(3):
            grown(shared[row])
    if method == "fork" and not verifying():
        assert runs == [0], "a fork goes on with the plans of its parent"
    done.put((row, hosts.doubled(shared[row]).tolist()))


def share(method: str, tier: int) -> None:
    """Workers write to one tensor by launches, and send back their own."""
    context = mp.get_context(method)
    shared = torch.ones(2, 4).share_memory_()
    done = context.Queue()
    rows = (0, 1) if method == "fork" else (0,)
    workers = [
        context.Process(target=write, args=(method, tier, shared, row, done)) for row in rows
    ]
    for worker in workers:
        worker.start()
    for _ in workers:
        row, twice = done.get(timeout=60)
        assert twice == [16.0] * 4, (row, twice)
    for worker in workers:
        worker.join(60)
        assert worker.exitcode == 0
    for row in rows:
        assert shared[row].tolist() == [8.0] * 4
        kernel(tier).grown(shared[row])
        assert shared[row].tolist() == [16.0] * 4


def share_beside_threads(method: str, tier: int) -> None:
    """The same, while other threads launch as the processes start."""
    stop = threading.Event()

    def launch() -> None:
        while not stop.is_set():
            kernel(tier).scaled(torch.ones(70), 2.0)

    threads = [threading.Thread(target=launch) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        share(method, tier)
    finally:
        stop.set()
        for thread in threads:
            thread.join()


if __name__ == "__main__":
    # Imported by name, so that spawned workers find the same objects.
    from tests.integrations.torch import programs

    how, number = sys.argv[1], int(sys.argv[2])
    kernel(number)  # before a fork, kernels have been called
    programs.load(how, number)
    (programs.share_beside_threads if how == "fork" else programs.share)(how, number)
