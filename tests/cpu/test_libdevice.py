"""All of tl.extra.libdevice, function by function, from the table in libdevice_cases."""

from __future__ import annotations

import functools
import inspect
import zlib
from typing import Any

import mpmath
import numpy as np
import pytest
import torch
from triton.language.extra.cuda import libdevice

from tests.cpu.cases import (
    FORMATS,
    INTEGERS,
    Array,
    array,
    assert_same,
    assert_ulps,
    covered,
    float_edges,
    integer_edges,
    round_to,
    tensor,
)
from tests.cpu.libdevice_cases import CLASSIFIERS, ENTRIES, Domain, Entry, unsigned
from tests.cpu.rows import Row, evaluate, evaluate_each, result

COUNT = 64
CASES = [(name, shown) for name, entry in ENTRIES.items() for shown in entry.variants]


def sample(domain: Domain, dtype: str, seed: int) -> Array:
    """Points of the domain in the dtype; integer arguments without a domain get their edges."""
    rng = np.random.default_rng(seed)
    if dtype in INTEGERS:
        if domain.low == domain.high:
            return integer_edges(dtype, COUNT, seed)
        info = np.iinfo(FORMATS[dtype].numpy)
        low, high = max(int(domain.low), info.min), min(int(domain.high), info.max)
        return rng.integers(low, high, COUNT, dtype=info.dtype, endpoint=True)
    if domain.log:
        return round_to(np.exp(rng.uniform(np.log(domain.low), np.log(domain.high), COUNT)), dtype)
    values = rng.uniform(domain.low, domain.high, COUNT)
    values[: COUNT // 4] = np.rint(values[: COUNT // 4] * 2) / 2  # ties and whole numbers
    small = values[COUNT // 4 : COUNT // 2] * 2.0**-12
    inside = (small > domain.low) & (small < domain.high)
    values[COUNT // 4 : COUNT // 2][inside] = small[inside]
    values = np.clip(values, domain.low, domain.high)
    return round_to(np.where(values == 0, (domain.low + domain.high) / 2 or 0.75, values), dtype)


@functools.cache
def arguments(name: str, shown: str) -> tuple[Array, ...]:
    entry = ENTRIES[name]
    types, _ = entry.variants[shown]
    seed = zlib.crc32(name.encode())
    return tuple(
        sample(d, t, seed + i) for i, (d, t) in enumerate(zip(entry.domains, types, strict=True))
    )


def job(name: str, shown: str) -> tuple[Row, dict[str, torch.Tensor]]:
    types, out = ENTRIES[name].variants[shown]
    names = "xyzw"[: len(types)]
    inputs = zip(names, arguments(name, shown), types, strict=True)
    row = Row(f"libdevice.{name}({', '.join(names)})", out)
    return row, {n: tensor(v, t) for n, v, t in inputs}


@functools.cache
def computed() -> dict[str, torch.Tensor | Exception]:
    return evaluate_each(
        {f"{name} {shown}": job(name, shown) for name, shown in CASES}, block=COUNT
    )


def reference(entry: Entry, shown: str) -> list[Any]:
    """The exact values, as floats or Python integers."""
    types, out = entry.variants[shown]
    kind = out if FORMATS[out].is_float else types[0]
    extra = {"dtype": kind} if entry.typed else {}
    found = []
    with mpmath.workdps(50):
        for point in zip(*arguments(entry.name, shown), strict=True):
            values = [
                int(v) if t in INTEGERS else mpmath.mpf(float(v))
                for v, t in zip(point, types, strict=True)
            ]
            value = entry.reference(*values, **extra)
            found.append(float(value) if FORMATS[out].is_float else int(value))
    return found


@pytest.mark.parametrize(
    ("name", "shown"), [covered(f"libdevice.{n}", s, args=(n, s)) for n, s in CASES]
)
def test_a_function_meets_its_documented_error(name: str, shown: str) -> None:
    entry = ENTRIES[name]
    _, out = entry.variants[shown]
    got = array(result(computed(), f"{name} {shown}"))
    want = reference(entry, shown)
    if not FORMATS[out].is_float:
        bits = FORMATS[out].bits
        wrapped = np.array([unsigned(v, bits) for v in want], dtype=f"uint{bits}")
        assert_same(got, wrapped.view(FORMATS[out].numpy))
        return
    expected = np.array(want)
    ulps = entry.ulps.get(out, 0.0)
    if entry.floor:
        small = np.abs(expected) < entry.floor
        off = np.abs(got - expected)[small]
        unit = entry.floor * 2.0 ** (1 - FORMATS[out].digits)
        assert (off <= ulps * unit).all(), f"{off.max() / unit:.1f} ulp at magnitude {entry.floor}"
        got, expected = np.where(small, 1.0, got), np.where(small, 1.0, expected)
    assert_ulps(got, expected, out, ulps, *arguments(name, shown))


FROM_FLOATS = [
    (name, shown)
    for name, entry in ENTRIES.items()
    for shown, (types, out) in entry.variants.items()
    if FORMATS[out].is_float and FORMATS[types[0]].is_float and "_as_" not in name
]


@functools.cache
def with_nan() -> dict[str, torch.Tensor | Exception]:
    jobs = {}
    for name, shown in FROM_FLOATS:
        row, inputs = job(name, shown)
        inputs["x"] = torch.full_like(inputs["x"], float("nan"))
        jobs[f"{name} {shown}"] = (row, inputs)
    return evaluate_each(jobs, block=COUNT)


@pytest.mark.parametrize(("name", "shown"), FROM_FLOATS)
def test_a_nan_argument_gives_nan(name: str, shown: str) -> None:
    got = array(result(with_nan(), f"{name} {shown}"))
    assert_same(got, np.full(COUNT, ENTRIES[name].nan))


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        covered(f"libdevice.{n}", d, args=(n, d))
        for n, (types, _) in CLASSIFIERS.items()
        for d in types
    ],
)
def test_classifiers_know_every_special_value(name: str, dtype: str) -> None:
    x = float_edges(dtype, 256, 131)
    found = evaluate({"x": tensor(x, dtype)}, {"is": Row(f"libdevice.{name}(x) != 0", "int1")})
    assert_same(array(result(found, "is")), CLASSIFIERS[name][1](x))


@pytest.mark.parametrize(
    "dtype", [covered("libdevice.pow (int exponent)", d, args=(d,)) for d in ("fp32", "fp64")]
)
def test_integer_powers(dtype: str) -> None:
    rng = np.random.default_rng(132)
    x, n = round_to(rng.uniform(-3, 3, 256), dtype), rng.integers(-12, 13, 256)
    found = evaluate(
        {"x": tensor(x, dtype), "y": tensor(n, "int32")}, {"pow": Row("libdevice.pow(x, y)", dtype)}
    )
    with mpmath.workdps(40):
        want = np.array([float(mpmath.mpf(v.item()) ** int(k)) for v, k in zip(x, n, strict=True)])
    assert_ulps(array(result(found, "pow")), want, dtype, {"fp32": 4, "fp64": 2}[dtype], x, n)


@pytest.mark.parametrize("op", [covered("libdevice.rcp64h", "fp64", args=("rcp64h",))])
def test_rcp64h_gives_the_upper_word_of_a_reciprocal(op: str) -> None:
    x = np.random.default_rng(133).uniform(0.5, 100, 256)
    found = evaluate({"x": tensor(x, "fp64")}, {"rcp": Row("libdevice.rcp64h(x)", "fp64")})
    got = array(result(found, "rcp"))
    assert (got.view(np.int64) & 0xFFFFFFFF == 0).all()
    np.testing.assert_allclose(got, 1 / x, rtol=2.0**-19)


def test_the_table_names_every_function_of_libdevice() -> None:
    """CUDA's, that is: the signatures are those `tl.extra.libdevice` stands for."""
    theirs = {name for name, value in vars(libdevice).items() if inspect.isfunction(value)}
    ours = set(ENTRIES) | set(CLASSIFIERS) | {"rcp64h"}
    assert theirs == ours, f"missing {sorted(theirs - ours)}, unknown {sorted(ours - theirs)}"
