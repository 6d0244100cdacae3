"""CuTe DSL: compiled for real where it is installed; what is said where it is not."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import struct
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import tzero
from tzero.backends import cutedsl
from tzero.compile.backend import find

SCALE = """
import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute


@cute.kernel
def scale_kernel(x: cute.Tensor, out: cute.Tensor, by: cutlass.Float32):
    column, _, _ = cute.arch.thread_idx()
    row, _, _ = cute.arch.block_idx()
    if column < cute.size(x, mode=[1]):
        out[row, column] = by * x[row, column]


@cute.jit
def scale(x: cute.Tensor, out: cute.Tensor, by: cutlass.Float32, stream: cuda.CUstream):
    rows = cute.size(x, mode=[0])
    scale_kernel(x, out, by).launch(grid=[rows, 1, 1], block=[256, 1, 1], stream=stream)
"""
TAKES = {"x": "float32[2]", "out": "float32[2]", "by": "float32"}

needs_cutedsl = pytest.mark.skipif(
    importlib.util.find_spec("cutlass") is None,
    reason="CuTe DSL is not installed (pip install 'tzero-runtime[cutedsl]')",
)


def architectures(binary: bytes) -> Iterator[int]:
    """The numbers of the architectures of the cubins in an object file."""
    at = 0
    while (at := binary.find(b"\x7fELF", at + 1)) > 0:
        flags = struct.unpack_from("<I", binary, at + 48)[0]
        yield flags >> 8 & 0xFF if binary[at + 7] == 0x41 else flags & 0xFF


@needs_cutedsl
def test_a_function_compiles_for_the_architecture_that_is_asked_for_one_after_another() -> None:
    for arch, number in (("sm_90a", 90), ("sm_80", 80)):
        f = cutedsl.function(SCALE, entry="scale", takes=TAKES, arch=arch)
        artifact = f.precompile().result()
        assert artifact.facts["arch"] == arch
        assert list(architectures(artifact.files["function.o"])) == [number]


@needs_cutedsl
def test_what_was_compiled_is_loaded_and_takes_tensors_as_they_are() -> None:
    f = cutedsl.function(SCALE, entry="scale", takes=TAKES, arch="sm_90a")
    call = cutedsl._opened(f.precompile().result().files["function.o"])
    whole = torch.ones(3, 5)
    made = [
        cutedsl._as_cute(port, value)
        for port, value in zip(f._ports, (whole[:, :4], torch.zeros(3, 4), 2.0), strict=True)
    ]
    driver = importlib.import_module("cuda.bindings.driver")
    assert len(call.generate_execution_args(*made, driver.CUstream(0))[0]) == 4


@needs_cutedsl
@pytest.mark.gpu
def test_a_function_runs_on_the_current_stream() -> None:
    f = cutedsl.function(SCALE, entry="scale", takes=TAKES)
    x, out = torch.rand(7, 50, device="cuda"), torch.zeros(7, 50, device="cuda")
    f(x, out, 2.0)
    torch.testing.assert_close(out, 2 * x)


@needs_cutedsl
def test_what_cute_dsl_refuses_is_told_with_the_kernels_name() -> None:
    wrong = SCALE.replace("by * x", "undefined_name * x")
    f = cutedsl.function(wrong, entry="scale", takes=TAKES, arch="sm_90a")
    with pytest.raises(tzero.CompileFailed, match=r"scale: .*undefined_name"):
        f.precompile().result()


def test_a_missing_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    f = cutedsl.function(SCALE, entry="scale", takes=TAKES, arch="sm_90a")
    with pytest.raises(tzero.ToolchainMissing, match=r"pip install 'tzero-runtime\[cutedsl\]'"):
        f.request()


@pytest.mark.parametrize("text", ["float32[", "complex64", "complex64[1]", "matrix"])
def test_a_parameter_that_is_none_is_refused_by_name(text: str) -> None:
    with pytest.raises(tzero.InvalidKernel, match="f cannot be a kernel: parameter 'x'"):
        cutedsl.function("", entry="f", takes={"x": text})


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ((torch.ones(2, 2), None, 1.0), "'x' is on cpu"),
        ((None, None, 1.0), "'x' is None; it is declared as 'float32\\[2\\]'"),
        ((1.0,), "given 1 arguments. It takes 3: x, out, by"),
    ],
)
def test_a_wrong_argument_is_named(args: Any, words: str) -> None:
    f = cutedsl.function(SCALE, entry="scale", takes=TAKES, arch="sm_90a")
    with pytest.raises(tzero.InvalidArgument, match=f"scale: .*{words}"):
        f(*args)


def test_the_backend_is_found_by_its_name() -> None:
    assert find("cutedsl") is cutedsl.backend
