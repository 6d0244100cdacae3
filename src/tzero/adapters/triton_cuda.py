"""Adapts Triton's launcher for CUDA: what it makes of a kernel's arguments, and the memory that it
allocates. Change this for a new Triton whose launcher passes something else.

Enters: compiled kernels and their launchers. Leaves: the parameters of a kernel in the order in
which the driver gets them, with tensor maps in the place of descriptors; how scratch memory is
allocated. It must not know how tzero launches. Importing it also mends how Triton 3.6 loads
launchers (`_loaded`).
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, NamedTuple

import triton
from triton.runtime import _allocation, build

from tzero.cpu import triton_compat

__all__ = ["Parameter", "TensorMap", "Unknown", "parameters", "scratch"]


# Until 3.7 each signature has a launcher of its own, an extension module. All have the same name,
# so that CPython, when it loads a file again, puts its functions into the module that was loaded
# last. A thread that loads another launcher at that moment would get this one: wrong arguments.
_load: Callable[[str, str], ModuleType] | None = getattr(build, "_load_module_from_path", None)
_LAUNCHER = "__triton_launcher"


def _loaded(name: str, path: str) -> ModuleType:
    if name == _LAUNCHER:  # the part after the dot names the function that initialises it
        name = f"{_LAUNCHER}_{hashlib.sha256(path.encode()).hexdigest()[:16]}.{name}"
    assert _load is not None
    return _load(name, path)


if _load is not None:
    build._load_module_from_path = _loaded


class Unknown(Exception):
    """What a launch passes is not known, so that only Triton can make it."""


class TensorMap(NamedTuple):
    """What CUDA's driver is told of a descriptor besides its tensor and its padding, with the
    driver's numbers.

    >>> TensorMap(rank=2, swizzle=3, element_bytes=2, dtype=6, box=(64, 64)).rank
    2
    """

    rank: int
    swizzle: int
    element_bytes: int
    dtype: int
    box: tuple[int, ...]


class Parameter(NamedTuple):
    """As `tzero.cpu.triton_compat.Parameter`. The type of a descriptor that becomes a tensor map is
    a `TensorMap`, and its part is ``("map", 0)``."""

    type: str | TensorMap
    path: tuple[int, ...]
    part: tuple[str, int] | None


def parameters(kernel: Any) -> Iterator[Parameter]:
    """The parameters of a compiled kernel, in order; raises `Unknown`.

    A descriptor becomes its tensor map, or else its pointer, sizes, strides and flags. Its sizes
    and strides come after either.
    """
    metas = iter(getattr(kernel.metadata, "tensordesc_meta", None) or ())
    types = list(kernel.src.signature.values())
    found = triton_compat.parameters(kernel.src)
    for path, each in itertools.groupby(found, key=lambda parameter: parameter.path):
        parts = [Parameter(one.type, one.path, one.part) for one in each]
        if parts[0].part is None:
            yield from parts
            continue
        if len(path) > 1:
            raise Unknown("it has a tensor descriptor in a tuple")
        meta = next(metas, None)
        if meta is None:
            yield from parts
            continue
        rank = types[path[0]].partition("[")[2].partition("]")[0].count(",") + 1
        yield Parameter(_map(meta, rank), path, ("map", 0))
        yield from parts[-2 * rank :]


def _map(meta: Any, rank: int) -> TensorMap:
    """How the launcher of Triton 3.6 fills a tensor map. Later ones do so in other ways, which
    depend on the driver."""
    if not triton.__version__.startswith("3.6."):
        raise Unknown("it is not known how this Triton fills tensor maps")
    from triton.backends.nvidia.driver import TMA_DTYPE_DEVICE_TO_HOST

    if meta["fp4_padded"] or meta.keys() != _META:
        raise Unknown("its tensor descriptors are of a kind that only Triton passes")
    dtype = TMA_DTYPE_DEVICE_TO_HOST[meta["elem_type"]]
    return TensorMap(rank, meta["swizzle"], meta["elem_size"], dtype, tuple(meta["block_size"]))


_META = {"swizzle", "elem_size", "elem_type", "block_size", "fp4_padded"}


def scratch(launcher: Any) -> tuple[tuple[int, int, Any], ...] | None:
    """The memory that each block of a launch needs, global and of a profiler: bytes, alignment, and
    what has ``get``, the allocator of the moment. Empty if there is none, None if it is unknown."""
    most, profile = launcher.global_scratch_size, launcher.profile_scratch_size
    if not most and not profile:
        return ()
    if profile and hasattr(_allocation, "has_profile_allocator"):  # since 3.8: there is a default
        return None
    return (
        (most, launcher.global_scratch_align, _allocation._allocator),
        (profile, launcher.profile_scratch_align, _allocation._profile_allocator),
    )
