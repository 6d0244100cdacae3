"""Helpers of the language tests: number formats, edge values, comparisons, forked children.

Enters: numpy values (float64 for all float formats, numpy integers otherwise). Leaves: torch
tensors of any Triton dtype, exact roundings to any format, ulp distances, pytest parameters with a
`covers` marker. It must not know the backend: references are computed from the definition of a
format.
"""

from __future__ import annotations

import os
import signal
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
import triton.language as tl

Array = np.ndarray[Any, Any]


def version_tuple(text: str) -> tuple[int, int]:
    """'3.9.0' -> (3, 9)"""
    major, minor = text.split(".")[:2]
    return int(major), int(minor)


@dataclass(frozen=True, slots=True)
class Format:
    """One Triton dtype. `digits` is the number of significand bits, including the hidden one."""

    name: str
    torch: torch.dtype
    tl: tl.dtype
    kind: str  # "bool", "int", "uint", "float"
    bits: int
    digits: int = 0
    min_exponent: int = 0  # exponent of the smallest normal number
    largest: float = 0.0
    has_inf: bool = True
    has_negative_zero: bool = True

    @property
    def numpy(self) -> np.dtype[Any]:
        if self.kind == "float":
            return np.dtype(np.float64)
        return np.dtype("bool" if self.kind == "bool" else f"{self.kind}{self.bits}")

    @property
    def source(self) -> str:
        """Its name in a kernel's source."""
        return {
            "fp8e4nv": "tl.float8e4nv",
            "fp8e5": "tl.float8e5",
            "fp8e4b8": "tl.float8e4b8",
            "fp8e5b16": "tl.float8e5b16",
            "fp16": "tl.float16",
            "bf16": "tl.bfloat16",
            "fp32": "tl.float32",
            "fp64": "tl.float64",
        }.get(self.name, f"tl.{self.name}")

    @property
    def is_float(self) -> bool:
        return self.kind == "float"


def _formats() -> dict[str, Format]:
    found = [Format("int1", torch.bool, tl.int1, "bool", 8)]
    for kind in ("int", "uint"):
        for bits in (8, 16, 32, 64):
            name = f"{kind}{bits}"
            found.append(Format(name, getattr(torch, name), getattr(tl, name), kind, bits))
    found += [
        Format("fp8e4nv", torch.float8_e4m3fn, tl.float8e4nv, "float", 8, 4, -6, 448.0, False),
        Format("fp8e5", torch.float8_e5m2, tl.float8e5, "float", 8, 3, -14, 57344.0),
        Format(
            *("fp8e4b8", torch.float8_e4m3fnuz, tl.float8e4b8, "float", 8, 4, -7, 240.0),
            has_inf=False,
            has_negative_zero=False,
        ),
        Format(
            *("fp8e5b16", torch.float8_e5m2fnuz, tl.float8e5b16, "float", 8, 3, -15, 57344.0),
            has_inf=False,
            has_negative_zero=False,
        ),
        Format("fp16", torch.float16, tl.float16, "float", 16, 11, -14, 65504.0),
        Format("bf16", torch.bfloat16, tl.bfloat16, "float", 16, 8, -126, 255 * 2.0**120),
        Format("fp32", torch.float32, tl.float32, "float", 32, 24, -126, float(np.finfo("f4").max)),
        Format("fp64", torch.float64, tl.float64, "float", 64, 53, -1022, np.finfo("f8").max),
    ]
    return {found_format.name: found_format for found_format in found}


FORMATS = _formats()
SIGNED = ("int8", "int16", "int32", "int64")
UNSIGNED = ("uint8", "uint16", "uint32", "uint64")
INTEGERS = SIGNED + UNSIGNED
FLOATS = ("fp16", "bf16", "fp32", "fp64")
FP8 = ("fp8e4nv", "fp8e5", "fp8e4b8", "fp8e5b16")
NUMBERS = INTEGERS + FLOATS
COLUMNS = tuple(FORMATS)


def covered(op: str, *dtypes: str, args: Sequence[Any] = (), **marks: str) -> Any:
    """A pytest parameter for one operation and dtype, counted in docs/cpu.md.

    `needs="3.9"` and `until="3.9"` limit the Triton versions.
    """
    markers = [pytest.mark.covers(op, *dtypes)]
    if "needs" in marks:
        markers.append(pytest.mark.needs_triton(marks["needs"]))
    if "until" in marks:
        markers.append(pytest.mark.until_triton(marks["until"]))
    values = tuple(args) if args else (op, *dtypes)
    return pytest.param(*values, marks=markers, id="-".join((op.replace(" ", ""), *dtypes)))


# -- values ---------------------------------------------------------------------------------------


def tensor(values: Any, name: str) -> torch.Tensor:
    """The values as a tensor of the named dtype, in which floats must be representable."""
    fmt = FORMATS[name]
    array = np.array(values, dtype=fmt.numpy)
    if not fmt.is_float:
        return torch.from_numpy(array)
    if fmt.bits == 64:
        return torch.from_numpy(array)
    return torch.from_numpy(array.astype(np.float32)).to(fmt.torch)


def empty(shape: int | Sequence[int], name: str) -> torch.Tensor:
    """An output tensor, filled with a value that no test expects."""
    fmt = FORMATS[name]
    shape = (shape,) if isinstance(shape, int) else tuple(shape)
    if fmt.kind == "bool":
        return torch.zeros(shape, dtype=torch.bool)
    if fmt.is_float:
        return torch.full(shape, 21.0, dtype=torch.float32).to(fmt.torch)
    return torch.from_numpy(np.full(shape, 85, dtype=fmt.numpy))


def array(value: torch.Tensor) -> Array:
    """A tensor back as numpy: float64 for every floating dtype, integers as they are."""
    if value.dtype.is_floating_point:
        if value.dtype == torch.float64:
            return value.numpy()
        with np.errstate(invalid="ignore"):  # from signalling NaNs
            return value.to(torch.float32).numpy().astype(np.float64)
    return value.numpy()


def integer_edges(name: str, count: int, seed: int) -> Array:
    """Random integers of all magnitudes, and the limits of the dtype."""
    info = np.iinfo(FORMATS[name].numpy)
    rng = np.random.default_rng(seed)
    wide = rng.integers(info.min, info.max, count, dtype=info.dtype, endpoint=True)
    shifted = wide >> rng.integers(0, info.bits, count).astype(info.dtype)
    edges = np.array(
        [0, 1, 2, 3, 7, info.max, info.max - 1, info.max // 2, info.min, info.min + 1],
        dtype=info.dtype,
    )
    if info.min < 0:
        edges = np.concatenate([edges, np.array([-1, -2, -3, -7], dtype=info.dtype)])
    return rng.permutation(np.concatenate([edges, edges, shifted])[:count])


def float_edges(name: str, count: int, seed: int, special: bool = True) -> Array:
    """Representable values of a float format, with special values if `special`."""
    fmt = FORMATS[name]
    rng = np.random.default_rng(seed)
    values = rng.standard_normal(count) * 2.0 ** rng.integers(-8, 9, count)
    if special:
        tiny = 2.0**fmt.min_exponent
        edges = [0.0, -0.0, 1.0, -1.0, 0.5, 3.0, fmt.largest, -fmt.largest, tiny, -tiny]
        edges += [tiny * 2.0 ** (1 - fmt.digits), -tiny * 2.0 ** (1 - fmt.digits), tiny * 0.75]
        edges += [np.nan, np.nan] + ([np.inf, -np.inf] if fmt.has_inf else [])
        values[: 2 * len(edges)] = (edges + edges)[:count]
    return rng.permutation(round_to(values, name))


def edges(name: str, count: int, seed: int) -> Array:
    """Edge values of any dtype."""
    if name == "int1":
        return np.random.default_rng(seed).integers(0, 2, count).astype(bool)
    make = float_edges if FORMATS[name].is_float else integer_edges
    return make(name, count, seed)


# -- exact rounding and distances -----------------------------------------------------------------


def spacing(values: Array, name: str) -> Array:
    """The distance between neighbouring numbers of the format at each value (its ulp)."""
    fmt = FORMATS[name]
    finite = np.where(np.isfinite(values), values, 1.0)
    _, exponent = np.frexp(finite)
    exponent = np.where(finite == 0, fmt.min_exponent, np.maximum(exponent - 1, fmt.min_exponent))
    return np.ldexp(1.0, exponent - (fmt.digits - 1))


def round_to(values: Any, name: str, mode: str = "rtne", overflow: str = "ieee") -> Array:
    """float64 values rounded once to the format, by its definition.

    `overflow` is the result beyond the largest number: "ieee" is infinity (NaN in a format without
    one), "saturate" is the largest number, also for infinities.
    """
    fmt = FORMATS[name]
    values = np.asarray(values, dtype=np.float64)
    if fmt.bits == 64:
        return values
    step = spacing(values, name)
    with np.errstate(invalid="ignore", over="ignore"):
        scaled = values / step
        rounded = (np.rint(scaled) if mode == "rtne" else np.trunc(scaled)) * step
    rounded = np.where(np.isfinite(values), rounded, values)
    above = np.abs(rounded) > fmt.largest
    if mode == "rtz" and overflow == "ieee":
        above &= np.isinf(values)  # towards zero, a finite number never becomes infinite
        rounded = np.where(
            np.isfinite(values), np.clip(rounded, -fmt.largest, fmt.largest), rounded
        )
    limit = fmt.largest if overflow == "saturate" else (np.inf if fmt.has_inf else np.nan)
    found = np.where(above, np.copysign(limit, values), rounded)
    return found if fmt.has_negative_zero else np.where(found == 0, 0.0, found)


def round_fraction(value: Fraction, name: str, mode: str = "rn") -> float:
    """An exact rational rounded to the format: rn (to nearest even), rz, rd or ru."""
    fmt = FORMATS[name]
    if value == 0:
        return 0.0
    magnitude = abs(value)
    exponent = magnitude.numerator.bit_length() - magnitude.denominator.bit_length()
    if magnitude < Fraction(2) ** exponent:
        exponent -= 1
    step = Fraction(2) ** (max(exponent, fmt.min_exponent) - (fmt.digits - 1))
    away = mode == ("ru" if value > 0 else "rd")
    if mode == "rn":
        steps = round(magnitude / step)  # Python's round is to nearest even
    else:
        steps = -(-magnitude // step) if away else magnitude // step
    rounded = steps * step
    if rounded > Fraction(fmt.largest):
        return float(np.copysign(np.inf if mode == "rn" or away else fmt.largest, value > 0 or -1))
    return float(rounded) if value > 0 else -float(rounded)


def assert_same(got: Any, want: Any, what: str = "") -> None:
    """Equal values; NaN equals NaN, and 0.0 equals -0.0."""
    np.testing.assert_array_equal(np.asarray(got), np.asarray(want), err_msg=what)


def assert_same_bits(got: Array, want: Array) -> None:
    """Equal values, and equal signs of zeros."""
    assert_same(got, want)
    numbers = ~np.isnan(want)
    assert_same(np.signbit(got)[numbers], np.signbit(want)[numbers], "signs of zeros")


def assert_ulps(got: Array, want: Array, name: str, ulps: float, *inputs: Array) -> None:
    """`got` is within `ulps` ulps of the format from the exact values `want`.

    An infinite or NaN reference must be met exactly. For a finite one that rounds to infinity, or
    almost, both infinity and the largest numbers are accepted.
    """
    fmt = FORMATS[name]
    exact = ~np.isfinite(want)
    overflowing = np.isfinite(want) & (np.abs(want) >= fmt.largest * (1 - ulps * 2.0**-fmt.digits))
    bounded = ~exact & ~overflowing
    with np.errstate(invalid="ignore", over="ignore"):
        distance = np.where(bounded, np.abs(got - want) / spacing(want, name), 0.0)
        near = np.abs(got) >= fmt.largest * (1 - 2 * ulps * 2.0**-fmt.digits)
        wrong = (exact & ~((got == want) | (np.isnan(got) & np.isnan(want)))) | (
            overflowing & ~(near & (np.signbit(got) == np.signbit(want)))
        )
    wrong |= np.isnan(distance) | (distance > ulps)
    if wrong.any():
        at = np.flatnonzero(wrong)[np.argsort(-np.nan_to_num(distance[wrong], nan=np.inf))][:5]
        rows = [
            f"f({', '.join(repr(i.flat[k].item()) for i in inputs)}) = {got.flat[k]!r}, "
            f"want {want.flat[k]!r} ({distance.flat[k]:.2f} ulp)"
            for k in at
        ]
        raise AssertionError(
            f"{wrong.sum()} of {wrong.size} values off by more than {ulps} ulp:\n" + "\n".join(rows)
        )


# -- processes that may die -----------------------------------------------------------------------


def survives(work: Callable[[], None]) -> None:
    """Run the work in a forked child, so that a crash fails only one test."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        raise AssertionError(f"killed by {signal.Signals(os.WTERMSIG(status)).name}")
    assert os.WEXITSTATUS(status) == 0, "failed in the child; its traceback is on stderr"


def product(*axes: Iterable[Any]) -> list[tuple[Any, ...]]:
    """itertools.product as a list, for parametrisations."""
    rows: list[tuple[Any, ...]] = [()]
    for axis in axes:
        axis = list(axis)
        rows = [(*row, value) for row in rows for value in axis]
    return rows
