"""A fleet that starts with nothing compiled, simulated: what its store has to do, and how long.

Enters: how many nodes, kernels, and how long things take. Leaves: requests, bytes and seconds. It
follows the protocol of `tzero.cache.claims` with its own pauses, one asking process a node (the
others wait on the node's disk), ``precompile(shard=True)``, and a store that answers one request
after another.

::

    node ── look, read, swap, look ── compile ── send, swap ─► next kernel
       └─── look, read: theirs ── read, later and later ── free: fetch ─► next kernel
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections import Counter
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

from tzero.cache.claims import paused

__all__ = ["FLEETS", "MORE", "Plan", "run"]

SIZE = 200_000
"""Bytes of a compiled kernel."""
BYTES_A_SECOND = 1.25e9
"""What the network at the store carries: 10 Gbit/s."""
TRIP = 0.0005
"""Seconds from a node to the store and back."""
SPREAD = 0.5
"""Seconds within which the nodes start."""
MORE = {"c10d": (2, 1), "redis": (0, 0)}
"""Requests besides that for the bytes, when an entry is fetched and when it is sent: c10d stores
have a head and chunks, whose presence is checked first."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A fleet: nodes with workers each, and kernels that all of them need."""

    nodes: int
    kernels: int
    compile: float
    workers: int = 16


FLEETS = (
    Plan(10, 40, 2.0),
    Plan(100, 40, 2.0),
    Plan(1000, 40, 2.0),
    Plan(1000, 400, 2.0),
    Plan(1000, 40, 30.0),
)


Step = tuple[str, float]
"""What a process does next: ``ask`` the store for that many bytes, or ``sleep`` for seconds."""


class _Fleet:
    """The state that all processes see, and the loop that runs them."""

    def __init__(self, plan: Plan, seconds: float, store: str, seed: int) -> None:
        self.plan = plan
        self._fetch, self._send = ([0] * count + [SIZE] for count in MORE[store])
        self.claimed: set[int] = set()
        self.made: set[int] = set()
        self.requests: Counter[int] = Counter()  # by the second
        self.bytes = 0.0
        self.now = 0.0
        self._seconds = seconds
        self._free = 0.0  # when the store has answered all that has arrived
        self._order = itertools.count()
        self._events: list[tuple[float, int, Generator[Step, None, None], float | None]] = []
        chance = random.Random(seed)
        for number in range(plan.nodes):
            queue, waiting = _shares(number, plan), [0]
            for _ in range(plan.workers):
                self.start(self._worker(queue, waiting), chance.random() * SPREAD)

    def start(self, process: Generator[Step, None, None], after: float = 0.0) -> None:
        self._at(self.now + after, process)

    def _at(
        self, time: float, process: Generator[Step, None, None], size: float | None = None
    ) -> None:
        """Go on with a process at a time; with a size, its request arrives at the store then."""
        heapq.heappush(self._events, (time, next(self._order), process, size))

    def run(self) -> None:
        while self._events:
            self.now, _, process, size = heapq.heappop(self._events)
            if size is not None:
                self._free = max(self.now, self._free) + self._seconds + size / BYTES_A_SECOND
                self.requests[int(self.now)] += 1
                self.bytes += size
                self._at(self._free + TRIP / 2, process)
                continue
            step = next(process, None)
            if step is not None and step[0] == "ask":
                self._at(self.now + TRIP / 2, process, step[1])
            elif step is not None:
                self._at(self.now + step[1], process)

    def _worker(self, queue: list[int], waiting: list[int]) -> Generator[Step, None, None]:
        while queue:
            kernel = queue.pop(0)
            if kernel in self.made:
                yield from (("ask", size) for size in self._fetch)
                continue
            yield "ask", 0  # look
            yield "ask", 0  # read the mark
            if kernel in self.claimed:
                self.start(self._waiter(kernel, waiting))
                continue
            self.claimed.add(kernel)
            yield "ask", 0  # swap
            yield "ask", 0  # look again
            yield "sleep", self.plan.compile
            yield from (("ask", size) for size in self._send)
            yield "ask", 0  # release
            self.made.add(kernel)

    def _waiter(self, kernel: int, waiting: list[int]) -> Generator[Step, None, None]:
        begun = self.now
        waiting[0] += 1
        while kernel not in self.made:
            yield "sleep", paused(self.now - begun, waiting[0], is_local=False)
            yield "ask", 0  # read the mark
        waiting[0] -= 1
        yield from (("ask", size) for size in self._fetch)


def run(plan: Plan, seconds: float, store: str = "redis", seed: int = 0) -> dict[str, Any]:
    """Simulate a start; ``seconds`` is what a request takes at the store."""
    fleet = _Fleet(plan, seconds, store, seed)
    fleet.run()
    assert len(fleet.made) == plan.kernels
    rounds = -(-plan.kernels // plan.workers)
    return {
        "nodes": plan.nodes,
        "kernels": plan.kernels,
        "compile": plan.compile,
        "compiles": len(fleet.claimed),
        "requests": sum(fleet.requests.values()),
        "peak": max(fleet.requests.values()),
        "bytes": fleet.bytes,
        "warm": round(fleet.now, 2),
        "alone": rounds * plan.compile,
    }


def _shares(number: int, plan: Plan) -> list[int]:
    """The kernels in the order of a node: its share first, then those of the next nodes."""
    first = number * plan.kernels // plan.nodes
    return [(first + k) % plan.kernels for k in range(plan.kernels)]
