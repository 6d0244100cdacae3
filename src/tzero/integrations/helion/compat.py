"""Helion's private parts, and what differs between its versions.

Enters: Helion kernels, and the arguments of calls. Leaves: the function that Helion compiled for
them, and guards that check that Helion would call it again. It must not know how calls are recorded
or replayed.

Helion 1.4 and 1.5 are supported. From 1.5 on a kernel counts its resets and late specializations.
In 1.4 a reset clears a dict, so tzero puts a mark into that dict and checks that it is still there.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from tzero.reading.guards import Equal, Guard, Same

__all__ = [
    "LAUNCHER",
    "Compiled",
    "Extractor",
    "Relation",
    "compiled",
    "distributed",
    "epoch",
    "forget_epoch",
    "has_dynamic_shapes",
    "is_kernel",
    "kernel_class",
    "key_function",
    "launcher",
    "left_alone",
    "relation_of",
    "signature",
]

LAUNCHER = "_launcher"
"""The function by which generated code launches: ``_launcher(kernel, grid, *args, ...)``."""

_MARK = "tzero"


Extractor = Callable[[Sequence[object]], Hashable]
"""A part of Helion's key: a function of the arguments."""


class Compiled(NamedTuple):
    """What Helion compiled for a call: the generated host function, the guards under which Helion
    would call it again, whether Helion keys numbers by type alone, an obstacle to any replay
    (usually empty), and the parts of Helion's key beside the types and sizes of the arguments."""

    run: Callable[..., Any]
    guards: tuple[Guard, ...]
    numbers_by_type: bool
    obstacle: str
    extractors: tuple[Extractor, ...]


class Relation(NamedTuple):
    """A part of Helion's key: whether two expressions of sympy are equal; `of_block`: the next
    power of two of the left one. `sources` has the tensor, ``"size"`` or ``"stride"``, and the
    dimension of each symbol."""

    left: Any
    right: Any
    of_block: bool
    sources: Mapping[Any, tuple[torch.Tensor, str, int]]


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


def has_dynamic_shapes(kernel: Any) -> bool:
    """Whether Helion compiles a kernel for all sizes at once.

    ::

        has_dynamic_shapes(helion.kernel(static_shapes=False)(add))
    """
    return not kernel.settings.static_shapes


def launcher() -> Any:
    """The function that launches the kernels of generated code. All it does with the arguments of
    a kernel is to pass them on, unless an option with an underscore says otherwise.

    ::

        launcher()(kernel, (1,), x, y, num_warps=4, num_stages=1)
    """
    from helion.runtime import default_launcher

    return default_launcher


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
    key = bound._base_spec_key
    extractors = tuple(kernel._specialize_extra.get(key) or ())
    seeds = getattr(kernel, "_compiler_seed_specialize_extra", {}).get(key) or ()
    guards = (
        Same("what Helion compiled", vars(bound), "_run", run),
        *_unchanged(kernel),
        *_alone(),
    )
    by_type = all(map(_reads_only_tensors, extractors))
    return Compiled(run, guards, by_type, _obstacle(run), (*extractors, *seeds))


def _reads_only_tensors(extractor: Extractor) -> bool:
    """Whether a part of Helion's key is known not to depend on numbers; 1.4 does not tell."""
    tells = getattr(_module(), "_capture_safe_specialization", None)
    return tells is not None and bool(tells(extractor))


def _module() -> Any:
    # `helion.runtime.kernel` is also the name of a function.
    return importlib.import_module("helion.runtime.kernel")


def relation_of(extractor: Extractor, args: tuple[Any, ...]) -> Relation | None:
    """The relation that a part of Helion's key is for these arguments; None if it is none. From
    1.5 on there are such parts.

    >>> relation_of(len, ()) is None
    True
    """
    fact: Any = getattr(extractor, "extractor", None)
    kind = getattr(_module(), "_GuardedInputFact", None)
    if kind is None or type(fact) is not kind:
        return None
    given = dict(zip(fact.param_names, args, strict=False))
    sources: dict[Any, tuple[torch.Tensor, str, int]] = {}
    for symbol, source in fact.sources:
        tensor, what = given.get(source.base.local_name), source.prop.name.lower()
        if not isinstance(tensor, torch.Tensor) or what not in _PROPERTIES:
            return None
        sources[symbol] = tensor, what, source.idx
    return Relation(fact.lhs, fact.rhs, fact.block, sources)


_PROPERTIES = frozenset(["size", "stride"])


_KEEPING = frozenset(
    [
        *("_remote_copy_signal_slots_per_program", "_remote_copy_scratch_specs"),
        *("_remote_barrier_signal_slots_per_program", "_persistent_state_specs"),
    ]
)
"""Arguments of Helion's launcher with which it keeps memory from one launch to the next."""


def _obstacle(run: Callable[..., Any]) -> str:
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
