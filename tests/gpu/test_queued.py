"""Native launches ask the driver for the same as Triton's, to the byte, with `tzero.install`.

What a launch adds to the arguments is compared: tensor maps of descriptors, scratch memory, launch
attributes. Each launch is made by Triton, then natively.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest
import torch
import triton
import triton.language as tl
from triton.runtime import _allocation
from triton.tools.tensor_descriptor import TensorDescriptor

import tzero
from tests.gpu.queued import Queued, queued
from tests.launches import kernels
from tests.tiers import can_launch, needs_cuda

pytestmark = pytest.mark.gpu

Launch = Callable[[], object]


class Range(NamedTuple):
    start: int
    rest: tuple[Any, ...]


@pytest.fixture(autouse=True)
def _capable() -> None:
    can_launch(2)
    needs_cuda()
    if torch.cuda.get_device_capability() < (9, 0):
        pytest.skip("tensor maps and clusters need compute capability 9.0")


@contextmanager
def installed() -> Iterator[None]:
    tzero.install()
    try:
        yield
    finally:
        tzero.uninstall()


def native() -> int:
    gc.collect()  # kernels of other tests would go, with their counts, between two calls
    return tzero.installed().native


def both(launch: Launch) -> tuple[list[Queued], list[Queued]]:
    """What Triton asks for, and what a native launch asks for."""
    launch()
    theirs = queued(launch)
    with installed():
        launch()  # finds the binary
        before = native()
        mine = queued(launch)
        assert native() == before + len(mine), str(tzero.installed())
    return theirs, mine


def same(launch: Launch) -> None:
    theirs, mine = both(launch)
    assert theirs and mine == theirs


# -- tensor maps -----------------------------------------------------------------------------------


def read_block(source, out, BLOCKS: tl.constexpr, RANK: tl.constexpr, SIZE: tl.constexpr):
    if RANK == 1:
        block = source.load([0])
    elif RANK == 2:
        block = source.load([0, 0])
    elif RANK == 3:
        block = source.load([0, 0, 0])
    elif RANK == 4:
        block = source.load([0, 0, 0, 0])
    else:
        block = source.load([0, 0, 0, 0, 0])
    tl.store(out + tl.arange(0, SIZE), block.reshape(SIZE))


SHAPES = {
    "one dimension": ((512,), [256], torch.float32),
    "f16, 32 bytes wide": ((40, 16), [8, 16], torch.float16),
    "f16, 64 bytes wide": ((40, 64), [8, 32], torch.float16),
    "bf16, 128 bytes wide": ((70, 128), [64, 64], torch.bfloat16),
    "f32": ((33, 36), [16, 32], torch.float32),
    "u8": ((20, 128), [16, 64], torch.uint8),
    "i32": ((20, 64), [4, 16], torch.int32),
    "three dimensions": ((3, 40, 48), [1, 8, 16], torch.float16),
    "four dimensions": ((2, 3, 12, 32), [1, 1, 8, 16], torch.float32),
    "five dimensions": ((2, 2, 3, 12, 32), [1, 1, 1, 8, 16], torch.float16),
}


def filled(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    count = torch.Size(shape).numel()
    return torch.arange(count, device="cuda").remainder(97).to(dtype).reshape(shape)


@pytest.mark.parametrize("padding", ["zero", "nan"])
@pytest.mark.parametrize("name", SHAPES)
def test_tensor_maps_are_those_of_triton(name: str, padding: str) -> None:
    shape, block, dtype = SHAPES[name]
    if padding == "nan" and not dtype.is_floating_point:
        pytest.skip("only floating-point numbers have a NaN")
    source = filled(shape, dtype)
    size = torch.Size(block).numel()
    out = torch.zeros(size, dtype=dtype, device="cuda")
    kernel = triton.jit(read_block)
    descriptor = TensorDescriptor.from_tensor(source, block, padding)

    def launch() -> None:
        kernel[(1,)](descriptor, out, 1, len(block), size)

    same(launch)
    out.zero_()
    with installed():
        launch()
    expected = source[tuple(slice(0, each) for each in block)].reshape(-1)
    assert torch.equal(out, expected)


def test_a_tensor_map_is_made_anew_in_each_launch() -> None:
    kernel, source = triton.jit(kernels.descriptor), filled((64, 64), torch.float32)
    out = torch.zeros(16, 16, device="cuda")
    described = TensorDescriptor.from_tensor(source, [16, 16])
    with installed():
        for k in range(6):
            described.base = source[16 * (k % 3) :]
            described.shape = [64 - 16 * (k % 3), 64]
            before = native()
            kernel[(1,)](described, out, ROWS=16, COLUMNS=16)
            assert native() == before + (k > 0)
            assert torch.equal(out, described.base[:16, :16])
        narrow = filled((16, 32), torch.float32)
        described.base, described.shape, described.strides = narrow, [16, 8], [32, 1]
        kernel[(1,)](described, out, ROWS=16, COLUMNS=16)
        assert torch.equal(out[:, :8], narrow[:, :8]) and not out[:, 8:].any()


def test_what_the_driver_refuses_is_tritons_error() -> None:
    kernel, source = triton.jit(kernels.descriptor), filled((64, 64), torch.float32)
    out = torch.zeros(16, 16, device="cuda")
    described = TensorDescriptor.from_tensor(source, [16, 16])

    def wrong() -> tuple[str, str]:
        bad = TensorDescriptor.from_tensor(source, [16, 16])
        bad.strides = [63, 1]  # not a multiple of 16 bytes
        with pytest.raises(RuntimeError) as found:
            kernel[(1,)](bad, out, ROWS=16, COLUMNS=16)
        bad.strides = [64, 2]
        with pytest.raises(AssertionError):
            kernel[(1,)](bad, out, ROWS=16, COLUMNS=16)
        return type(found.value).__name__, str(found.value).partition("\n")[0]

    kernel[(1,)](described, out, ROWS=16, COLUMNS=16)
    plain = wrong()
    with installed():
        kernel[(1,)](described, out, ROWS=16, COLUMNS=16)
        assert wrong() == plain
        out.zero_()
        kernel[(1,)](described, out, ROWS=16, COLUMNS=16)
    assert torch.equal(out, source[:16, :16])


def two(one, other, out, SIZE: tl.constexpr):
    at = tl.arange(0, SIZE)[:, None] * SIZE + tl.arange(0, SIZE)[None, :]
    tl.store(out + at, one.load([0, 0]) + other.load([SIZE, 0]))


def test_two_descriptors_with_other_arguments_between_them() -> None:
    kernel, out = triton.jit(two), torch.zeros(16, 16, device="cuda")
    one, other = filled((32, 32), torch.float32), filled((64, 16), torch.float32)
    first = TensorDescriptor.from_tensor(one, [16, 16])
    second = TensorDescriptor.from_tensor(other, [16, 16])
    same(lambda: kernel[lambda given: (1,)](first, second, out, 16))
    with installed():
        kernel[(1,)](first, second, out, 16)
    assert torch.equal(out, one[:16, :16] + other[16:32])


# -- tuples ----------------------------------------------------------------------------------------


def sums(out, items, more):
    tl.store(out, items[0] + items[1][0] + tl.load(items[1][1]) + more.start + more.rest[0])


def test_tuples_are_flattened_as_by_triton() -> None:
    kernel, out = triton.jit(sums), torch.zeros(1, device="cuda")
    y = torch.full((1,), 100.0, device="cuda")
    for start in (7, 2**40, 16, 1):
        given = (3, (2.5, y)), Range(start, (1.5, None))
        same(lambda given=given: kernel[(1,)](out, *given))
        with installed():
            kernel[(1,)](out, *given)
        assert out.item() == torch.tensor(107.0 + start, dtype=torch.float32)


# -- scratch memory --------------------------------------------------------------------------------


def described_inside(source, out, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    made = tl.make_tensor_descriptor(source, [ROWS, COLUMNS], [COLUMNS, 1], [ROWS, COLUMNS])
    at = tl.arange(0, ROWS)[:, None] * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    tl.store(out + at, made.load([0, 0]))


def test_scratch_memory_comes_from_the_allocator_of_the_moment() -> None:
    kernel, source = triton.jit(described_inside), filled((16, 16), torch.float32)
    out = torch.zeros(16, 16, device="cuda")
    asked: list[tuple[Any, ...]] = []
    before = _allocation._allocator.get()

    def allocator(name: str) -> Callable[..., Any]:
        def allocate(size: int, alignment: int, stream: int | None) -> torch.Tensor:
            made = torch.empty(size, dtype=torch.int8, device="cuda")
            asked.append((name, size, alignment, stream, made.data_ptr()))
            return made

        return allocate

    def launch() -> None:
        kernel[(2, 3)](source, out, 16, 16)

    try:
        triton.set_allocator(allocator("plain"))
        launch()
        (theirs,) = queued(launch)
        with installed():
            triton.set_allocator(allocator("first"))
            launch()
            triton.set_allocator(allocator("second"))
            count = native()
            (mine,) = queued(launch)
            assert native() == count + 1
            out.zero_()
            launch()
            assert torch.equal(out, source)
            triton.set_allocator(lambda size, alignment, stream: None)
            triton.set_allocator(_allocation._NULL_ALLOCATOR)
            with pytest.raises(RuntimeError, match="no allocator was set"):
                launch()
    finally:
        triton.set_allocator(before)
    assert [each[0] for each in asked] == ["plain"] * 2 + ["first"] + ["second"] * 2
    assert len({each[1:3] for each in asked}) == 1
    stream = torch.cuda.current_stream().cuda_stream
    assert [each[3] for each in (asked[0], asked[2], asked[4])] == [stream] * 3
    assert asked[1][3] != stream  # of the graph
    assert mine.parameters[:-2] == theirs.parameters[:-2]
    assert (mine.sizes, mine.attributes) == (theirs.sizes, theirs.attributes)
    for found, row in ((theirs, asked[1]), (mine, asked[3])):
        assert found.parameters[-2] == row[4].to_bytes(8, "little")
        assert found.parameters[-1] == bytes(8)


@pytest.mark.parametrize("kind", ["integer", "object", "pinned"])
def test_scratch_memory_may_be_what_triton_takes(kind: str) -> None:
    kernel, source = triton.jit(described_inside), filled((16, 16), torch.float32)
    out, before = torch.zeros(16, 16, device="cuda"), _allocation._allocator.get()
    memory = torch.empty(4096, dtype=torch.int8, device="cuda")
    if kind == "pinned":
        memory = torch.empty(4096, dtype=torch.int8).pin_memory()

    class Buffer:
        def data_ptr(self) -> int:
            return memory.data_ptr()

    given: Any = {"integer": memory.data_ptr(), "object": Buffer(), "pinned": memory}[kind]
    triton.set_allocator(lambda size, alignment, stream: given)
    try:
        same(lambda: kernel[(1,)](source, out, 16, 16))
    finally:
        triton.set_allocator(before)


# -- launch attributes -----------------------------------------------------------------------------


def _double(x, out, n, EVEN: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, 2 * tl.load(x + at, mask=at < n), mask=at < n)


OPTIONS = ("num_ctas", "num_warps", "maxnreg")  # of a config

AROUND: dict[str, Callable[[Any, dict[str, Any]], Any]] = {
    "a kernel": lambda kernel, options: kernel,
    "an autotuner": lambda kernel, options: triton.autotune(
        [triton.Config({"BLOCK": 128}, **options)], key=["n"]
    )(kernel),
    "heuristics": lambda kernel, options: triton.heuristics(
        {"EVEN": lambda given: given["n"] % 2 == 0}
    )(kernel),
}


@pytest.mark.parametrize("around", AROUND)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"num_ctas": 2},
        {"num_ctas": 4, "num_warps": 8},
        {"launch_cooperative_grid": True},
        {"launch_pdl": True},
        {"num_ctas": 2, "launch_pdl": True},
        {"maxnreg": 64},
    ],
    ids=str,
)
def test_attributes_are_those_of_triton(around: str, options: dict[str, Any]) -> None:
    kernel = AROUND[around](
        triton.jit(_double), {name: options[name] for name in OPTIONS if name in options}
    )
    x, out = torch.arange(1000.0, device="cuda"), torch.zeros(1000, device="cuda")
    given = {} if around == "heuristics" else {"EVEN": True}
    if around == "an autotuner":
        given |= {name: value for name, value in options.items() if name not in OPTIONS}
    else:
        given |= {"BLOCK": 128, **options}

    def launch() -> None:
        for _ in range(2):
            kernel[(8,)](x, out, 1000, **given)

    same(launch)
    out.zero_()
    with installed():
        launch()
    assert torch.equal(out, 2 * x)


# -- compiled kernels ------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"num_ctas": 2}, {"launch_pdl": True}], ids=str)
def test_a_compiled_kernel_is_launched_natively(options: dict[str, Any]) -> None:
    x, out = torch.arange(1000.0, device="cuda"), torch.zeros(1000, device="cuda")
    kernel = triton.jit(_double)
    compiled = kernel[(8,)](x, out, 1000, True, 128, **options)

    def launch() -> None:
        compiled[(8, 1, 1)](x, out, 1000, True, 128)

    theirs = queued(launch)
    out.zero_()
    with installed():
        before = native()
        launch()
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            launch()
        mine = queued(launch)
        assert native() == before + 3, str(tzero.installed())
        torch.cuda.synchronize()
        assert torch.equal(out, 2 * x)
        with pytest.raises(ValueError, match="cannot be accessed from Triton"):
            compiled[(8, 1, 1)](torch.zeros(1000), out, 1000, True, 128)
        packed, compiled.packed_metadata = compiled.packed_metadata, None
        with pytest.raises((TypeError, SystemError)):  # Triton's own: it reads this
            launch()
        compiled.packed_metadata = packed
        launch()
    assert mine == theirs


def test_a_compiled_kernel_with_a_descriptor_is_left_to_triton() -> None:
    kernel, source = triton.jit(kernels.descriptor), filled((16, 16), torch.float32)
    out = torch.zeros(16, 16, device="cuda")
    described = TensorDescriptor.from_tensor(source, [16, 16])
    compiled = kernel[(1,)](described, out, ROWS=16, COLUMNS=16)
    with installed():
        out.zero_()
        compiled[(1, 1, 1)](described, out, 16, 16)
        assert torch.equal(out, source)


# -- profilers -------------------------------------------------------------------------------------


def _flops(grid: Any, metadata: Any, given: Any) -> dict[str, Any]:
    return {"name": "counted", "flops": float(given["n"])}


def test_a_profiler_that_is_attached_late_sees_launches(tmp_path: Any) -> None:
    proton = pytest.importorskip("triton.profiler")
    x, out = torch.arange(1000.0, device="cuda"), torch.zeros(1000, device="cuda")
    kernel = triton.jit(_double, launch_metadata=_flops)

    def launch() -> None:
        kernel[(8,)](x, out, 1000, True, 128)

    with installed():
        for _ in range(3):
            launch()
        before = native()
        launch()
        assert native() == before + 1
        session = proton.start(str(tmp_path / "seen"), hook="triton")
        for _ in range(5):
            launch()
        torch.cuda.synchronize()
        proton.finalize(session)
        assert native() == before + 1  # they were Triton's
        launch()
        assert native() == before + 2
    text = (tmp_path / "seen.hatchet").read_text()
    assert '"counted"' in text and '"flops": 5000' in text
