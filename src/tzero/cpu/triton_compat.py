"""What differs between Triton 3.6 and 3.9 on the driver's side, or could in the next release.

Enters: Triton's modules and the source object of a kernel. Leaves: parameters in the order of the
compiled kernel, the drivers that Triton ships, its cache directory and what is kept there. It must
not know how a kernel is launched.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import pkgutil
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from triton import knobs
from triton.backends.driver import DriverBase

from tzero import settings

__all__ = [
    "Parameter",
    "cache_directory",
    "in_tree_drivers",
    "keeps_binaries_alone",
    "parameters",
    "silence_drivers",
]


def cache_directory() -> Path:
    """Our corner of Triton's cache; Triton itself does not look into it."""
    return Path(knobs.cache.dir) / "tzero"


def keeps_binaries_alone() -> bool:
    """Whether Triton's cache is told to keep no more of a kernel than its binary: a file that is
    called like those of its GPUs, by a list that it has written down."""
    return bool(knobs.compilation.store_binary_only)


# ---- drivers ------------------------------------------------------------------------------------


def in_tree_drivers() -> list[type[DriverBase]]:
    """The GPU drivers in Triton's own wheel.

    Not from ``triton.backends.backends``, which is not there yet while Triton is being imported.
    """
    found = []
    backends = importlib.import_module("triton.backends")  # no attribute of triton yet, either
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


def silence_drivers() -> None:
    """Make Triton's own drivers answer that they are inactive as long as TZERO_CPU=1 holds.

    Exactly one driver may be active, and only since 3.7 can one be chosen by name. It has to
    happen when our driver is imported: Triton may ask the others first.
    """
    for driver in in_tree_drivers():
        if not hasattr(driver, "tzero_asked_before"):
            driver.tzero_asked_before = driver.is_active
            driver.is_active = staticmethod(partial(_unless_forced, driver.is_active))


def _unless_forced(is_active: Callable[[], bool]) -> bool:
    return settings.current().cpu is not True and is_active()


# ---- parameters ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of the compiled kernel: its name, Triton type, and where its value is.

    ``path`` leads from the tuple of launch arguments to the value, through tuples; ``part`` takes
    what is wanted out of a tensor descriptor there.
    """

    name: str
    type: str
    path: tuple[int, ...]
    part: Callable[[Any], Any] | None = None

    def read(self, args: Sequence[Any]) -> Any:
        value: Any = args
        for step in self.path:
            value = value[step]
        return value if self.part is None else self.part(value)


def parameters(src: Any) -> list[Parameter]:
    """Flatten a kernel's signature as Triton flattens it: tuples become their items, constants
    disappear, a tensor descriptor becomes what the rewrite to pointers makes of it."""
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
    """Pointer, sizes and strides, padding and rounding, from the pass; then sizes and strides
    again, which the front end adds to each descriptor."""
    match = re.match(r"tensordesc<([^\[>]*)\[([^\]]*)\]", type_)
    if match is None:
        raise TypeError(f"argument {name!r} has the type {type_}, which has no meaning on the CPU")
    axes = range(match[2].count(",") + 1)

    def part(label: str, kind: str, read: Callable[[Any], Any]) -> Parameter:
        return Parameter(f"{name}.{label}", kind, path, read)

    def each_axis(field: str, kind: str) -> Iterator[Parameter]:
        for axis in axes:
            yield part(f"{field}[{axis}]", kind, partial(_axis, field, axis))

    yield part("base", f"*{match[1]}", lambda d: d.base)
    yield from each_axis("shape", "i64")
    yield from each_axis("strides", "i64")
    yield part("padding", "i1", lambda d: d.padding == "nan")
    if _rounds_descriptors():
        yield part("round_f32_to_tf32", "i1", lambda d: d.round_f32_to_tf32)
    yield from each_axis("shape", "i32")
    yield from each_axis("strides", "i64")


def _axis(field: str, axis: int, descriptor: Any) -> Any:
    return getattr(descriptor, field)[axis]


def _rounds_descriptors() -> bool:
    """3.7 gave descriptors a rounding flag, and the pass a parameter for it, in one change."""
    from triton.tools.tensor_descriptor import TensorDescriptor

    return any(f.name == "round_f32_to_tf32" for f in dataclasses.fields(TensorDescriptor))
