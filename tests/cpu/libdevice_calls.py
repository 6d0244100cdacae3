"""Libdevice's C functions, called by symbol with Python numbers.

Enters: a symbol without its ``__nv_`` and rows of arguments. Leaves: Python numbers.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

import numpy as np

from tests.cpu.cloops import Loop, Loops
from tzero.cpu.libdevice import Function, lookup, symbols

PRECISION = {"f32": (24, -149), "f64": (53, -1074)}
"""Bits of precision, and the exponent of the smallest subnormal."""


def function(name: str) -> Function:
    """The entry of the table, which must be there."""
    found = lookup(f"__nv_{name}")
    assert found is not None, name
    return found


@functools.cache
def _loops() -> Loops:
    loops = {}
    for name in sorted(symbol.removeprefix("__nv_") for symbol in symbols()):
        found = function(name)
        letters = ", ".join("abcd"[: len(found.args)])
        loops[name] = Loop(found.args, found.result, f"{found.c_name}({letters})")
    return Loops(loops, "libdevice.h", optimization=1)


def call(name: str, rows: Iterable[tuple[Any, ...]]) -> list[Any]:
    """The function of each row; floats are rounded to their type, integers wrap."""
    arrays = []
    for column, tag in zip(zip(*rows, strict=True), function(name).args, strict=True):
        size = int(tag[1:]) // 8
        if tag[0] == "i":
            wrapped = [int(x) % (1 << 8 * size) for x in column]
            arrays.append(np.array(wrapped, f"u{size}").view(f"i{size}"))
        else:
            arrays.append(np.array(column, f"f{size}"))
    return list(_loops()(name, *arrays).tolist())


def narrow(values: Iterable[float], tag: str) -> list[float]:
    """Each value rounded to f32 or f64."""
    with np.errstate(over="ignore"):
        return [float(x) for x in np.array(list(values), f"f{int(tag[1:]) // 8}")]


def signed(value: int, width: int) -> int:
    """Two's complement of the low bits."""
    value &= (1 << width) - 1
    return value - (1 << width) if value >> (width - 1) else value
