"""Operations that move elements without changing them, against numpy's own."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from tests.cpu.cases import COLUMNS, FORMATS, NUMBERS, array, assert_same, covered, empty, tensor

OPS = (
    "tl.join", "tl.split", "tl.interleave", "tl.trans", "tl.permute", "tl.reshape",
    "tl.broadcast_to", "tl.expand_dims", "tl.ravel",
)  # fmt: skip


def numbered(count: int, dtype: str) -> np.ndarray:
    """Distinct values if the dtype has enough of them, else a pattern without symmetry."""
    if dtype == "int1":
        return np.random.default_rng(71).integers(0, 2, count).astype(bool)
    if FORMATS[dtype].bits == 8:
        codes = torch.from_numpy((np.arange(count) * 7 % 113).astype(np.uint8))
        return array(codes.view(FORMATS[dtype].torch)) if dtype.startswith("fp8") else codes.numpy()
    return np.arange(count)


@triton.jit
def shapes_kernel(
    x_ptr, y_ptr, join_ptr, left_ptr, right_ptr, weave_ptr, trans_ptr, permute_ptr, reshape_ptr,
    broadcast_ptr, expand_ptr, ravel_ptr, A: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    """x and y are A by B; each output is written in the row-major order of its own shape."""
    row = tl.arange(0, A)[:, None]
    column = tl.arange(0, B)[None, :]
    x = tl.load(x_ptr + row * B + column)
    y = tl.load(y_ptr + row * B + column)
    pair = tl.arange(0, 2)[None, None, :]
    tl.store(join_ptr + (row * B + column)[:, :, None] * 2 + pair, tl.join(x, y))
    left, right = tl.split(tl.reshape(x, (A, B // 2, 2)))
    half = row * (B // 2) + tl.arange(0, B // 2)[None, :]
    tl.store(left_ptr + half, left)
    tl.store(right_ptr + half, right)
    tl.store(weave_ptr + row * (2 * B) + tl.arange(0, 2 * B)[None, :], tl.interleave(x, y))
    turned = tl.arange(0, B)[:, None] * A + tl.arange(0, A)[None, :]
    tl.store(trans_ptr + turned, tl.trans(x))
    cube = tl.reshape(x, (2, A // 2, B))
    order = (
        tl.arange(0, B)[:, None, None] * A
        + tl.arange(0, 2)[None, :, None] * (A // 2)
        + tl.arange(0, A // 2)[None, None, :]
    )
    tl.store(permute_ptr + order, tl.permute(cube, (2, 0, 1)))
    flat = tl.arange(0, A * B)
    tl.store(reshape_ptr + turned, tl.reshape(x, (B, A)))
    line = tl.load(x_ptr + tl.arange(0, B))
    tl.store(broadcast_ptr + row * B + column, tl.broadcast_to(line[None, :], (A, B)))
    tl.store(expand_ptr + row * B + column, tl.expand_dims(line, 0).broadcast_to(A, B))
    tl.store(ravel_ptr + flat, tl.ravel(x))


@pytest.mark.parametrize(
    "dtype", [pytest.param(d, marks=[pytest.mark.covers(op, d) for op in OPS]) for d in COLUMNS]
)
def test_moving_elements(dtype: str) -> None:
    a, b = 8, 16
    both = numbered(2 * a * b, dtype)
    x, y = both[: a * b].reshape(a, b), both[a * b :].reshape(a, b)
    shapes = [(a, b, 2), (a, b // 2), (a, b // 2), (a, 2 * b), (b, a), (b, 2, a // 2), (b, a)]
    shapes += [(a, b), (a, b), (a * b,)]
    outs = [empty(shape, dtype) for shape in shapes]
    shapes_kernel[(1,)](tensor(x, dtype), tensor(y, dtype), *outs, A=a, B=b)
    names = [*OPS[:1], "left", "right", *OPS[2:]]
    woven = np.stack([x, y], -1).reshape(a, 2 * b)
    wants = [np.stack([x, y], -1), x[:, ::2], x[:, 1::2], woven, x.T]
    wants += [x.reshape(2, a // 2, b).transpose(2, 0, 1), x.reshape(b, a)]
    wants += [np.broadcast_to(x[:1], (a, b)), np.broadcast_to(x[:1], (a, b)), x.ravel()]
    for name, out, want in zip(names, outs, wants, strict=True):
        assert_same(array(out), want, name)


PERMUTATIONS = [(0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0)]


@triton.jit
def permute_kernel(
    x_ptr, y_ptr, A: tl.constexpr, B: tl.constexpr, C: tl.constexpr, P: tl.constexpr,
    Q: tl.constexpr, R: tl.constexpr,
):  # fmt: skip
    at = (
        tl.arange(0, A)[:, None, None] * (B * C)
        + tl.arange(0, B)[None, :, None] * C
        + tl.arange(0, C)[None, None, :]
    )
    flat = tl.arange(0, A * B * C)
    tl.store(y_ptr + flat, tl.ravel(tl.trans(tl.load(x_ptr + at), P, Q, R)))


@pytest.mark.parametrize("order", PERMUTATIONS)
def test_every_permutation_of_three_axes(order: tuple[int, int, int]) -> None:
    x = np.arange(2 * 4 * 8).reshape(2, 4, 8)
    y = empty(64, "int32")
    p, q, r = order
    permute_kernel[(1,)](tensor(x, "int32"), y, A=2, B=4, C=8, P=p, Q=q, R=r)
    assert_same(array(y), x.transpose(order).ravel())


# -- flip, cat and the rest -----------------------------------------------------------------------


@triton.jit
def flip_kernel(x_ptr, y_ptr, A: tl.constexpr, B: tl.constexpr, DIM: tl.constexpr):
    at = tl.arange(0, A)[:, None] * B + tl.arange(0, B)[None, :]
    tl.store(y_ptr + at, tl.flip(tl.load(x_ptr + at), DIM))


FLIPPED = [(d, (-1, 0, 1)[i % 3]) for i, d in enumerate(NUMBERS)]


@pytest.mark.parametrize(
    ("dtype", "dim"), [covered("tl.flip", d, args=(d, dim)) for d, dim in FLIPPED]
)
def test_flip_turns_an_axis_around(dtype: str, dim: int) -> None:
    x = numbered(4 * 16, dtype).reshape(4, 16)
    y = empty((4, 16), dtype)
    flip_kernel[(1,)](tensor(x, dtype), y, A=4, B=16, DIM=dim)
    assert_same(array(y), np.flip(x, dim))


@triton.jit
def cat_kernel(x_ptr, y_ptr, out_ptr, N: tl.constexpr):
    at = tl.arange(0, N)
    both = tl.cat(tl.load(x_ptr + at), tl.load(y_ptr + at), can_reorder=True)
    tl.store(out_ptr + tl.arange(0, 2 * N), both)


@pytest.mark.parametrize("dtype", [covered("tl.cat", d, args=(d,)) for d in NUMBERS])
def test_cat_holds_both_blocks(dtype: str) -> None:
    """Triton may reorder the elements; each must occur once."""
    x, y = np.arange(32), np.arange(64, 96)
    out = empty(64, dtype)
    cat_kernel[(1,)](tensor(x, dtype), tensor(y, dtype), out, N=32)
    assert_same(np.sort(array(out)), np.concatenate([x, y]))


@triton.jit
def ordered_cat_kernel(x_ptr, y_ptr, out_ptr, A: tl.constexpr, B: tl.constexpr, DIM: tl.constexpr):
    at = tl.arange(0, A)[:, None] * B + tl.arange(0, B)[None, :]
    both = tl.cat(tl.load(x_ptr + at), tl.load(y_ptr + at), dim=DIM)
    tl.store(out_ptr + tl.arange(0, 2 * A * B), tl.ravel(both))


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize(
    "dtype", [covered("tl.cat(dim=...)", d, args=(d,), needs="3.9") for d in ("int32", "fp32")]
)
def test_cat_along_an_axis_keeps_the_order(dtype: str, dim: int) -> None:
    x, y = np.arange(32).reshape(4, 8), np.arange(100, 132).reshape(4, 8)
    out = empty(64, dtype)
    ordered_cat_kernel[(1,)](tensor(x, dtype), tensor(y, dtype), out, A=4, B=8, DIM=dim)
    assert_same(array(out), np.concatenate([x, y], dim).ravel())


@triton.jit
def squeeze_kernel(x_ptr, y_ptr, A: tl.constexpr, B: tl.constexpr):
    at = tl.arange(0, A)[:, None] * B + tl.arange(0, B)[None, :]
    x = tl.unsqueeze(tl.load(x_ptr + at), 1)
    tl.store(y_ptr + at, tl.squeeze(x + 1, 1))


@pytest.mark.parametrize(
    "op", [covered("tl.squeeze, tl.unsqueeze", "fp32", args=("s",), needs="3.9")]
)
def test_squeeze_undoes_unsqueeze(op: str) -> None:
    x = np.arange(64.0).reshape(4, 16)
    y = empty((4, 16), "fp32")
    squeeze_kernel[(1,)](tensor(x, "fp32"), y, A=4, B=16)
    assert_same(array(y), x + 1)


@triton.jit
def scalar_join_kernel(x_ptr, y_ptr):
    tl.store(y_ptr + tl.arange(0, 2), tl.join(tl.load(x_ptr), tl.load(x_ptr + 1)))
    pair = tl.load(x_ptr + tl.arange(0, 2))
    left, right = tl.split(pair)
    tl.store(y_ptr + 2, right)
    tl.store(y_ptr + 3, left)


def test_scalars_join_and_split() -> None:
    x, y = tensor([5, 9], "int32"), empty(4, "int32")
    scalar_join_kernel[(1,)](x, y)
    assert y.tolist() == [5, 9, 9, 5]


@triton.jit
def broadcast_kernel(x_ptr, y_ptr, z_ptr, A: tl.constexpr, B: tl.constexpr, C: tl.constexpr):
    """Ranks 1, 2 and 3 and a scalar meet in one expression."""
    a = tl.load(x_ptr + tl.arange(0, A))
    b = tl.load(y_ptr + tl.arange(0, B))
    at = (
        tl.arange(0, A)[:, None, None] * (B * C)
        + tl.arange(0, B)[None, :, None] * C
        + tl.arange(0, C)[None, None, :]
    )
    tl.store(z_ptr + at, a[:, None, None] * 100 + b[:, None] * 10 + tl.arange(0, C) + 1000)


@pytest.mark.parametrize("op", [covered("implicit broadcasting", "int32", args=("b",))])
def test_ranks_meet_by_broadcasting(op: str) -> None:
    z = empty((2, 4, 8), "int32")
    x, y = np.arange(2), np.arange(4)
    broadcast_kernel[(1,)](tensor(x, "int32"), tensor(y, "int32"), z, A=2, B=4, C=8)
    want = x[:, None, None] * 100 + y[:, None] * 10 + np.arange(8) + 1000
    assert_same(array(z), want)


@triton.jit
def copy_kernel(x_ptr, y_ptr, N: tl.constexpr):
    at = tl.program_id(0) * N + tl.arange(0, N)
    tl.store(y_ptr + at, tl.load(x_ptr + at))


@pytest.mark.parametrize("dtype", [covered("tl.load, tl.store", d, args=(d,)) for d in COLUMNS])
def test_load_and_store_keep_every_bit(dtype: str) -> None:
    x = torch.from_numpy(np.random.default_rng(72).integers(0, 256, 4096, dtype=np.uint8))
    x = (x & 1).to(torch.bool) if dtype == "int1" else x.view(FORMATS[dtype].torch)
    y = torch.zeros_like(x)
    copy_kernel[(x.numel() // 64,)](x, y, N=64)
    assert torch.equal(x.view(torch.uint8), y.view(torch.uint8))
