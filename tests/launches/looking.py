"""What a row looks at and leans on: warm kernels, what a binary assumes, a world put back.

Enters: kernels and calls. Leaves: answers that hold for all tiers. Only `warm` knows who
launches: it demands of tzero that the fast path is in use before a row changes a fact.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import triton
from triton import knobs
from triton.runtime.driver import driver

import tzero
from tests.launches import kernels
from tzero import events
from tzero.launches.python import PythonJit

VERSION = tuple(int(part) for part in triton.__version__.split(".")[:2])


class NotWarm(Exception):
    """The fast path was not in use when a row wanted it to be; no proof of any guard."""


def warm(kernel: Any, call: Callable[[], Any], times: int = 3) -> Any:
    """Make a call until the fast path has it, and return what the last one returned."""
    for _ in range(times - 1):
        call()
    if is_installed(kernel):
        return _natively(kernel, call)
    result, kinds = watched(kernel, call)
    if is_fast(kernel) and kinds != ["launch"]:
        raise NotWarm(f"{kernel.__name__}: the last call before the change gave {kinds}")
    return result


def is_installed(kernel: Any) -> bool:
    """Whether `tzero.install` launches this kernel, which is Triton's own."""
    return type(kernel) is triton.JITFunction and tzero.installed().packages is not None


def launched(kernel: Any) -> Any:
    """How `tzero.install` has launched a kernel so far."""
    from tzero.launches import counted

    return next(each for each in counted.launched() if each.kernel is kernel)


def _natively(kernel: Any, call: Callable[[], Any]) -> Any:
    # Not observed: Triton makes launches that an observer of tzero sees.
    before = launched(kernel)
    result = call()
    after = launched(kernel)
    is_left = any(why and count > before.left.get(why, 0) for why, count in after.left.items())
    if after.launches != before.launches + 1 or not (is_left or after.native > before.native):
        raise NotWarm(f"{kernel.__name__}: {before} was followed by {after}")
    return result


def watched(kernel: Any, call: Callable[[], Any]) -> tuple[Any, list[str]]:
    """What a call returns, and the kinds of its kernel's events."""
    seen: list[events.Event] = []
    with events.observe(seen.append):
        result = call()
    return result, [event.kind for event in seen if event.kernel == kernel.__name__]


def is_fast(kernel: Any) -> bool:
    """Whether tzero launches this kernel."""
    return isinstance(kernel, PythonJit)


def assumes_16(binary: Any, index: int) -> bool:
    """Whether a compiled kernel takes 16 to divide its argument, or the argument's address."""
    return ["tt.divisibility", 16] in binary.src.attrs.get((index,), [])


def kind_of(binary: Any, name: str) -> Any:
    """The type a compiled kernel has for a parameter; "constexpr" if it is compiled in."""
    return binary.src.signature[name]


_CHAINS = ("launch_enter_hook", "launch_exit_hook", "kernel_load_start_hook")


@contextmanager
def restored() -> Iterator[None]:
    """Put back what rows change: knobs and hooks, the active driver, the kernels' globals."""
    chains = [getattr(knobs.runtime, name) for name in _CHAINS]
    calls = [list(chain.calls) for chain in chains]
    names = dict(vars(kernels))
    active = driver.active
    try:
        with knobs.runtime.scope(), knobs.compilation.scope():
            yield
    finally:
        driver.set_active(active)
        for chain, before in zip(chains, calls, strict=True):
            chain.calls[:] = before
        vars(kernels).clear()
        vars(kernels).update(names)
