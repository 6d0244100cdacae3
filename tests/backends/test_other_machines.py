"""Requests of another machine: compiled where the tools are the same, else refused."""

from __future__ import annotations

import dataclasses
import multiprocessing
import platform
import shutil
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor

import pytest
import torch
import triton
import triton.language as tl

import tzero
from tzero.adapters.triton_launch import ASTSource, GPUTarget
from tzero.backends import cpp, cpp_pybinding, cuda, halide, hip
from tzero.backends import triton as triton_backend
from tzero.compile import Artifact, Request, on, service, worker
from tzero.compile.backend import OtherTools, find, for_this_machine

CUDA = 'extern "C" __global__ void nothing(float *x) {}'


@triton.jit
def filled(x, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + at, 1.0, mask=at < n)


def of_triton(target: GPUTarget) -> Request:
    signature = {"x": "*fp32", "n": "i32", "BLOCK": "constexpr"}
    source = ASTSource(filled, signature, {(2,): 64}, {})
    made = triton_backend.request(source, target)
    assert isinstance(made, Request)
    return made


def of_halide() -> Request:
    hl = pytest.importorskip("halide", reason="halide is not installed")

    @halide.function(takes={"x": "float32[1]"}, gives="float32[1]")
    def copied(x):
        i, out = hl.Var("i"), hl.Func("out")
        out[i] = x[i]
        return out

    return copied.request()


def needs(program: str) -> None:
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not installed")


def of_nvcc() -> Request:
    needs("nvcc")
    return cuda.kernel(CUDA, arch="sm_90", compiler="nvcc").request()


def of_hip() -> Request:
    needs("hipcc")
    return hip.kernel(f"#include <hip/hip_runtime.h>\n{CUDA}", arch="gfx90a").request()


REQUESTS: dict[str, Callable[[], Request]] = {
    "cpp": lambda: cpp.kernel("void nothing(float *x, tzero::Program program) {}").request(),
    "cpp_pybinding": lambda: cpp_pybinding.function("int one() { return 1; }").request(),
    "nvrtc": lambda: cuda.kernel(CUDA, arch="sm_90", compiler="nvrtc").request(),
    "nvcc": of_nvcc,
    "hip": of_hip,
    "halide": of_halide,
    "triton, cpu": lambda: of_triton(GPUTarget("cpu", platform.machine(), 1)),
    "triton, cuda": lambda: of_triton(GPUTarget("cuda", 90, 32)),
}


@pytest.mark.parametrize("kind", REQUESTS)
def test_a_machine_with_the_same_tools_finds_them_at_its_own_places(kind: str) -> None:
    mine = REQUESTS[kind]()
    elsewhere = {name: f"/not/here{value}" for name, value in mine.environment.items()}
    theirs = dataclasses.replace(mine, environment=elsewhere)
    here = for_this_machine(theirs)
    assert here == mine and dict(here.environment) == dict(mine.environment)


@pytest.mark.parametrize("kind", REQUESTS)
def test_a_machine_with_other_tools_refuses(kind: str) -> None:
    mine = REQUESTS[kind]()
    toolchain = mine.toolchain.replace('"tzero":"', '"tzero":"9.')
    assert toolchain != mine.toolchain
    with pytest.raises(OtherTools, match=r"made with|others than there"):
        for_this_machine(dataclasses.replace(mine, toolchain=toolchain))


def test_a_request_of_another_path_compiles_to_the_same() -> None:
    mine = REQUESTS["triton, cpu"]()
    theirs = dataclasses.replace(mine, environment={"PATH": "/nowhere", "HOME": "/nobody"})
    made = [
        Artifact.decode(worker.compile_to_bytes(each)) for each in (mine, for_this_machine(theirs))
    ]
    assert made[0].facts["hash"] == made[1].facts["hash"]


def test_a_triton_kernel_that_another_process_compiled_runs_here(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TZERO_CACHE", "0")
    kernel, x = tzero.jit(filled), torch.zeros(100)
    context = multiprocessing.get_context("spawn")
    before = service().stats().compiled["executor"]
    with ProcessPoolExecutor(1, mp_context=context) as processes, on(processes):
        kernel[(2,)](x, 100, BLOCK=64)
    assert x.eq(1).all() and service().stats().compiled["executor"] == before + 1


def test_a_library_that_is_another_one_here_is_refused() -> None:
    mine = REQUESTS["triton, cuda"]()
    at = mine.program.index("libdevice")
    program = mine.program[:at] + mine.program[at:].replace("libdevice.10.bc", "missing.bc", 1)
    assert program != mine.program
    with pytest.raises(OtherTools, match="missing here"):
        for_this_machine(dataclasses.replace(mine, program=program))


def test_a_backend_that_would_compile_something_else_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mine = REQUESTS["cpp"]()
    monkeypatch.setattr(
        find("cpp"), "for_this_machine", lambda asked: dataclasses.replace(asked, name="other")
    )
    with pytest.raises(OtherTools, match="something else"):
        for_this_machine(mine)
