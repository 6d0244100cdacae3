"""tl.dot_scaled: microscaling formats, decoded by hand into float64 for the reference."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from tests.cpu.cases import FORMATS, Array, array, assert_same, covered, empty, tensor

FORMAT_DTYPES = {"e4m3": "fp8e4nv", "e5m2": "fp8e5", "bf16": "bf16", "fp16": "fp16"}
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
NEUTRAL = 127  # the e8m0 code of a scale of one


@triton.jit
def scaled_kernel(
    a_ptr, a_scale_ptr, b_ptr, b_scale_ptr, c_ptr, M: tl.constexpr, N: tl.constexpr,
    K: tl.constexpr, A: tl.constexpr, B: tl.constexpr, KA: tl.constexpr, KB: tl.constexpr,
    GROUP: tl.constexpr, A_SCALED: tl.constexpr, B_SCALED: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """KA and KB are the stored lengths of K: half of it where two fp4 numbers share a byte."""
    m, n = tl.arange(0, M), tl.arange(0, N)
    ka, kb, ks = tl.arange(0, KA), tl.arange(0, KB), tl.arange(0, K // GROUP)
    a = tl.load(a_ptr + m[:, None] * KA + ka[None, :])
    b = tl.load(b_ptr + kb[:, None] * N + n[None, :])
    at = m[:, None] * N + n[None, :]
    a_scale = None
    b_scale = None
    if A_SCALED:
        a_scale = tl.load(a_scale_ptr + m[:, None] * (K // GROUP) + ks[None, :])
    if B_SCALED:
        b_scale = tl.load(b_scale_ptr + n[:, None] * (K // GROUP) + ks[None, :])
    if ACC:
        c = tl.dot_scaled(a, a_scale, A, b, b_scale, B, acc=tl.load(c_ptr + at))
    else:
        c = tl.dot_scaled(a, a_scale, A, b, b_scale, B)
    tl.store(c_ptr + at, c)


def operand(shape: tuple[int, int], form: str, seed: int, axis: int) -> tuple[torch.Tensor, Array]:
    """Stored tensor and decoded values; fp4 is packed along `axis`, the first in the low bits."""
    rng = np.random.default_rng(seed)
    if form == "e2m1":
        codes = rng.integers(0, 16, shape)
        low, high = np.split(np.moveaxis(codes, axis, 0).reshape(-1, 2, shape[1 - axis]), 2, 1)
        packed = np.moveaxis((low | high << 4)[:, 0], 0, axis)
        return tensor(np.ascontiguousarray(packed), "uint8"), E2M1[codes]
    values = rng.integers(-4, 5, shape).astype(np.float64)
    return tensor(values, FORMAT_DTYPES[form]), values


def scales(rows: int, groups: int, seed: int) -> tuple[torch.Tensor, Array]:
    codes = np.random.default_rng(seed).integers(NEUTRAL - 2, NEUTRAL + 3, (rows, groups))
    return tensor(codes, "uint8"), 2.0 ** (codes - NEUTRAL)


def scaled_product(
    a_form: str, b_form: str, a_scaled: bool = True, b_scaled: bool = True, c: Array | None = None
) -> tuple[Array, Array]:
    """The kernel's result, and the product of the decoded operands."""
    m, n, k = 32, 16, 64
    a, a_values = operand((m, k), a_form, 111, axis=1)
    b, b_values = operand((k, n), b_form, 112, axis=0)
    a_scale, a_factors = scales(m, k // 32, 113)
    b_scale, b_factors = scales(n, k // 32, 114)
    out = empty((m, n), "fp32") if c is None else tensor(c, "fp32")
    scaled_kernel[(1,)](
        a, a_scale, b, b_scale, out, M=m, N=n, K=k, A=a_form, B=b_form, KA=a.shape[1],
        KB=b.shape[0], GROUP=32, A_SCALED=a_scaled, B_SCALED=b_scaled, ACC=c is not None,
    )  # fmt: skip
    if a_scaled:
        a_values = a_values * a_factors.repeat(32, 1)
    if b_scaled:
        b_values = b_values * b_factors.repeat(32, 1).T
    return array(out), a_values @ b_values + (0 if c is None else c)


def stored(*forms: str) -> tuple[str, ...]:
    """The dtypes that hold these formats, each once."""
    return tuple(dict.fromkeys(FORMAT_DTYPES.get(form, "uint8") for form in forms))


PAIRS = [
    ("e4m3", "e4m3"), ("e5m2", "e5m2"), ("e2m1", "e2m1"), ("e4m3", "e5m2"), ("e2m1", "e4m3"),
    ("e5m2", "e2m1"), ("bf16", "e4m3"), ("e2m1", "bf16"), ("fp16", "e5m2"), ("fp16", "e2m1"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("a", "b"),
    [covered(f"tl.dot_scaled ({a} x {b})", *stored(a, b), args=(a, b)) for a, b in PAIRS],
)
def test_scaled_products_of_two_formats(a: str, b: str) -> None:
    """All values have so few bits that the product is exact, so there is no tolerance."""
    got, want = scaled_product(a, b, a not in ("bf16", "fp16"), b not in ("bf16", "fp16"))
    assert_same(got, want)


@pytest.mark.parametrize(("a_scaled", "b_scaled"), [(True, False), (False, True), (False, False)])
def test_a_missing_scale_is_one(a_scaled: bool, b_scaled: bool) -> None:
    got, want = scaled_product("e4m3", "e4m3", a_scaled, b_scaled)
    assert_same(got, want)


@pytest.mark.parametrize("op", [covered("tl.dot_scaled(acc=...)", "fp8e5", args=("acc",))])
def test_a_scaled_product_is_added_to_the_accumulator(op: str) -> None:
    c = np.random.default_rng(115).integers(-9, 10, (32, 16)).astype(np.float64)
    got, want = scaled_product("e5m2", "e5m2", c=c)
    assert_same(got, want)


def test_a_nan_scale_makes_its_group_nan() -> None:
    """e8m0 has no infinity; the code 255 is its NaN."""
    a, a_values = operand((16, 64), "e4m3", 116, axis=1)
    b, b_values = operand((64, 16), "e4m3", 117, axis=0)
    codes = np.full((16, 2), NEUTRAL)
    codes[5, 1] = 255
    out = empty((16, 16), "fp32")
    scaled_kernel[(1,)](
        a, tensor(codes, "uint8"), b, tensor(codes, "uint8"), out, M=16, N=16, K=64, A="e4m3",
        B="e4m3", KA=64, KB=64, GROUP=32, A_SCALED=True, B_SCALED=False, ACC=False,
    )  # fmt: skip
    want = a_values @ b_values
    want[5] = np.nan
    assert_same(array(out), want)


@pytest.mark.parametrize(
    "op", [covered("tl.dot_scaled (fp8 scales)", "uint8", "fp8e4nv", args=("s",))]
)
def test_fp8_scales_cover_sixteen_elements(op: str) -> None:
    """The NVFP4 arrangement: fp4 values, a scale in e4m3 for every 16 of them."""
    a, a_values = operand((16, 64), "e2m1", 118, axis=1)
    b, b_values = operand((64, 16), "e2m1", 119, axis=0)
    rng = np.random.default_rng(120)
    a_scale, b_scale = (rng.choice([0.5, 1.0, 1.5, 2.0, 3.0], (16, 4)) for _ in range(2))
    out = empty((16, 16), "fp32")
    scaled_kernel[(1,)](
        a, tensor(a_scale, "fp8e4nv"), b, tensor(b_scale, "fp8e4nv"), out, M=16, N=16, K=64,
        A="e2m1", B="e2m1", KA=32, KB=32, GROUP=16, A_SCALED=True, B_SCALED=True, ACC=False,
    )  # fmt: skip
    want = (a_values * a_scale.repeat(16, 1)) @ (b_values * b_scale.repeat(16, 1).T)
    assert_same(array(out), want)


@triton.jit
def packed_along_n_kernel(
    a_ptr, b_ptr, s_ptr, c_ptr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr
):
    """fp4 packed along N instead of K."""
    m, n, k, half = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K), tl.arange(0, N // 2)
    a = tl.load(a_ptr + m[:, None] * K + k[None, :])
    b = tl.load(b_ptr + k[:, None] * (N // 2) + half[None, :])
    scale = tl.load(s_ptr + n[:, None] * (K // 32) + tl.arange(0, K // 32)[None, :])
    c = tl.dot_scaled(a, None, "bf16", b, scale, "e2m1", rhs_k_pack=False)
    tl.store(c_ptr + m[:, None] * N + n[None, :], c)


@pytest.mark.parametrize("op", [covered("tl.dot_scaled(rhs_k_pack=False)", "uint8", args=("p",))])
def test_fp4_packed_along_the_other_axis(op: str) -> None:
    a, a_values = operand((16, 64), "bf16", 121, axis=1)
    b, b_values = operand((64, 32), "e2m1", 122, axis=1)
    scale, factors = scales(32, 2, 123)
    out = empty((16, 32), "fp32")
    packed_along_n_kernel[(1,)](a, b, scale, out, M=16, N=32, K=64)
    assert_same(array(out), a_values @ (b_values * factors.repeat(32, 1).T))


def test_the_fp4_table_has_all_sixteen_values() -> None:
    assert FORMATS["fp8e4nv"].largest == 448.0
    assert sorted(set(E2M1.tolist())) == [
        -6,
        -4,
        -3,
        -2,
        -1.5,
        -1,
        -0.5,
        0,
        0.5,
        1,
        1.5,
        2,
        3,
        4,
        6,
    ]
