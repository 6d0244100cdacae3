"""`AsWritten`: a kernel that runs its host function as written, for where native code is missing.

    call ── one config, no `ConstExpr` ──► the host function, from a generated function
            ├ a `ConstExpr` may be among the arguments ──► unwrapped, then the host function
            └ several configs, or `set_config` was used ──► the stages of `Kernel`, without plans

Enters: calls. Leaves: the results of the host function. It must not know why native code is
missing: `unplanned` says it, for `explain`.

A replay in Python costs more than most host functions, so nothing is recorded. Calls have no keys
either; they emit no events, and are neither counted nor measured. What they launch is launched as
ever.
"""

from __future__ import annotations

import keyword
import weakref
from collections.abc import Callable
from inspect import Parameter
from typing import Any, TypeVar

from tzero.adapters.torch_modes import untraced
from tzero.arguments import extract
from tzero.arguments.extract import unwrapped
from tzero.arguments.host import Host, underlying
from tzero.calls.bound import BoundKernel
from tzero.calls.kernel import Kernel
from tzero.calls.specialize import run_as_written
from tzero.plans.plan import Plan

__all__ = ["AsWritten"]

R = TypeVar("R")


class AsWritten(Kernel[..., R]):
    """A kernel whose calls run the host function.

    ::

        AsWritten(add, reason="the native extension is missing", config=None, ...)
    """

    def __init__(self, function: Callable[..., R], *, reason: str, **options: Any) -> None:
        super().__init__(function, **options)
        self.unplanned = reason
        self._needs_key = self.has_choice
        below = underlying(function)
        if below is not None:
            run_as_written.add(below.__code__)
        # Python looks `__call__` up in the class: so each kernel has one of its own.
        self._written = _written(self.host)
        contents = {"__call__": self._written, "__module__": __name__, "__doc__": self.__doc__}
        self._direct = type("AsWritten", (AsWritten,), contents)
        _all.add(self)
        self._choose_class()

    @untraced
    def __call__(self, /, *args: Any, **kwargs: Any) -> R:
        """Call the host function."""
        if self._needs_key:
            return super().__call__(*args, **kwargs)
        named = dict(zip(kwargs, unwrapped(list(kwargs.values())), strict=True))
        return self._written(self, *unwrapped(args), **named)

    def plans_ended(self, which: BoundKernel[R] | Plan | None, /) -> None:
        """A bound kernel has another config, so that calls need their keys; or all are dropped."""
        self._needs_key = which is not None or self.has_choice
        self._choose_class()

    def _choose_class(self) -> None:
        direct = not self._needs_key and not extract.wrapped
        self.__class__ = self._direct if direct else AsWritten


_STARS = {Parameter.VAR_POSITIONAL: "*", Parameter.VAR_KEYWORD: "**"}


def _written(host: Host[R]) -> Callable[..., R]:
    """A method with the parameters of a host function, which calls it with its config. Generated,
    because ``*args, **kwargs`` costs twice as much; in Python, so that torch.compile traces it."""
    names: dict[str, Any] = {"_tz_call": host.configured(host.function, host.config)}
    taken, given = ["_tz_self"], []
    kinds = list(host.kinds)
    for k, (name, kind) in enumerate(zip(host.parameters, kinds, strict=True)):
        if kind is Parameter.KEYWORD_ONLY and not {"*", Parameter.VAR_POSITIONAL} & {
            *taken,
            *kinds,
        }:
            taken.append("*")
        default = kind not in _STARS and name in host.defaults
        names[f"_tz_{k}"] = host.defaults[name] if default else None
        taken.append(f"{name}=_tz_{k}" if default else name)
        given.append(name.lstrip("*"))
        if kind is Parameter.POSITIONAL_ONLY and kinds[k + 1 : k + 2] != [kind]:
            taken.append("/")
    if Parameter.POSITIONAL_ONLY not in kinds:
        taken.insert(1, "/")
    title = host.name if host.name.isidentifier() and not keyword.iskeyword(host.name) else "call"
    source = f"def {title}({', '.join(taken)}): return _tz_call({', '.join(given)})"
    exec(compile(source, f"<{host.name} as written>", "exec"), names)
    made: Callable[..., R] = untraced(names[title])
    made.__qualname__ = title
    return made


_all: weakref.WeakSet[AsWritten[Any]] = weakref.WeakSet()


def _unwrap_from_now_on() -> None:
    for kernel in list(_all):
        kernel._choose_class()


extract.when_wrapped(_unwrap_from_now_on)
