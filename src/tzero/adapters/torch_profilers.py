"""Adapts torch's profilers: whether one looks at a thread, read without a lock.

Enters: a build of the native module. Leaves: that module, which opens a range for each call and
launch while a profiler looks; or the reason why it cannot. It must not know calls.

Native code reads the callbacks that a profiler adds to a thread, and the state that one for all
threads has. Both are compared here with what torch does in Python. On a torch where one is missing
or differs, `configure` returns a reason, and profilers do not show ranges of tzero.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch
from torch._C import _autograd, _profiler

__all__ = ["configure", "switches"]


def configure(native: ModuleType) -> str:
    """Have native code open ranges while a profiler looks; why it cannot, or an empty string. Call
    it in a thread that no profiler looks at."""
    missing = native.open_profilers()
    if missing:
        return f"this torch does not have {missing}"
    asked = ("_enable_profiler_legacy", "_disable_profiler_legacy")
    names = ("ProfilerConfig", "ProfilerState", "_ExperimentalConfig", "_RecordFunctionFast")
    for module, each in [*((_autograd, name) for name in asked), *((_profiler, n) for n in names)]:
        if not hasattr(module, each):
            return f"this torch does not have {module.__name__}.{each}"
    if not _agree(native):
        return "native code reads wrongly whether a profiler looks at a thread"
    native.configure_profilers(_profiler._RecordFunctionFast)
    return ""


def switches() -> dict[str, Any] | None:
    """The names of the module that says, by `_is_profiler_enabled`, whether a profiler is on in any
    thread; None in a torch that does not say. A profiler of the GPU alone has no callbacks."""
    names = vars(torch.autograd.profiler)
    return names if isinstance(names.get("_is_profiler_enabled"), bool) else None


def _agree(native: ModuleType) -> bool:
    """Whether native code sees that a profiler begins and ends in this thread."""
    kinds: Any = _profiler
    seen = [(_looks_here(native), torch._C._autograd._profiler_enabled())]
    config = kinds.ProfilerConfig(
        kinds.ProfilerState.CPU, False, False, False, False, False, kinds._ExperimentalConfig()
    )
    _autograd._enable_profiler_legacy(config)
    try:
        seen.append((_looks_here(native), torch._C._autograd._profiler_enabled()))
    finally:
        _autograd._disable_profiler_legacy()
    seen.append((_looks_here(native), torch._C._autograd._profiler_enabled()))
    return seen == [(False, False), (True, True), (False, False)]


def _looks_here(native: ModuleType) -> bool:
    here: bool = native.profilers_look()[0]
    return here
