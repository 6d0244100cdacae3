"""Files that kernels in C-like languages are compiled to ahead of time; nothing is loaded."""

from __future__ import annotations

import ctypes
import logging
import shutil
import struct
import subprocess
from pathlib import Path

import pytest
import triton
import triton.language as tl

from tests.backends.test_triton_compiled import CPU, source_of
from tzero import settings
from tzero.backends import cpp, cuda, hip
from tzero.backends import triton as triton_backend
from tzero.cache import stores
from tzero.compile import Artifact, Request, service
from tzero.errors import InvalidArgument

CPP = """
void scale(const float *x, float *out, int64_t n, tzero::Program program) {
    for (int64_t i = program.id[0]; i < n; i += program.grid[0]) out[i] = 2 * x[i];
}
"""
CUDA = 'extern "C" __global__ void scale(float *x) { x[threadIdx.x] *= 2; }'
RELOCATABLE, SHARED = 1, 3


def elf_type(data: bytes) -> int:
    assert data[:4] == b"\x7fELF"
    found: int = struct.unpack_from("<H", data, 16)[0]
    return found


def test_cpp_is_written_as_a_library_and_as_an_object_that_links(tmp_path: Path) -> None:
    k = cpp.kernel(CPP)
    library, object_ = k.write(tmp_path / "scale.so"), k.write(str(tmp_path / "scale.o"))
    assert elf_type(library.read_bytes()) == SHARED
    assert elf_type(object_.read_bytes()) == RELOCATABLE
    linked = tmp_path / "linked.so"
    compiler = cpp.compiler("cpp").command
    subprocess.run([*compiler, "-shared", object_, "-o", linked, "-lstdc++"], check=True)
    assert ctypes.CDLL(str(linked)).tz_kernel
    assert k.device_caches == {}


def test_an_object_and_a_library_are_two_requests() -> None:
    k = cpp.kernel(CPP)
    assert k.request() == k.request("so") and k.request("o").digest != k.request().digest
    other = cuda.kernel(CUDA, arch="sm_90", compiler="nvrtc")
    assert other.request() == other.request("cubin")
    assert other.request("ptx").digest != other.request().digest


def test_cuda_is_written_as_cubin_and_as_ptx(tmp_path: Path) -> None:
    k = cuda.kernel(CUDA, arch="sm_90", compiler="nvrtc")
    assert k.write(tmp_path / "scale.cubin").read_bytes()[:4] == b"\x7fELF"
    text = k.write(tmp_path / "scale.ptx").read_text()
    assert ".entry scale(" in text and ".target sm_90" in text
    assert k.device_caches == {}


@pytest.mark.parametrize("kind", ["ptx", "fatbin", "o"])
def test_nvcc_makes_the_rest(kind: str, tmp_path: Path) -> None:
    if shutil.which("nvcc") is None:
        pytest.skip("nvcc is not installed")
    made = cuda.kernel(CUDA, arch="sm_90", compiler="nvcc").write(tmp_path / f"scale.{kind}")
    data = made.read_bytes()
    if kind == "ptx":
        assert b".entry scale(" in data
    elif kind == "o":
        assert elf_type(data) == RELOCATABLE
    else:
        assert struct.unpack_from("<I", data)[0] == 0xBA55ED50


def test_hip_is_written_as_a_code_object(tmp_path: Path) -> None:
    if shutil.which("hipcc") is None:
        pytest.skip("hipcc is not installed")
    k = hip.kernel(f"#include <hip/hip_runtime.h>\n{CUDA}", arch="gfx90a")
    assert k.write(tmp_path / "scale.hsaco").stat().st_size > 0


@pytest.mark.parametrize("name", ["scale.ptx", "scale", "scale.cubin.so.txt"])
def test_another_extension_says_which_there_are(name: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match=r"ends in \.so, \.o"):
        cpp.kernel(CPP).write(tmp_path / name)
    assert not (tmp_path / name).exists()


@triton.jit
def doubled(x, N: tl.constexpr):
    at = tl.arange(0, N)
    tl.store(x + at, 2 * tl.load(x + at))


def test_a_kernel_that_this_process_compiles_itself_is_counted_as_reloaded(
    tmp_path: Path,
) -> None:
    with settings.override(cache_dir=str(tmp_path)):
        asked = triton_backend.request(source_of(doubled, N=32), CPU)
        assert isinstance(asked, Request)
        stores(settings.now()).put(asked.digest, Artifact({"other": b""}).encode())
        before = service().stats().reloads
        assert triton_backend.compiled(source_of(doubled, N=32), CPU).asm["so"]
        assert service().stats().reloads == before + 1
        triton_backend.compiled(source_of(doubled, N=64), CPU)
    assert service().stats().reloads == before + 1


def test_the_source_of_each_compiled_kernel_is_logged_on_request(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    caplog.set_level(logging.INFO, "tzero")
    with settings.override(cache=False, log_source=True):
        triton_backend.compiled(source_of(doubled, N=128), CPU)
        cpp.kernel(CPP.replace("2 *", "3 *")).write(tmp_path / "scale.o")
    with settings.override(cache=False):
        triton_backend.compiled(source_of(doubled, N=256), CPU)
    logged = [each.message for each in caplog.records if ": the source of " in each.message]
    assert len(logged) == 2
    assert logged[0].startswith("doubled: ") and "    at = tl.arange(0, N)\n" in logged[0]
    assert logged[1].startswith("scale: ") and "out[i] = 3 * x[i];\n" in logged[1]
