"""Hot launches as CUDA graphs: what native code is given for them, and what it says of them.

    settings, watchers ──► native/hot.cpp ──► "5 launches are one CUDA graph" ──► an event

Enters: the native module. Leaves: events. It must not know when a launch is hot, nor how a graph is
made.
"""

from __future__ import annotations

import sys
from types import ModuleType

from tzero import events, settings
from tzero.adapters import torch_profilers

__all__ = ["configure"]


def configure(native: ModuleType) -> None:
    """Give native code what it needs to decide which launches become graphs."""
    native.configure_graphs(
        settings=vars(settings._held),
        watched=settings.launches_watched_by(),
        tell=_tell,
        modules=sys.modules,
        profilers=torch_profilers.switches(),
    )


def _tell(kernel: str, what: str) -> None:
    events.emit(events.Event("graph", kernel, what))
