"""Helion's kernels, called through tzero: one, or all of them.

Enters: a `helion.Kernel`, by `tzero.kernel`, or every one there is, by `install`. Leaves: the same
results as Helion's, at the cost of tzero's calls: Helion goes on compiling and tuning. It must not
know how calls are made, which is in `helion_calls`, nor Helion's insides, in `helion_compat`.
"""

from __future__ import annotations

import functools
import threading
import weakref
from dataclasses import dataclass
from typing import Any

import torch

from tzero import events, settings
from tzero.calls.kernel import Kernel
from tzero.errors import InvalidKernel
from tzero.integrations.helion import calls, compat
from tzero.launches.tiers import tier
from tzero.versions import require

__all__ = ["install", "installed", "is_kernel", "uninstall", "wrap"]

_TWIN = "_tzero_twin"
"""The attribute of Helion's kernels that holds tzero's kernel over them, while installed."""

_original: Any = None
"""Helion's `Kernel.__call__`, while another one is in its place."""

_known: weakref.WeakSet[Any] = weakref.WeakSet()
"""Helion's kernels that have a twin."""

_change = threading.Lock()  # protects both


def is_kernel(value: object) -> bool:
    """Whether a value is a kernel of Helion's; Helion is not imported to find out.

    >>> is_kernel(print)
    False
    """
    return compat.is_kernel(value)


def wrap(kernel: Any, *, pool: bool | None = None) -> Kernel[Any]:
    """tzero's kernel over one of Helion's; `tzero.kernel` calls this.

    ::

        @tzero.kernel
        @helion.kernel(config=helion.Config(block_sizes=[1024]))
        def add(x, y):
            out = torch.empty_like(x)
            for tile in hl.tile(x.size(0)):
                out[tile] = x[tile] + y[tile]
            return out

        add(x, y)
        add.helion.bind((x, y)).set_config(helion.Config(block_sizes=[512]))

    Helion's kernel stays what it is, and is its attribute `helion`. With ``pool=True`` output
    tensors that nobody holds are used again.
    """
    require("helion")
    pooled = settings.current().output_pool if pool is None else pool
    return calls.make(kernel, functools.partial(_call_plainly, kernel), pooled)


def _call_plainly(kernel: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Helion's own call of a kernel, whether tzero is installed or not."""
    original = _original
    if original is None:
        original = compat.kernel_class().__call__
    return original(kernel, *args, **kwargs)


def installed() -> bool:
    """Whether Helion's kernels are called through tzero.

    >>> installed()
    False
    """
    return _original is not None


def install() -> None:
    """Have every kernel of Helion's called through tzero from now on, those that exist too.

    ::

        import tzero
        tzero.helion.install()
        add(x, y)  # a @helion.kernel

    Kernels of other backends than Triton, in reference mode and distributed ones are Helion's as
    ever, and so is what torch.compile traces. So are all where tzero's native extension is not
    there, with an event: replays in Python take longer than Helion's own calls. Again, it does
    nothing.
    """
    global _original
    require("helion")
    kind = compat.kernel_class()
    with _change:
        if _original is not None:
            return
        original = kind.__call__

        @functools.wraps(original)
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling():
                return original(self, *args, **kwargs)
            twin = self.__dict__.get(_TWIN)
            if twin is None or twin.helion is not self:  # a copy has what its original has
                twin = _twin_of(self)
            return twin(*args, **kwargs)

        _original, kind.__call__ = original, call


def _twin_of(kernel: Any) -> Any:
    """tzero's kernel over one of Helion's, kept with it; Helion's own call, where tzero does not
    take it, is switched off, or not installed any more."""
    why = ""
    with _change:
        twin = kernel.__dict__.get(_TWIN)
        if twin is not None and twin.helion is kernel:
            return twin
        if _original is None:
            return _Plain(kernel)
        twin, chosen = _Plain(kernel), tier()
        if chosen == 1:
            why = "a replay in Python (tier 1) takes longer than Helion's own call"
        try:
            twin = wrap(kernel) if chosen > 1 else twin
        except InvalidKernel as error:  # Helion takes positional-only parameters
            why = error.problem
        kernel.__dict__[_TWIN] = twin
        _known.add(kernel)
    if why:  # observers are not called under the lock: they may call kernels
        events.emit(events.Event("refusal", kernel.name, f"left to Helion: {why}"))
    return twin


@dataclass(frozen=True, slots=True)
class _Plain:
    """A kernel that Helion calls."""

    helion: Any

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        return _call_plainly(self.helion, *args, **kwargs)


def uninstall() -> None:
    """Have Helion's kernels called by Helion again, and leave nothing on them. Kernels that
    `tzero.kernel` made stay what they are. Again, it does nothing.

    ::

        tzero.helion.uninstall()
    """
    global _original
    with _change:
        if _original is None:
            return
        compat.kernel_class().__call__ = _original
        _original = None
        for kernel in _known:
            kernel.__dict__.pop(_TWIN, None)
            compat.forget_epoch(kernel)
        _known.clear()
