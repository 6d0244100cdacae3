"""Hot launches as CUDA graphs: what native code is given for them, and what it says of them.

    settings, watchers ──► native/hot.cpp ──► "5 launches are one CUDA graph" ──► an event
                                 └─► the state of each run of launches ──► a `Run`

Enters: the native module. Leaves: events, and values that print. It must not know when a launch is
hot, nor how a graph is made.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from types import ModuleType
from typing import Any, NamedTuple

from tzero import events, settings
from tzero.adapters import torch_profilers
from tzero.shown import counted

__all__ = ["Launched", "Run", "configure", "runs"]


class Run(NamedTuple):
    """Launches, fills and copies on CUDA that are made one after another, by a plan or by
    `tzero.jit`, and the CUDA graphs they became. `work` is how many there are, `copies` how many of
    these are copies. `calls` were made without a graph
    since there was one; `ended` is why there will be none, or empty. `graphs`, one for each stream,
    take `bytes` of device memory as far as that is known. They were launched `launches` times, and
    in all of these together the parameters of `settings` of them were set, the others being
    unchanged. `plainly` is how often launches were made one by one in spite of a graph, by
    reason. `lost` is why a graph was dropped or could not be made, or empty; it is tried again
    after `again` more calls.

    >>> print(Run("add", 5, 0, "", 1, 123_392, 100, 200, {"capturing": 1}))
    a CUDA graph of 5: launched 100 times, 2.0 of 5 set each time, 120 KiB; plain 1 time (capturing)
    >>> print(Run("add", 5, 6, "", 0, 0, 0, 0, {}, copies=2))
    no CUDA graph of 5 (2 copies) yet: 6 calls
    >>> print(Run("add", 5, 6, "", 0, 0, 100, 200, {}, "others were used later", 250))
    no CUDA graph of 5: others were used later; tried again after 250 more calls
    """

    kernel: str
    work: int
    calls: int
    ended: str
    graphs: int
    bytes: int
    launches: int
    settings: int
    plainly: Mapping[str, int]
    lost: str = ""
    again: int = 0
    copies: int = 0

    @property
    def waits(self) -> bool:
        """Whether it was not called often enough yet for a graph.

        >>> Run("add", 5, 6, "", 0, 0, 0, 0, {}).waits
        True
        """
        return not (self.graphs or self.ended or self.lost)

    def __str__(self) -> str:
        plainly = [f"{counted(n, 'time', 'times')} ({why})" for why, n in self.plainly.items() if n]
        return "; ".join([*self._state(), *([f"plain {', '.join(plainly)}"] if plainly else [])])

    def _state(self) -> list[str]:
        copies = f" ({counted(self.copies, 'copy', 'copies')})" if self.copies else ""
        work = f"{self.work}{copies}"
        if self.ended:
            return [f"no CUDA graph of {work}: {self.ended}"]
        again = f"tried again after {counted(self.again, 'more call', 'more calls')}"
        if not self.graphs and self.lost:
            return [f"no CUDA graph of {work}: {self.lost}", again]
        if not self.graphs:
            return [f"no CUDA graph of {work} yet: {counted(self.calls, 'call', 'calls')}"]
        each = self.settings / max(self.launches, 1)
        streams = f" on {self.graphs} streams" if self.graphs > 1 else ""
        times = counted(self.launches, "time", "times")
        has = (
            f"a CUDA graph of {work}{streams}: launched {times}, "
            f"{each:.1f} of {self.work} set each time, {self.bytes / 1024:.0f} KiB"
        )
        return [has, *([f"none on another stream: {self.lost}", again] if self.lost else [])]


class Launched(NamedTuple):
    """How a kernel of `tzero.jit` is launched on CUDA: `runs` has one launch of each binary, and
    the CUDA graph that it became. `refusals` is why launches are made in Python, if some are.

    >>> print(Launched("add", (Run("add", 1, 3, "", 0, 0, 0, 0, {}),)))
    add: 1 binary launched on CUDA
      no CUDA graph of 1 yet: 3 calls
    """

    kernel: str
    runs: tuple[Run, ...]
    refusals: tuple[str, ...] = ()

    def __str__(self) -> str:
        binaries = counted(len(self.runs), "binary", "binaries")
        lines = [
            f"{self.kernel}: {binaries} launched on CUDA",
            *self.refusals,
            *map(str, self.runs),
        ]
        return "\n  ".join(lines)


def runs(native: ModuleType, said: Iterable[tuple[Any, ...]]) -> tuple[Run, ...]:
    """What native code says of runs; of each, why nothing becomes a graph now, if that is so."""
    why_not: str = native.graphs()[4]
    found = (Run(*each) for each in said)
    return tuple(each._replace(ended=each.ended or why_not) for each in found)


def configure(native: ModuleType) -> None:
    """Give native code what it needs to decide which launches become graphs."""
    native.configure_graphs(
        settings=vars(settings._held),
        watched=settings.launches_watched_by,  # CUDA reads the variables when it starts
        tell=_tell,
        modules=sys.modules,
        profilers=torch_profilers.switches(),
    )


def _tell(kernel: str, what: str) -> None:
    events.emit(events.Event("graph", kernel, what))
