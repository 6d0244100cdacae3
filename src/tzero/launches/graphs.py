"""Hot launches as CUDA graphs: what native code is given for them, and what it says of them.

    settings, watchers ──► native/hot.cpp ──► "5 launches are one CUDA graph" ──► an event

Enters: the native module. Leaves: events. It must not know when a launch is hot, nor how a graph is
made.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

from tzero import events, settings
from tzero.adapters import torch_profilers

__all__ = ["configure", "watched_by"]

_MAPPED = Path("/proc/self/maps")
_TOOLS = {
    "libsanitizer-collection": "compute-sanitizer is attached",
    "libcudadebugger": "cuda-gdb is attached",
}
"""Libraries of tools that see or stop at each launch, in a process that they look at."""


def watched_by() -> str:
    """What watches each launch of this process, from its start; empty for nothing.

    >>> watched_by()
    ''
    """
    found = settings.launches_watched_by()
    if found or not _MAPPED.exists():
        return found
    mapped = _MAPPED.read_text(errors="replace")
    return next((what for name, what in _TOOLS.items() if name in mapped), "")


def configure(native: ModuleType) -> None:
    """Give native code what it needs to decide which launches become graphs."""
    native.configure_graphs(
        settings=vars(settings._held),
        watched=watched_by(),
        tell=_tell,
        modules=sys.modules,
        profilers=torch_profilers.switches(),
    )


def _tell(kernel: str, what: str) -> None:
    events.emit(events.Event("graph", kernel, what))
