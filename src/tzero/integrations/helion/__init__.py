"""Helion kernels, called through tzero: one of them, or all.

Enters: a `helion.Kernel` (`wrap`), or all of them (`install`). Leaves: kernels with the same
results, whose calls tzero makes; Helion still compiles and tunes. It must not know how calls are
made, which is in `calls`, nor Helion's private parts, which are in `compat`.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ParamSpec, TypeVar, cast

import torch

from tzero import events, locks, settings
from tzero.arguments.key import Key
from tzero.calls.kernel import Kernel
from tzero.calls.reports import Explanation, Stats
from tzero.counts import Count
from tzero.errors import InvalidKernel
from tzero.integrations.helion import calls, compat
from tzero.integrations.helion.remote_cache import remote_cache_class
from tzero.launches.tiers import tier
from tzero.versions import require

__all__ = ["install", "installed", "is_kernel", "uninstall", "wrap"]


def __getattr__(name: str) -> Any:
    """`RemoteCache`, for ``HELION_REMOTE_CACHE_BACKEND=tzero.helion.RemoteCache``; made when asked
    for, because it is a subclass of Helion's."""
    if name == "RemoteCache":
        return remote_cache_class()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


_TWIN = "_tzero_twin"
"""While installed: the attribute of a Helion kernel that holds tzero's kernel for it, its twin."""

_original: Any = None
"""While installed: Helion's own `Kernel.__call__`."""

_known: weakref.WeakSet[Any] = weakref.WeakSet()
"""Helion kernels that have a twin."""

_change = locks.lock()  # protects `_original` and `_known`


P = ParamSpec("P")
R = TypeVar("R")


def is_kernel(value: object) -> bool:
    """Whether a value is a Helion kernel; does not import Helion.

    >>> is_kernel(print)
    False
    """
    return compat.is_kernel(value)


def wrap(kernel: Callable[P, R], *, pool: bool | None = None) -> Kernel[P, R]:
    """Wrap a Helion kernel in a tzero kernel; `tzero.kernel` calls this.

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

    The Helion kernel is not changed, and is the attribute `helion` of the result. With
    ``pool=True`` output tensors that nothing refers to are reused.
    """
    require("helion")
    pooled = settings.current().output_pool if pool is None else pool
    made: Any = calls.make(kernel, functools.partial(_call_plainly, kernel), pooled)
    return cast("Kernel[P, R]", made)


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
    """Call every Helion kernel through tzero from now on, existing kernels included.

    ::

        import tzero
        tzero.helion.install()
        add(x, y)  # a @helion.kernel

    Meanwhile each Helion kernel has `explain` and `stats`, as tzero's kernels have::

        print(add.explain(x, y))
        print(add.stats())

    Helion still makes the calls of kernels on backends other than Triton, in reference mode, of
    distributed kernels, and under torch.compile. Without tzero's native extension it makes all
    calls, with an event, because a replay in Python takes longer than Helion's own call. A second
    `install` does nothing.
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
            if twin is None or twin.helion is not self:  # a copied kernel has its original's twin
                twin = _twin_of(self)
            return twin(*args, **kwargs)

        _original, kind.__call__ = original, call
        for name, method in _ADDED.items():
            if name not in dir(kind):  # Helion's own come first
                setattr(kind, name, method)


def _explain(self: Any, /, *args: Any, **kwargs: Any) -> Explanation:
    """How tzero would make a call of this Helion kernel, and why."""
    explained: Explanation = _twin_of(self).explain(*args, **kwargs)
    return explained


def _stats(self: Any, /) -> Stats:
    """How calls of this Helion kernel were made since `tzero.helion.install`."""
    counted: Stats = _twin_of(self).stats()
    return counted


_ADDED = {"explain": _explain, "stats": _stats}
"""The methods that Helion kernels have while installed."""


def _twin_of(kernel: Any) -> Any:
    """The twin of a Helion kernel, made and stored if there is none. It is Helion's own call if
    tzero does not support the kernel, is disabled, or was uninstalled meanwhile."""
    why = ""
    with _change:
        twin = kernel.__dict__.get(_TWIN)
        if twin is not None and twin.helion is kernel:
            return twin
        if _original is None:
            return _Plain(kernel, "tzero.helion is not installed")
        chosen = tier()
        if chosen == 1:
            why = "a replay in Python (tier 1) takes longer than Helion's own call"
        try:
            twin = wrap(kernel) if chosen > 1 else _Plain(kernel, why or "tzero is at tier 0")
        except InvalidKernel as error:  # a signature that tzero does not support
            why = error.problem
            twin = _Plain(kernel, why)
        kernel.__dict__[_TWIN] = twin
        _known.add(kernel)
    if why:  # observers are not called under the lock: they may call kernels
        events.emit(events.Event("fallback", kernel.name, f"left to Helion: {why}"))
    return twin


@dataclass(frozen=True, slots=True)
class _Plain:
    """The twin of a kernel whose calls Helion makes, and why."""

    helion: Any
    why: str
    calls: Count = field(default_factory=Count)

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        self.calls.add()
        return _call_plainly(self.helion, *args, **kwargs)

    def explain(self, /, *args: Any, **kwargs: Any) -> Explanation:
        """That Helion makes the call, whatever the arguments."""
        refusal = f"left to Helion: {self.why}"
        return Explanation(self.helion.name, Key(()), False, None, "", tier(), refusal=refusal)

    def stats(self) -> Stats:
        """How many calls Helion made."""
        calls = self.calls.value()
        return Stats(calls, 0, 0, 0, 0, plain_calls=calls, unkeyed=calls)


def uninstall() -> None:
    """Undo `install`. Kernels that `tzero.kernel` made are not changed. A second `uninstall` does
    nothing.

    ::

        tzero.helion.uninstall()
    """
    global _original
    with _change:
        if _original is None:
            return
        kind = compat.kernel_class()
        kind.__call__ = _original
        for name, method in _ADDED.items():
            if vars(kind).get(name) is method:
                delattr(kind, name)
        _original = None
        for kernel in _known:
            kernel.__dict__.pop(_TWIN, None)
            compat.forget_epoch(kernel)
        _known.clear()
