"""CUDA C++ without a GPU: sources to cubins. What runs is in tests/gpu/test_cuda_kernels.py."""

from __future__ import annotations

import struct
from typing import Any

import pytest
import torch

import tzero
from tzero.backends import cuda
from tzero.compile.backend import find

SCALE = """
#include "factor.h"
__device__ float twice(float value) { return FACTOR * value; }
extern "C" __global__ void __launch_bounds__(256)
scale(const float *__restrict__ x, float *out, int64_t n, float by) {
    int64_t i = blockIdx.x * int64_t(blockDim.x) + threadIdx.x;
    if (i < n) out[i] = by * twice(x[i]);
}
"""
HEADERS = {"factor.h": "#define FACTOR 2\n"}


@pytest.fixture(params=["nvrtc", "nvcc"])
def compiler(request: pytest.FixtureRequest) -> str:
    """Each compiler that is here."""
    try:
        cuda._choose(request.param)
    except tzero.ToolchainMissing as error:
        pytest.skip(str(error))
    return str(request.param)


def architecture(cubin: bytes) -> int:
    """The number of the architecture in a cubin's header."""
    flags: int = struct.unpack_from("<I", cubin, 48)[0]
    return flags >> 8 & 0xFF if cubin[7] == 0x41 else flags & 0xFF


@pytest.mark.parametrize(("arch", "number"), [("sm_80", 80), ("sm_90", 90), ("sm_90a", 90)])
def test_a_kernel_compiles_for_an_architecture_without_a_gpu(
    compiler: Any, arch: str, number: int
) -> None:
    k = cuda.kernel(SCALE, headers=HEADERS, arch=arch, compiler=compiler)
    artifact = k.precompile().result()
    cubin = artifact.files["kernel.cubin"]
    assert cubin.startswith(b"\x7fELF") and b"scale" in cubin
    assert artifact.facts["arch"] == arch
    assert architecture(cubin) == number


def test_the_compilers_words_name_the_kernel_and_its_own_lines(compiler: Any) -> None:
    wrong = SCALE.replace("FACTOR *", "undefined_name *")
    k = cuda.kernel(wrong, headers=HEADERS, arch="sm_90", compiler=compiler)
    with pytest.raises(tzero.CompileFailed) as caught:
        k.precompile().result()
    assert caught.value.kernel == "scale"
    assert "scale.cu(3)" in caught.value.problem and "undefined_name" in caught.value.problem


def test_flags_reach_the_compiler(compiler: Any) -> None:
    text = 'extern "C" __global__ void put(int *out) { *out = VALUE; }'
    k = cuda.kernel(text, arch="sm_90", compiler=compiler, flags=["-DVALUE=42"])
    assert k.precompile().result().files


def test_cudas_own_headers_are_found(compiler: Any) -> None:
    if compiler == "nvrtc" and not cuda._includes():
        pytest.skip("CUDA's headers are not installed")
    text = """
    #include <cuda_fp16.h>
    extern "C" __global__ void halve(__half *x) { *x = __hmul(*x, __float2half(0.5f)); }
    """
    k = cuda.kernel(text, arch="sm_90", compiler=compiler)
    assert k.params[0].declared.type == "*fp16"
    assert k.precompile().result().files


def test_source_architecture_and_flags_are_part_of_what_is_asked_for(compiler: Any) -> None:
    def digest(**changes: Any) -> str:
        options: dict[str, Any] = {"headers": HEADERS, "arch": "sm_90", "compiler": compiler}
        return cuda.kernel(SCALE, **(options | changes)).request().digest

    asked = [digest(), digest(arch="sm_80"), digest(flags=["-G"]), digest(headers={})]
    assert len(set(asked)) == 4
    assert digest(block=128) == asked[0], "the block is a launch's"


def test_a_missing_toolchain_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "_find_nvrtc", lambda: None)
    monkeypatch.setattr(cuda, "_find_nvcc", lambda: None)
    k = cuda.kernel(SCALE, arch="sm_90")
    with pytest.raises(tzero.ToolchainMissing, match=r"NVRTC.*nvcc.*tzero-runtime\[cuda\]"):
        k.request()


def test_nvcc_serves_where_there_is_no_nvrtc(monkeypatch: pytest.MonkeyPatch) -> None:
    if cuda._find_nvcc() is None:
        pytest.skip("nvcc is not installed")
    monkeypatch.setattr(cuda, "_find_nvrtc", lambda: None)
    k = cuda.kernel(SCALE, headers=HEADERS, arch="sm_90")
    assert k.request().toolchain.startswith("nvcc")
    assert k.precompile().result().files["kernel.cubin"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a device to ask")
def test_without_a_device_the_architecture_must_be_given() -> None:
    try:
        cuda._choose(None)
    except tzero.ToolchainMissing as error:
        pytest.skip(str(error))
    with pytest.raises(tzero.InvalidKernel, match=r"no CUDA device to ask.*arch='sm_90'"):
        cuda.kernel(SCALE).request()


@pytest.mark.parametrize(
    ("source", "options", "words"),
    [
        ("__global__ void f(int *x) {}", {}, 'extern "C" __global__ void'),
        ('extern "C" void f(int *x) {}', {}, "no definition of a kernel"),
        (SCALE, {"arch": "hopper"}, "arch is 'hopper'"),
        (SCALE, {"entry": "other"}, "called 'other' \\(found: scale\\)"),
        ('extern "C" __global__ void f(float4 x) {}', {}, "parameter 'x' is declared as 'float4'"),
    ],
)
def test_what_cannot_be_a_kernel_is_refused_when_it_is_made(
    source: str, options: Any, words: str
) -> None:
    with pytest.raises(tzero.InvalidKernel, match=words):
        cuda.kernel(source, **options)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "threads of a block are not given"),
        ({"block": 0}, "the block is 0"),
        ({"block": (1, 2, 3, 4)}, "the block is"),
        ({"block": 32, "shared": -1}, "shared is -1"),
        ({"block": 32, "warps": 1}, "no parameter or option 'warps'"),
    ],
)
def test_a_wrong_option_of_a_launch_is_named(options: Any, words: str) -> None:
    with pytest.raises(tzero.InvalidArgument, match=f"scale: .*{words}"):
        cuda.kernel(SCALE)[(1,)](None, None, 0, 1.0, **options)


def test_a_tensor_on_the_cpu_is_refused_by_name() -> None:
    with pytest.raises(tzero.InvalidArgument, match=r"'x' is on cpu.*runs on a CUDA device"):
        cuda.kernel(SCALE, block=32)[(1,)](torch.ones(2), None, 0, 1.0)


def test_the_backend_is_found_by_its_name() -> None:
    assert find("cuda") is cuda.backend
