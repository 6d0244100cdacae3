"""Helion's private parts, and what differs between its versions.

Enters: Helion kernels, and the arguments of calls. Leaves: the function that Helion compiled for
them, and guards that check that Helion would call it again. It must not know how calls are recorded
or replayed.

Helion 1.4 and 1.5 are supported. From 1.5 on a kernel counts its resets and late specializations.
In 1.4 a reset clears a dict, so tzero puts a mark into that dict and checks that it is still there.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch

from tzero.reading.guards import Equal, Guard, Same

__all__ = [
    "LAUNCHER",
    "Compiled",
    "compiled",
    "distributed",
    "epoch",
    "forget_epoch",
    "is_kernel",
    "kernel_class",
    "key_function",
    "left_alone",
    "signature",
]

LAUNCHER = "_launcher"
"""The function by which generated code launches: ``_launcher(kernel, grid, *args, ...)``."""

_MARK = "tzero"


class Compiled(NamedTuple):
    """What Helion compiled for a call: the generated host function, the guards under which Helion
    would call it again, whether Helion keys numbers by type alone, and an obstacle to any replay
    (usually empty)."""

    run: Callable[..., Any]
    guards: tuple[Guard, ...]
    numbers_by_type: bool
    obstacle: str


def is_kernel(value: object) -> bool:
    """Whether a value is a Helion kernel; does not import Helion.

    >>> is_kernel(print)
    False
    """
    names = ((kind.__module__, kind.__name__) for kind in type(value).__mro__)
    return ("helion.runtime.kernel", "Kernel") in names


def kernel_class() -> Any:
    """Helion's `Kernel` class; imports Helion.

    ::

        kernel_class().__call__
    """
    from helion.runtime.kernel import Kernel

    return Kernel


def key_function(kernel: Any) -> Any:
    """The `key=` function that a kernel of Helion's was given, or None."""
    return kernel._key_fn


def signature(kernel: Any, constant: object) -> inspect.Signature:
    """The signature of a kernel, with the annotation `constant` for its constants. Other
    annotations are dropped, because they may be names that only a type checker knows.

    ::

        signature(kernel, tzero.ConstExpr).parameters["up"].annotation
    """
    from helion.language.constexpr import ConstExpr

    parameters = kernel.signature.parameters.values()
    annotations = (
        constant if annotation is ConstExpr else inspect.Parameter.empty
        for annotation in kernel._annotations
    )
    found = zip(parameters, annotations, strict=True)
    return inspect.Signature([each.replace(annotation=a) for each, a in found])


def left_alone(kernel: Any) -> str:
    """Why Helion must make all calls of a kernel; empty if tzero may.

    ::

        left_alone(kernel)  # 'it runs in Helion's reference mode'
    """
    from helion.runtime.ref_mode import is_ref_mode_enabled

    settings = kernel.settings
    if settings.backend != "triton":
        return f"Helion's backend {settings.backend!r} launches no Triton kernels"
    if is_ref_mode_enabled(settings):
        return "it runs in Helion's reference mode"
    if settings.distributed or kernel._declares_process_group:
        return "it is a distributed kernel"
    return ""


def distributed() -> bool:
    """Whether there is a process group: then a tensor may be symmetric memory, which Helion checks.

    >>> distributed()
    False
    """
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def compiled(kernel: Any, args: tuple[Any, ...]) -> Compiled | None:
    """What Helion has compiled for arguments; None if nothing yet, and Helion must make the call.

    ::

        compiled(kernel, (x, y)).run(x, y)
    """
    bound = kernel.bind(args)
    run = bound._run
    if run is None or not inspect.isfunction(run):
        return None
    extractors = kernel._specialize_extra.get(bound._base_spec_key) or ()
    guards = (
        Same("what Helion compiled", vars(bound), "_run", run),
        *_unchanged(kernel),
        *_alone(),
    )
    return Compiled(run, guards, not extractors, _obstacle(run, extractors))


_KEEPING = frozenset(
    [
        *("_remote_copy_signal_slots_per_program", "_remote_copy_scratch_specs"),
        *("_remote_barrier_signal_slots_per_program", "_persistent_state_specs"),
    ]
)
"""Arguments of Helion's launcher with which it keeps memory from one launch to the next."""


def _obstacle(run: Callable[..., Any], extractors: Sequence[Any]) -> str:
    from helion.runtime import kernel

    # 1.4 specializes on sizes, strides and numbers; later versions may also on memory addresses.
    is_safe = getattr(kernel, "_capture_safe_specialization", None)
    if is_safe is not None and not all(map(is_safe, extractors)):
        return "Helion specializes on facts of its arguments that plans do not compare"
    words = {w for each in run.__code__.co_consts if type(each) is tuple for w in each}
    if not _KEEPING.isdisjoint(words):
        return "its launcher keeps memory from one call to the next"
    return ""


def _unchanged(kernel: Any) -> Iterator[Guard]:
    """Guards that the kernel was not reset, and found no new specialization."""
    own = vars(kernel)
    if "_reset_generation" not in own:
        yield Same("Helion's reset", kernel._dispatch_cache, _MARK, epoch(kernel))
        return
    for name in ("_reset_generation", "_specialization_generation"):
        yield Equal(f"Helion's {name}", own, name, own[name])


def _alone() -> Iterator[Guard]:
    """Guards that there is no process group."""
    if not torch.distributed.is_available():
        return
    from torch.distributed import distributed_c10d

    world = distributed_c10d._world
    yield Same("torch.distributed", vars(distributed_c10d), "_world", world)
    yield Same("the process group", vars(world), "_default_pg", None)


def epoch(kernel: Any) -> object:
    """A value that changes with each `reset` of a kernel.

    ::

        before = epoch(kernel)
        kernel.reset()
        assert epoch(kernel) != before
    """
    if hasattr(kernel, "_reset_generation"):
        return kernel._reset_generation
    return kernel._dispatch_cache.setdefault(_MARK, _Mark())


def forget_epoch(kernel: Any) -> None:
    """Remove what `epoch` has put into a kernel.

    ::

        forget_epoch(kernel)
    """
    if not hasattr(kernel, "_reset_generation"):
        kernel._dispatch_cache.pop(_MARK, None)


class _Mark:
    """An entry in the dispatch cache of Helion 1.4. To Helion it looks like a bound kernel that is
    not compiled yet."""

    _run = None
