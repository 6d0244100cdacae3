"""Tensor descriptors, made on the host and in the kernel: blocks in, blocks out, edges padded."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from tests.cpu.cases import FORMATS, covered


def padded(x: Tensor, rows: int, columns: int, value: float = 0.0) -> Tensor:
    out = torch.full((rows, columns), value, dtype=x.dtype)
    out[: x.shape[0], : x.shape[1]] = x
    return out


@triton.jit
def host_copy_kernel(source, target, R: tl.constexpr, C: tl.constexpr):
    at = [tl.program_id(0) * R, tl.program_id(1) * C]
    target.store(at, source.load(at) * 2)


@pytest.mark.parametrize(
    "name",
    [
        covered("descriptor load, store", d, args=(d,))
        for d in ("fp32", "fp16", "bf16", "fp64", "int8", "int16", "int32", "int64")
    ],
)
def test_host_descriptors_clip_stores_at_the_edge(name: str) -> None:
    dtype = FORMATS[name].torch
    x = torch.arange(20 * 48).reshape(20, 48).remainder(50).to(dtype)
    whole = torch.full((32, 48), -1, dtype=dtype)
    out = whole[:20]
    blocks = [16, 32]
    source = TensorDescriptor.from_tensor(x, blocks)
    target = TensorDescriptor.from_tensor(out, blocks)
    host_copy_kernel[(2, 2)](source, target, R=16, C=32)
    assert torch.equal(out, x * 2)
    assert whole[20:].eq(-1).all()


@triton.jit
def host_load_kernel(source, out_ptr, row, column, R: tl.constexpr, C: tl.constexpr):
    at = tl.arange(0, R)[:, None] * C + tl.arange(0, C)[None, :]
    tl.store(out_ptr + at, source.load([row, column]))


@pytest.mark.parametrize("padding", ["zero", "nan"])
@pytest.mark.parametrize("corner", [(0, 0), (12, 16), (-8, -16), (40, 0)], ids=str)
def test_loads_past_any_edge_are_padded(padding: str, corner: tuple[int, int]) -> None:
    x = torch.randn(20, 24)
    source = TensorDescriptor.from_tensor(x, [16, 16], padding=padding)
    out = torch.full((16, 16), 7.0)
    host_load_kernel[(1,)](source, out, *corner, R=16, C=16)
    fill = 0.0 if padding == "zero" else float("nan")
    large = torch.full((80, 80), fill)
    large[20:40, 20:44] = x
    row, column = corner[0] + 20, corner[1] + 20
    expected = large[row : row + 16, column : column + 16]
    torch.testing.assert_close(out, expected, rtol=0, atol=0, equal_nan=True)


@triton.jit
def device_transposed_add_kernel(
    x_ptr, y_ptr, out_ptr, rows, columns, R: tl.constexpr, C: tl.constexpr
):
    x = tl.make_tensor_descriptor(x_ptr, [rows, columns], [columns, 1], [R, C])
    y = tl.make_tensor_descriptor(y_ptr, [columns, rows], [rows, 1], [C, R])
    out = tl.make_tensor_descriptor(out_ptr, [rows, columns], [columns, 1], [R, C])
    i, j = tl.program_id(0) * R, tl.program_id(1) * C
    out.store([i, j], x.load([i, j]) + y.load([j, i]).T)


@pytest.mark.covers("tl.make_tensor_descriptor", "fp32")
def test_device_descriptors() -> None:
    x, y = torch.randn(36, 20), torch.randn(20, 36)
    out = torch.full((36, 20), float("nan"))
    device_transposed_add_kernel[(3, 2)](x, y, out, 36, 20, R=16, C=16)
    torch.testing.assert_close(out, x + y.t())


@triton.jit
def device_nan_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    x = tl.make_tensor_descriptor(x_ptr, [n], [1], [BLOCK], padding_option="nan")
    tl.store(out_ptr + tl.arange(0, BLOCK), x.load([16]))


def test_device_descriptor_of_one_dimension_pads_with_nan() -> None:
    x, out = torch.randn(40), torch.zeros(32)
    device_nan_kernel[(1,)](x, out, 40, BLOCK=32)
    assert torch.equal(out[:24], x[16:])
    assert out[24:].isnan().all()


@triton.jit
def five_dimensions_kernel(source, target, A: tl.constexpr):
    at = [tl.program_id(0), 0, 0, 0, 0]
    target.store(at, source.load(at) + 1)


def test_five_dimensions() -> None:
    x = torch.arange(2 * 3 * 3 * 2 * 8, dtype=torch.float32).reshape(2, 3, 3, 2, 8)
    out = torch.zeros_like(x)
    blocks = [1, 4, 4, 2, 8]
    five_dimensions_kernel[(2,)](
        TensorDescriptor.from_tensor(x, blocks), TensorDescriptor.from_tensor(out, blocks), A=1
    )
    assert torch.equal(out, x + 1)


@triton.jit
def gather_kernel(source, rows_ptr, out_ptr, column, R: tl.constexpr, C: tl.constexpr):
    rows = tl.load(rows_ptr + tl.arange(0, R))
    tile = source.gather(rows, column)
    at = tl.arange(0, R)[:, None] * C + tl.arange(0, C)[None, :]
    tl.store(out_ptr + at, tile)


@pytest.mark.covers("descriptor gather", "fp32")
def test_gather_of_rows() -> None:
    x = torch.randn(50, 40)
    rows = torch.tensor([3, 49, 0, 7, 7, 12, 60, 31], dtype=torch.int32)
    out = torch.full((8, 32), float("nan"))
    gather_kernel[(1,)](TensorDescriptor.from_tensor(x, [1, 32]), rows, out, 16, R=8, C=32)
    expected = padded(x, 61, 64)[rows.long(), 16:48]
    assert torch.equal(out, expected)


@triton.jit
def scatter_kernel(target, rows_ptr, x_ptr, column, R: tl.constexpr, C: tl.constexpr):
    rows = tl.load(rows_ptr + tl.arange(0, R))
    at = tl.arange(0, R)[:, None] * C + tl.arange(0, C)[None, :]
    target.scatter(tl.load(x_ptr + at), rows, column)


@pytest.mark.covers("descriptor scatter", "fp32")
def test_scatter_of_rows() -> None:
    x, out = torch.randn(8, 32), torch.zeros(50, 40)
    rows = torch.tensor([3, 49, 0, 7, 8, 12, 60, 31], dtype=torch.int32)
    scatter_kernel[(1,)](TensorDescriptor.from_tensor(out, [1, 32]), rows, x, 16, R=8, C=32)
    expected = torch.zeros(61, 48)
    expected[rows.long(), 16:] = x
    assert torch.equal(out, expected[:50, :40])


@triton.jit
def reduce_kernel(target, x_ptr, OP: tl.constexpr, R: tl.constexpr, C: tl.constexpr):
    at = tl.arange(0, R)[:, None] * C + tl.arange(0, C)[None, :]
    value = tl.load(x_ptr + at)
    if OP == "add":
        target.atomic_add([8, 0], value)
    elif OP == "min":
        target.atomic_min([8, 0], value)
    elif OP == "max":
        target.atomic_max([8, 0], value)
    elif OP == "and":
        target.atomic_and([8, 0], value)
    elif OP == "or":
        target.atomic_or([8, 0], value)
    else:
        target.atomic_xor([8, 0], value)


REDUCTIONS = {
    "add": torch.add,
    "min": torch.minimum,
    "max": torch.maximum,
    "and": torch.bitwise_and,
    "or": torch.bitwise_or,
    "xor": torch.bitwise_xor,
}


@pytest.mark.parametrize(
    "op", [covered(f"descriptor atomic_{op}", "int32", args=(op,)) for op in REDUCTIONS]
)
def test_atomic_reduction_into_a_clipped_block(op: str) -> None:
    torch.manual_seed(0)
    x = torch.randint(-1000, 1000, (16, 16), dtype=torch.int32)
    whole = torch.randint(-1000, 1000, (32, 16), dtype=torch.int32)
    before = whole.clone()
    target = TensorDescriptor.from_tensor(whole[:20], [16, 16])
    reduce_kernel[(1,)](target, x, OP=op, R=16, C=16)
    assert torch.equal(whole[8:20], REDUCTIONS[op](before[8:20], x[:12]))
    assert torch.equal(whole[:8], before[:8])
    assert torch.equal(whole[20:], before[20:])


@pytest.mark.parametrize(
    "name", [covered("descriptor atomic_add", d, args=(d,)) for d in ("fp16", "bf16", "fp32")]
)
def test_atomic_add_from_many_programs(name: str) -> None:
    dtype = FORMATS[name].torch
    x = torch.ones(16, 16, dtype=dtype)
    out = torch.zeros(24, 16, dtype=dtype)
    reduce_kernel[(64,)](TensorDescriptor.from_tensor(out, [16, 16]), x, OP="add", R=16, C=16)
    assert out[8:].eq(64).all()
    assert not out[:8].any()


@triton.jit
def tuple_kernel(sources, target, R: tl.constexpr, C: tl.constexpr):
    total = tl.zeros((R, C), dtype=tl.float32)
    for i in tl.static_range(len(sources)):
        total += sources[i].load([0, 0])
    target.store([0, 0], total)


@pytest.mark.covers("descriptors in tuples", "fp32")
def test_descriptors_in_a_tuple() -> None:
    tensors = [torch.randn(16, 16), torch.randn(10, 16), torch.randn(16, 8)]
    out = torch.full((16, 16), float("nan"))
    sources = tuple(TensorDescriptor.from_tensor(t, [16, 16]) for t in tensors)
    tuple_kernel[(1,)](sources, TensorDescriptor.from_tensor(out, [16, 16]), R=16, C=16)
    torch.testing.assert_close(out, sum(padded(t, 16, 16) for t in tensors))


@triton.jit
def mixed_tuple_kernel(bundle, scale, R: tl.constexpr, C: tl.constexpr):
    at = tl.arange(0, R)[:, None] * C + tl.arange(0, C)[None, :]
    tl.store(bundle[1] + at, bundle[0].load([0, 0]) * scale + bundle[2])


def test_descriptor_beside_other_things_in_a_tuple() -> None:
    x, out = torch.randn(16, 16), torch.zeros(16, 16)
    source = TensorDescriptor.from_tensor(x, [16, 16])
    mixed_tuple_kernel[(1,)]((source, out, 3), 2.5, R=16, C=16)
    torch.testing.assert_close(out, x * 2.5 + 3)


@triton.jit
def shape_kernel(source, out_ptr):
    tl.store(out_ptr, source.shape[0].to(tl.int64))
    tl.store(out_ptr + 1, source.shape[1].to(tl.int64))
    tl.store(out_ptr + 2, source.strides[0].to(tl.int64))
    tl.store(out_ptr + 3, source.strides[1].to(tl.int64))


def test_shape_and_strides_of_a_host_descriptor() -> None:
    base = torch.randn(30, 64)
    out = torch.zeros(4, dtype=torch.int64)
    shape_kernel[(1,)](TensorDescriptor.from_tensor(base[:, :40], [8, 8]), out)
    assert out.tolist() == [30, 40, 64, 1]


@triton.jit
def matmul_kernel(a, b, c, K, M: tl.constexpr, N: tl.constexpr, DEPTH: tl.constexpr):
    i, j = tl.program_id(0) * M, tl.program_id(1) * N
    total = tl.zeros((M, N), dtype=tl.float32)
    for k in range(0, K, DEPTH):
        total = tl.dot(a.load([i, k]), b.load([k, j]), total)
    c.store([i, j], total.to(tl.float16))


def test_matmul_through_descriptors() -> None:
    torch.manual_seed(0)
    a = torch.randn(50, 72, dtype=torch.float16)
    b = torch.randn(72, 40, dtype=torch.float16)
    c = torch.full((50, 40), float("nan"), dtype=torch.float16)
    matmul_kernel[(2, 2)](
        TensorDescriptor.from_tensor(a, [32, 32]),
        TensorDescriptor.from_tensor(b, [32, 32]),
        TensorDescriptor.from_tensor(c, [32, 32]),
        72, M=32, N=32, DEPTH=32,
    )  # fmt: skip
    torch.testing.assert_close(c, (a.float() @ b.float()).half(), atol=1e-2, rtol=1e-2)


@triton.jit
def load_block(source, row, C: tl.constexpr):
    return source.load([row, 0]) * C


@triton.jit
def passed_on_kernel(source, target, rounds, R: tl.constexpr, C: tl.constexpr):
    for i in range(rounds):
        target.store([i * R, 0], load_block(source, i * R, C))


def test_descriptor_passed_to_a_function_in_a_loop() -> None:
    x, out = torch.randn(40, 16), torch.zeros(40, 16)
    passed_on_kernel[(1,)](
        TensorDescriptor.from_tensor(x, [16, 16]), TensorDescriptor.from_tensor(out, [16, 16]), 3,
        R=16, C=16,
    )  # fmt: skip
    torch.testing.assert_close(out, x * 16)
