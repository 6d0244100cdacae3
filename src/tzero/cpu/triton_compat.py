"""Triton's internals and what differs between its versions (3.6 to 3.9); other modules of this
package use only Triton's backend base classes.

Enters: Triton's modules, a module object of its IR, the source object of a kernel. Leaves:
optimized and printed IR, parameters in the order of the compiled kernel, the GPU drivers that
Triton ships, its cache directory. It must not know how a kernel is lowered or launched.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import os
import pkgutil
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from triton import knobs
from triton._C.libtriton import ir, passes
from triton.backends.driver import DriverBase

from tzero import scratch, settings

__all__ = [
    "Parameter",
    "cache_directory",
    "deactivate_gpu_drivers",
    "gpu_drivers",
    "gpu_options",
    "parameters",
    "stores_binaries_only",
]


def cache_directory() -> Path:
    """Directory of this user's own files inside Triton's cache, which Triton ignores. Several users
    may share Triton's cache, so each has one."""
    return _own_directory(knobs.cache.dir, os.geteuid())


@lru_cache(maxsize=16)
def _own_directory(cache: str, user: int) -> Path:
    if cache.startswith("~"):  # a user without HOME and without an entry in passwd
        cache = scratch.at_home(cache)
    return Path(cache) / f"tzero-{user}"


def stores_binaries_only() -> bool:
    """Whether Triton's cache keeps only a kernel's binary, which it recognises by a fixed list of
    GPU file extensions."""
    return bool(knobs.compilation.store_binary_only)


# ---- IR -----------------------------------------------------------------------------------------


def optimize_ttir(module: Any) -> Any:
    """Run Triton's target-independent passes; descriptors and block pointers become pointers."""
    manager = ir.pass_manager(module.context)
    manager.enable_debug()
    passes.common.add_inliner(manager)
    for name in ("add_rewrite_tensor_pointer", "add_rewrite_tensor_descriptor_to_pointer"):
        if hasattr(passes.ttir, name):  # 3.9 has no block pointers
            getattr(passes.ttir, name)(manager)
    passes.common.add_canonicalizer(manager)
    passes.ttir.add_combine(manager)
    passes.ttir.add_reorder_broadcast(manager)
    passes.common.add_cse(manager)
    passes.ttir.add_triton_licm(manager)
    passes.common.add_symbol_dce(manager)
    passes.ttir.add_loop_unroll(manager)
    manager.run(module, "make_ttir")
    return module


def generic_text(module: Any) -> str:
    """A module in MLIR's generic form, with locations. The module must not be used again.

    The bindings can walk operations but cannot enter regions, and have no generic printer. But
    MLIR prints a module that does not verify in generic form, and a malformed `llvm.data_layout`
    attribute makes verification fail.
    """
    module.set_attr("llvm.data_layout", ir.builder(module.context).get_string_attr("unverifiable"))
    return str(module)


# ---- drivers ------------------------------------------------------------------------------------


def gpu_drivers() -> list[type[DriverBase]]:
    """The GPU drivers in Triton's own wheel.

    ``triton.backends.backends`` does not exist yet while Triton is being imported.
    """
    found = []
    backends = importlib.import_module("triton.backends")  # not an attribute of triton yet
    for module in pkgutil.iter_modules(backends.__path__):
        if module.ispkg:
            driver = importlib.import_module(f"triton.backends.{module.name}.driver")
            found += [each for each in vars(driver).values() if _is_own_driver(each, driver)]
    return found


def _is_own_driver(value: object, module: Any) -> bool:
    return (
        isinstance(value, type)
        and issubclass(value, DriverBase)
        and not inspect.isabstract(value)
        and value.__module__ == module.__name__
    )


def deactivate_gpu_drivers() -> None:
    """Make Triton's own drivers report that they are inactive while TZERO_CPU=1.

    Triton requires exactly one active driver, and only since 3.7 can one be chosen by name. This
    runs when our driver is imported, because Triton may query the others before it.
    """
    for driver in gpu_drivers():
        if not hasattr(driver, "tzero_original_is_active"):
            driver.tzero_original_is_active = driver.is_active
            driver.is_active = staticmethod(partial(_unless_forced, driver.is_active))


def _unless_forced(is_active: Callable[[], bool]) -> bool:
    return settings.current().cpu is not True and is_active()


# ---- options ------------------------------------------------------------------------------------


@lru_cache(maxsize=1)
def gpu_options() -> frozenset[str]:
    """The launch options of the GPU backends in Triton's own wheel, such as ``waves_per_eu``."""
    found: set[str] = set()
    backends = importlib.import_module("triton.backends")
    for module in pkgutil.iter_modules(backends.__path__):
        if module.ispkg:
            compiler = importlib.import_module(f"triton.backends.{module.name}.compiler")
            for each in vars(compiler).values():
                if isinstance(each, type) and dataclasses.is_dataclass(each):
                    found.update(field.name for field in dataclasses.fields(each))
    return frozenset(found)


# ---- parameters ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of the compiled kernel: name, Triton type, and where to find its value.

    ``path`` indexes into the tuple of launch arguments and nested tuples; ``part`` names a field of
    the tensor descriptor found there, and the axis if the field has several.
    """

    name: str
    type: str
    path: tuple[int, ...]
    part: tuple[str, int] | None = None

    def read(self, args: Sequence[Any]) -> Any:
        value: Any = args
        for step in self.path:
            value = value[step]
        return value if self.part is None else _PARTS[self.part[0]](value, self.part[1])


_PARTS: dict[str, Callable[[Any, int], Any]] = {
    "base": lambda descriptor, axis: descriptor.base,
    "shape": lambda descriptor, axis: descriptor.shape[axis],
    "strides": lambda descriptor, axis: descriptor.strides[axis],
    "padding": lambda descriptor, axis: descriptor.padding == "nan",
    "round_f32_to_tf32": lambda descriptor, axis: descriptor.round_f32_to_tf32,
}


def parameters(src: Any) -> list[Parameter]:
    """Flatten a kernel's signature as Triton does: tuples become their items, constants are
    dropped, a tensor descriptor becomes the parameters of the rewrite-to-pointer pass."""
    found: list[Parameter] = []
    for index, (key, type_) in enumerate(src.signature.items()):
        name = key if isinstance(key, str) else f"#{key}"
        found += _flatten(name, type_, (index,))
    return found


def _flatten(name: str, type_: Any, path: tuple[int, ...]) -> Iterator[Parameter]:
    if isinstance(type_, (tuple, list)):
        for index, item in enumerate(type_):
            yield from _flatten(f"{name}[{index}]", item, (*path, index))
    elif type_.startswith("tensordesc"):
        yield from _descriptor(name, type_, path)
    elif type_ != "constexpr":
        yield Parameter(name, type_, path)


def _descriptor(name: str, type_: str, path: tuple[int, ...]) -> Iterator[Parameter]:
    """Pointer, shape, strides, padding and rounding, added by the pass; then shape and strides
    again, added by the front end."""
    match = re.match(r"tensordesc<([^\[>]*)\[([^\]]*)\]", type_)
    if match is None:
        raise TypeError(
            f"argument {name!r} has the type {type_}, which the CPU backend does not support"
        )
    rank = match[2].count(",") + 1

    def part(field: str, kind: str) -> Parameter:
        return Parameter(f"{name}.{field}", kind, path, (field, 0))

    def each_axis(field: str, kind: str) -> Iterator[Parameter]:
        for axis in range(rank):
            yield Parameter(f"{name}.{field}[{axis}]", kind, path, (field, axis))

    yield part("base", f"*{match[1]}")
    yield from each_axis("shape", "i64")
    yield from each_axis("strides", "i64")
    yield part("padding", "i1")
    if _rounds_descriptors():
        yield part("round_f32_to_tf32", "i1")
    yield from each_axis("shape", "i32")
    yield from each_axis("strides", "i64")


def _rounds_descriptors() -> bool:
    """Whether descriptors have a rounding flag, and the pass a parameter for it: since 3.7."""
    from triton.tools.tensor_descriptor import TensorDescriptor

    return any(f.name == "round_f32_to_tf32" for f in dataclasses.fields(TensorDescriptor))
