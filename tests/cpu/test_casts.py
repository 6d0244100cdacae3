"""Every conversion between two dtypes, against the definition of the target format."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch

from tests.cpu.cases import (
    COLUMNS,
    FORMATS,
    FP8,
    INTEGERS,
    Array,
    array,
    assert_same,
    assert_same_bits,
    covered,
    edges,
    product,
    round_to,
    tensor,
)
from tests.cpu.rows import Row, evaluate, evaluate_each, result

COUNT = 512


def tl_name(dtype: str) -> str:
    return FORMATS[dtype].source


def castable(source: str, target: str) -> bool:
    """Triton has all pairs except fp8 with integers and fp8 with fp8, which go through a float."""
    if source == target or {source, target} <= set(FP8):
        return False
    return not ({source, target} & set(FP8) and {source, target} & {"int1", *INTEGERS})


@functools.cache
def values(source: str) -> Array:
    if source in FP8:
        codes = np.arange(256, dtype=np.uint8).repeat(2)
        return array(torch.from_numpy(codes).view(FORMATS[source].torch))
    return edges(source, COUNT, 31)


def in_range(x: Array, target: str) -> Array:
    """Floats in the range of an integer dtype: beyond it the result is undefined in Triton."""
    info = np.iinfo(FORMATS[target].numpy)
    inside = np.isfinite(x) & (np.trunc(x) >= info.min) & (x < float(info.max) + (info.bits < 64))
    return np.where(inside, x, 1.0)


def to_float_target(x: Array, target: str) -> Array:
    # fp8 conversions saturate like the GPU's; test_semantics tests the limits.
    overflow = "saturate" if target in FP8 else "ieee"
    want = round_to(x, target, overflow=overflow)
    return np.where(np.isnan(x), np.nan, want)


def expected(x: Array, source: str, target: str) -> Array:
    if target == "int1":
        return x != 0
    if FORMATS[target].is_float:
        if FORMATS[source].is_float:
            return to_float_target(x, target)
        return round_integers(x, target)
    if FORMATS[source].is_float:
        return np.trunc(in_range(x, target)).astype(FORMATS[target].numpy)
    return x.astype(FORMATS[target].numpy)


def round_integers(x: Array, target: str) -> Array:
    """Integers rounded once to a float format; going through float64 would round 64-bit ones."""
    fmt = FORMATS[target]
    found = np.empty(x.shape)
    for i, value in enumerate(x):
        magnitude = abs(int(value))
        drop = max(magnitude.bit_length() - fmt.digits, 0)
        quotient, rest = magnitude >> drop, magnitude & ((1 << drop) - 1)
        half = (1 << drop) >> 1
        up = drop > 0 and (rest > half or (rest == half and quotient & 1))
        rounded = float(quotient + up) * 2.0**drop
        found[i] = np.copysign(np.inf if rounded > fmt.largest else rounded, int(value))
    return found


@functools.cache
def computed(source: str) -> dict[str, torch.Tensor | Exception]:
    """All targets of one source; for integer targets, float sources are clamped first."""
    plain = tensor(values(source), source)
    jobs = {}
    for target in COLUMNS:
        if castable(source, target):
            clamped = FORMATS[source].is_float and target in INTEGERS
            x = tensor(in_range(values(source), target), source) if clamped else plain
            jobs[target] = (Row(f"x.to({tl_name(target)})", target), {"x": x})
    return evaluate_each(jobs)


PAIRS = [(s, t) for s, t in product(COLUMNS, COLUMNS) if castable(s, t)]


@pytest.mark.parametrize(
    ("source", "target"), [covered(f".to({tl_name(t)})", s, args=(s, t)) for s, t in PAIRS]
)
def test_a_cast_gives_the_nearest_value(source: str, target: str) -> None:
    got = array(result(computed(source), target))
    want = expected(values(source), source, target)
    if FORMATS[target].is_float and FORMATS[source].is_float:
        assert_same_bits(got, want)
    else:
        assert_same(got, want)


BITCASTS = (
    ("int8", "uint8"), ("uint8", "fp8e4nv"), ("fp8e5", "int8"), ("fp8e4b8", "fp8e5b16"),
    ("int16", "fp16"),
    ("bf16", "uint16"), ("fp16", "bf16"), ("fp32", "int32"), ("uint32", "fp32"),
    ("fp64", "int64"), ("uint64", "fp64"), ("int32", "uint32"),
)  # fmt: skip


@pytest.mark.parametrize(
    ("source", "target"),
    [covered(".to(bitcast=True)", s, t, args=(s, t)) for s, t in BITCASTS],
)
def test_a_bitcast_keeps_the_bits(source: str, target: str) -> None:
    x = tensor(values(source), source)
    found = evaluate({"x": x}, {"bits": Row(f"x.to({tl_name(target)}, bitcast=True)", target)})
    got = result(found, "bits")
    bits = FORMATS[source].bits
    same = torch.equal(x.view(getattr(torch, f"int{bits}")), got.view(getattr(torch, f"int{bits}")))
    assert same, "the bits changed"


ROUNDED_DOWN = [
    (s, t)
    for s, t in product(
        ("fp16", "bf16", "fp32", "fp64"), ("fp8e5", *FP8[2:], "fp16", "bf16", "fp32")
    )
    if FORMATS[s].bits > FORMATS[t].bits
]


@pytest.mark.parametrize(
    ("source", "target"),
    [covered(f".to({tl_name(t)}, rtz)", s, args=(s, t)) for s, t in ROUNDED_DOWN],
)
def test_rounding_towards_zero_never_grows_a_number(source: str, target: str) -> None:
    x = np.where(np.isinf(values(source)), 1.0, values(source))
    found = evaluate(
        {"x": tensor(x, source)},
        {
            "rtz": Row(f"x.to({tl_name(target)}, fp_downcast_rounding='rtz')", target),
            "rtne": Row(f"x.to({tl_name(target)}, fp_downcast_rounding='rtne')", target),
        },
    )
    fits = np.abs(x) <= FORMATS[target].largest
    down = np.where(fits, round_to(x, target, "rtz"), 0)
    assert_same(np.where(fits, array(result(found, "rtz")), 0), down)
    near = np.where(fits, round_to(x, target), 0)
    assert_same(np.where(fits, array(result(found, "rtne")), 0), near)


def test_every_half_converts_exactly_to_wider_floats() -> None:
    for source in ("fp16", "bf16"):
        codes = np.arange(1 << 16, dtype=np.uint16).view(np.int16)
        x = torch.from_numpy(codes).view(FORMATS[source].torch)
        found = evaluate(
            {"x": x},
            {"fp32": Row("x.to(tl.float32)", "fp32"), "fp64": Row("x.to(tl.float64)", "fp64")},
            block=4096,
        )
        assert_same_bits(array(result(found, "fp32")), array(x))
        assert_same_bits(array(result(found, "fp64")), array(x))


@pytest.mark.parametrize("target", ["fp16", "bf16"])
def test_fp32_rounds_to_the_nearest_half_at_every_tie(target: str) -> None:
    """All halves, the midpoints between them, and the fp32 numbers next to those."""
    bits = np.arange(1 << 15, dtype=np.int16)
    halves = array(torch.from_numpy(bits).view(FORMATS[target].torch))
    halves = halves[np.isfinite(halves)]
    middle = (halves[:-1] + halves[1:]) / 2
    near = middle.astype(np.float32)
    points = np.concatenate(
        [near, np.nextafter(near, np.float32(0)), np.nextafter(near, np.float32(np.inf))]
    ).astype(np.float64)
    points = np.concatenate([points, -points])
    x = np.resize(points, (points.size + 4095) // 4096 * 4096)
    found = evaluate(
        {"x": tensor(x, "fp32")}, {"half": Row(f"x.to({tl_name(target)})", target)}, 4096
    )
    assert_same_bits(array(result(found, "half")), round_to(x, target))


# -- float8e4b15, which has no torch dtype: kernels see its bytes as integers --------------------

E4B15 = np.array([(m + 8 * (e > 0)) * 2.0 ** (max(e, 1) - 18) for e in range(16) for m in range(8)])
E4B15_LARGEST = 0x7E


@pytest.mark.parametrize(
    "target", [covered("from tl.float8e4b15", d, args=(d,)) for d in ("fp16", "bf16", "fp32")]
)
def test_every_float8e4b15_code_decodes_exactly(target: str) -> None:
    codes = tensor(np.arange(256), "uint8")
    text = f"x.to(tl.float8e4b15, bitcast=True).to({tl_name(target)})"
    found = evaluate({"x": codes}, {"decoded": Row(text, target)})
    assert_same_bits(array(result(found, "decoded")), np.concatenate([E4B15, -E4B15]))


@pytest.mark.parametrize(
    "source", [covered("to tl.float8e4b15", d, args=(d,)) for d in ("fp16", "bf16", "fp32")]
)
def test_float8e4b15_is_the_nearest_and_saturates(source: str) -> None:
    """Ties go away from zero. Wider sources are truncated to fp16 first, as on a GPU."""
    numbers = E4B15[: E4B15_LARGEST + 1]
    middles = (numbers[:-1] + numbers[1:]) / 2
    points = np.concatenate([numbers, middles, middles * 1.01, middles * 0.99])
    points = round_to(np.concatenate([points, [1.875, 2.0, 1e4, np.inf]]), source)
    points = np.resize(np.concatenate([points, -points]), 1024)
    text = "x.to(tl.float8e4b15).to(tl.uint8, bitcast=True)"
    found = evaluate({"x": tensor(points, source)}, {"codes": Row(text, "uint8")})
    half = np.abs(round_to(np.clip(points, -2, 2), "fp16", "rtz"))
    codes = np.searchsorted(middles, half, side="right")  # a middle belongs to the code above it
    want = np.where(np.signbit(points), codes | 0x80, codes)
    assert_same(array(result(found, "codes")), want)
