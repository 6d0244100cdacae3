"""CUDA C++ on a GPU: arguments of a launch, streams, and errors.

How sources become cubins is in tests/backends/test_cuda.py, which needs no GPU.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import tzero
from tzero import events
from tzero.backends import cuda

pytestmark = pytest.mark.gpu

SCALE = """
extern "C" __global__ void scale(const float *x, float *out, int64_t n, float by) {
    int64_t i = blockIdx.x * int64_t(blockDim.x) + threadIdx.x;
    if (i < n) out[i] = by * x[i];
}
"""
SLEEP = 1_000_000_000
"""Cycles that keep a stream busy for a fraction of a second."""


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give each test an empty cache."""
    folder = tmp_path / "cache"
    folder.mkdir(mode=0o700)
    monkeypatch.setenv("TZERO_CACHE_DIR", str(folder))


@pytest.fixture(params=["nvrtc", "nvcc"])
def compiler(request: pytest.FixtureRequest) -> Any:
    """Each compiler that is installed."""
    try:
        cuda._choose(request.param)
    except tzero.ToolchainMissing as error:
        pytest.skip(str(error))
    return request.param


@pytest.fixture
def scale() -> Iterator[cuda.CudaKernel]:
    yield cuda.kernel(SCALE, block=128)
    torch.cuda.synchronize()


def test_a_kernel_runs_as_either_compiler_made_it(compiler: Any) -> None:
    k = cuda.kernel(SCALE, compiler=compiler)
    x = torch.arange(1000.0, device="cuda")
    out = torch.zeros_like(x)
    k[(8,)](x, out, 1000, 2.5, block=128)
    assert torch.equal(out, 2.5 * x)


@pytest.mark.parametrize("block", [32, 100, 256, (64, 1), (128, 1, 1)])
def test_a_block_has_the_threads_that_are_asked_for(scale: cuda.CudaKernel, block: Any) -> None:
    x = torch.ones(1000, device="cuda")
    out = torch.zeros_like(x)
    threads = block if isinstance(block, int) else block[0]
    scale[(3,)](x, out, 1000, 2.0, block=block)
    assert int(out.sum().item()) == 2 * min(1000, 3 * threads)


def test_grids_and_blocks_have_three_dimensions() -> None:
    places = cuda.kernel("""
    extern "C" __global__ void places(int *out) {
        int block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
        int thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
        out[block * blockDim.x * blockDim.y * blockDim.z + thread] = 1000 * block + thread;
    }
    """)
    out = torch.full((2 * 3 * 4, 5 * 2 * 3), -1, dtype=torch.int32, device="cuda")
    places[(2, 3, 4)](out, block=(5, 2, 3))
    expected = 1000 * torch.arange(24)[:, None] + torch.arange(30)
    assert torch.equal(out.cpu(), expected.int())


def test_every_type_of_number_arrives_as_it_is() -> None:
    types = ["bool", "int8_t", "uint8_t", "int16_t", "uint16_t", "int32_t", "uint32_t"]
    types += ["int64_t", "uint64_t", "float", "double"]
    parameters = ", ".join(f"{each} a{k}" for k, each in enumerate(types))
    body = " ".join(f"out[{k}] = a{k};" for k in range(len(types)))
    take = cuda.kernel(f'extern "C" __global__ void take(double *out, {parameters}) {{ {body} }}')
    out = torch.zeros(len(types), dtype=torch.float64, device="cuda")
    values = [True, -128, 255, -32768, 65535, -(2**31), 2**32 - 1, -(2**52), 2**53, 0.5, 1e300]
    take[(1,)](out, *values, block=1)
    assert out.tolist() == [float(each) for each in values]


def test_none_is_a_null_pointer() -> None:
    look = cuda.kernel(
        'extern "C" __global__ void look(const void *x, bool *out) { *out = x == nullptr; }',
        block=1,
    )
    out = torch.zeros(1, dtype=torch.bool, device="cuda")
    look[(1,)](None, out)
    assert out.item()
    look[(1,)](torch.zeros(2, dtype=torch.complex64, device="cuda"), out)
    assert not out.item()


@pytest.mark.parametrize("size", [1024, 64 * 1024])
def test_dynamic_shared_memory_is_there_beyond_the_usual_limit_too(size: int) -> None:
    if torch.cuda.get_device_properties(0).shared_memory_per_block_optin < size:
        pytest.skip(f"this device has less than {size} bytes of shared memory for a block")
    turn = cuda.kernel("""
    extern "C" __global__ void turn(int *x, int n) {
        extern __shared__ int kept[];
        for (int i = threadIdx.x; i < n; i += blockDim.x) kept[n - 1 - i] = x[i];
        __syncthreads();
        for (int i = threadIdx.x; i < n; i += blockDim.x) x[i] = kept[i];
    }
    """)
    n = size // 4
    x = torch.arange(n, dtype=torch.int32, device="cuda")
    turn[(1,)](x, n, block=256, shared=size)
    assert torch.equal(x.cpu(), torch.arange(n, dtype=torch.int32).flip(0))


def test_an_empty_grid_runs_nothing(scale: cuda.CudaKernel) -> None:
    out = torch.zeros(4, device="cuda")
    scale[(0,)](out, out, 4, 1.0)
    assert out.sum().item() == 0


def test_a_launch_runs_on_the_stream_of_the_moment(scale: cuda.CudaKernel) -> None:
    x = torch.ones(8, device="cuda")
    out = torch.zeros_like(x)
    scale[(1,)](x, out, 8, 1.0)
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        out.cpu()
    torch.cuda.synchronize()
    torch.cuda._sleep(SLEEP)
    busy = torch.cuda.Event()
    busy.record()
    with torch.cuda.stream(side):
        scale[(1,)](x, out, 8, 7.0)
        assert out.cpu()[0].item() == 7.0
    assert not busy.query(), "the first stream was done too early for this to prove anything"


def test_launches_are_captured_in_a_graph(scale: cuda.CudaKernel) -> None:
    x = torch.ones(8, device="cuda")
    out = torch.zeros_like(x)
    scale[(1,)](x, out, 8, 1.0)  # loads the kernel, which is not allowed during capture
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        scale[(1,)](x, out, 8, 5.0)
    torch.cuda.synchronize()
    assert out[0].item() == 1.0
    graph.replay()
    torch.cuda.synchronize()
    assert out[0].item() == 5.0


def test_a_thread_that_never_used_the_gpu_may_launch(scale: cuda.CudaKernel) -> None:
    x = torch.ones(64, device="cuda")
    outs = [torch.zeros_like(x) for _ in range(4)]
    torch.cuda.synchronize()
    errors: list[BaseException] = []

    def launch(out: torch.Tensor) -> None:
        try:
            scale[(1,)](x, out, 64, 3.0)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=launch, args=(out,)) for out in outs]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    torch.cuda.synchronize()
    assert errors == []
    assert all(torch.equal(out, 3 * x) for out in outs)


def test_globals_of_the_device_are_one_for_every_block_size() -> None:
    count = cuda.kernel("""
    __device__ int counter = 0;
    extern "C" __global__ void count(int *out) { if (threadIdx.x == 0) *out = ++counter; }
    """)
    out = torch.zeros(1, dtype=torch.int32, device="cuda")
    for k, block in enumerate((32, 64, 32)):
        count[(1,)](out, block=block)
        assert out.item() == k + 1


def test_what_the_driver_refuses_is_told_with_the_launch(scale: cuda.CudaKernel) -> None:
    x = torch.ones(8, device="cuda")
    with pytest.raises(
        tzero.LaunchFailed, match=r"scale: .*CUDA_ERROR_INVALID_VALUE.*4096 threads"
    ):
        scale[(1,)](x, x, 8, 1.0, block=4096)
    scale[(1,)](x, x, 8, 1.0)
    torch.cuda.synchronize()


def test_a_kernel_for_another_architecture_is_not_loaded() -> None:
    major, _ = torch.cuda.get_device_capability()
    other = "sm_80" if major != 8 else "sm_90"
    x = torch.ones(8, device="cuda")
    with pytest.raises(RuntimeError, match="scale: CUDA's driver does not load it"):
        cuda.kernel(SCALE, block=32, arch=other)[(1,)](x, x, 8, 1.0)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_another_dtype_is_refused_by_name(scale: cuda.CudaKernel, dtype: torch.dtype) -> None:
    x = torch.ones(8, device="cuda")
    with pytest.raises(tzero.InvalidArgument, match=f"'out' is a tensor of {dtype}"):
        scale[(1,)](x, x.to(dtype), 8, 1.0)


def test_a_tensor_on_another_device_is_refused(scale: cuda.CudaKernel) -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two CUDA devices")
    x = torch.ones(8, device="cuda:1")
    with pytest.raises(tzero.InvalidArgument, match=r"cuda:1.*launched on cuda:0"):
        scale[(1,)](x, x, 8, 1.0)
    with torch.cuda.device(1):
        scale[(1,)](x, x, 8, 2.0)
    assert x.sum().item() == 16


def test_a_launch_tells_an_event(scale: cuda.CudaKernel) -> None:
    x = torch.ones(8, device="cuda")
    seen: list[events.Event] = []
    with events.observe(seen.append):
        scale[(2,)](x, x, 8, 1.0)
    launches = [event for event in seen if event.kind == "launch"]
    assert [(each.kernel, each.facts["grid"]) for each in launches] == [("scale", (2, 1, 1))]
