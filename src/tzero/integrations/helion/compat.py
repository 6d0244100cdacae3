"""All that is known of Helion's insides, version by version.

Enters: kernels of Helion's, and the arguments of calls. Leaves: what Helion has compiled for them,
and the guards that say whether Helion would choose the same again. It must not know how calls are
recorded or replayed.

Known are Helion 1.4 and 1.5. They differ in how a `reset` shows. From 1.5 on a kernel counts its
resets, and the specializations that it found late; in 1.4 a reset empties a dict, so a mark that
tzero puts into that dict is gone.
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
    "left_alone",
    "signature",
]

LAUNCHER = "_launcher"
"""What Helion's generated functions launch by: ``_launcher(kernel, grid, *args, ...)``."""

_MARK = "tzero"


class Compiled(NamedTuple):
    """What Helion has for a call: the generated host function, the guards under which it is the one
    that Helion would call, whether numbers count by their type alone, and why it cannot be replayed
    whatever it does; mostly empty."""

    run: Callable[..., Any]
    guards: tuple[Guard, ...]
    numbers_by_type: bool
    obstacle: str


def is_kernel(value: object) -> bool:
    """Whether a value is a kernel of Helion's; Helion is not imported to find out.

    >>> is_kernel(print)
    False
    """
    names = ((kind.__module__, kind.__name__) for kind in type(value).__mro__)
    return ("helion.runtime.kernel", "Kernel") in names


def kernel_class() -> Any:
    """Helion's class of kernels; imports Helion.

    ::

        kernel_class().__call__
    """
    from helion.runtime.kernel import Kernel

    return Kernel


def signature(kernel: Any, constant: object) -> inspect.Signature:
    """The signature of a kernel, with `constant` for the annotation of its constants, and none for
    other parameters: they may be names that only a type checker knows.

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
    """Why every call of a kernel is Helion's own; empty where it need not be.

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
    """Whether there is a process group: then a tensor may be symmetric memory, and Helion looks.

    >>> distributed()
    False
    """
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def compiled(kernel: Any, args: tuple[Any, ...]) -> Compiled | None:
    """What Helion has compiled for arguments; None where it has not yet, so that it must be called.

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
"""What Helion's launcher is given where it keeps memory of its own from launch to launch."""


def _obstacle(run: Callable[..., Any], extractors: Sequence[Any]) -> str:
    from helion.runtime import kernel

    # 1.4 asks for sizes, strides and numbers; later ones may ask where a tensor is in memory.
    is_safe = getattr(kernel, "_capture_safe_specialization", None)
    if is_safe is not None and not all(map(is_safe, extractors)):
        return "Helion specializes on facts of its arguments that plans do not compare"
    words = {w for each in run.__code__.co_consts if type(each) is tuple for w in each}
    if not _KEEPING.isdisjoint(words):
        return "its launcher keeps memory from one call to the next"
    return ""


def _unchanged(kernel: Any) -> Iterator[Guard]:
    """Guards for what Helion has dropped or found meanwhile."""
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
    """A value that is another one after each `reset` of a kernel.

    ::

        before = epoch(kernel)
        kernel.reset()
        assert epoch(kernel) != before
    """
    if hasattr(kernel, "_reset_generation"):
        return kernel._reset_generation
    return kernel._dispatch_cache.setdefault(_MARK, _Mark())


def forget_epoch(kernel: Any) -> None:
    """Take out of a kernel what `epoch` has put there.

    ::

        forget_epoch(kernel)
    """
    if not hasattr(kernel, "_reset_generation"):
        kernel._dispatch_cache.pop(_MARK, None)


class _Mark:
    """What is among the values of 1.4's dispatch cache: it stands for a bound kernel that has not
    been compiled, should anyone ask."""

    _run = None
