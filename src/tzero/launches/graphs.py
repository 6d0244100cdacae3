"""Hot launches as CUDA graphs: what native code is given for them, and what it says of them.

    settings, watchers ──► native/hot.cpp ──► "5 launches are one CUDA graph" ──► an event
                                 └─► the state of each run of launches ──► a `Run`

Enters: the native module. Leaves: events, and values that print. It must not know when a launch is
hot, nor how a graph is made.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from types import ModuleType
from typing import NamedTuple

from tzero import events, settings
from tzero.adapters import torch_profilers
from tzero.shown import counted

__all__ = ["Run", "configure"]


class Run(NamedTuple):
    """Launches and fills on CUDA that are made one after another, by a plan or by `tzero.jit`, and
    the CUDA graphs they became. `work` is how many there are. `calls` were made without a graph
    since there was one; `ended` is why there will be none, or empty. `graphs`, one for each stream,
    take `bytes` of device memory as far as that is known. They were launched `launches` times, and
    in all of these together the parameters of `settings` launches and fills were set, the others
    being unchanged. `plainly` is how often launches were made one by one in spite of a graph, by
    reason. `lost` is why a graph was dropped or could not be made, or empty; it is tried again after
    `again` more calls.

    >>> print(Run("add", 5, 0, "", 1, 123_392, 100, 200, {"capturing": 1}))
    a CUDA graph of 5: launched 100 times, 2.0 of 5 set each time, 120 KiB; plain 1 time (capturing)
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

    def __str__(self) -> str:
        plainly = [f"{counted(n, 'time', 'times')} ({why})" for why, n in self.plainly.items() if n]
        return "; ".join([*self._state(), *([f"plain {', '.join(plainly)}"] if plainly else [])])

    def _state(self) -> list[str]:
        if self.ended:
            return [f"no CUDA graph of {self.work}: {self.ended}"]
        again = f"tried again after {counted(self.again, 'more call', 'more calls')}"
        if not self.graphs and self.lost:
            return [f"no CUDA graph of {self.work}: {self.lost}", again]
        if not self.graphs:
            return [f"no CUDA graph of {self.work} yet: {counted(self.calls, 'call', 'calls')}"]
        each = self.settings / max(self.launches, 1)
        streams = f" on {self.graphs} streams" if self.graphs > 1 else ""
        has = (
            f"a CUDA graph of {self.work}{streams}: launched {counted(self.launches, 'time', 'times')}, "
            f"{each:.1f} of {self.work} set each time, {self.bytes / 1024:.0f} KiB"
        )
        return [has, *([f"none on another stream: {self.lost}", again] if self.lost else [])]


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
