"""CUDA C++, compiled by NVRTC or nvcc, launched on torch's current stream.

    source ── kernel ──► declaration, Request ── NVRTC or nvcc ──► cubin ── driver ──► function

Enters: CUDA C++ text. Leaves: a kernel for ``k[grid](..., block=...)``. It must not know Triton.
Compiling needs no GPU if the architecture is given. Loading and launching call libcuda through
ctypes, which releases the GIL.

A kernel is a function declared ``extern "C" __global__ void``.
"""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import importlib.util
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

from tzero import settings
from tzero.backends import c_source, gpu_source, nvrtc
from tzero.compile.request import Artifact, Request
from tzero.errors import (
    InvalidKernel,
    ToolchainMissing,
)

__all__ = ["Cuda", "CudaKernel", "backend", "kernel"]

# NVRTC has no standard headers. The types are those that CUDA's own headers declare for it.
_PRELUDE = """\
#ifdef __CUDACC_RTC__
typedef signed char int8_t;
typedef unsigned char uint8_t;
typedef short int16_t;
typedef unsigned short uint16_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef long long int64_t;
typedef unsigned long long uint64_t;
#else
#include <cstdint>
#endif
"""

_STANDARD = "-std=c++17"

Compiler = Literal["nvrtc", "nvcc"]


def kernel(
    source: str,
    *,
    entry: str | None = None,
    block: int | Sequence[int] | None = None,
    shared: int = 0,
    arch: str | None = None,
    headers: Mapping[str, str] | None = None,
    flags: Sequence[str] = (),
    compiler: Compiler | None = None,
) -> CudaKernel:
    """A kernel in CUDA C++.

    `source` defines it as ``extern "C" __global__ void``; its parameters are numbers, or pointers
    to numbers for tensors. `block` (threads of a block) and `shared` (bytes of dynamic shared
    memory) can be given at each launch instead. `arch` is an architecture such as ``sm_90``; the
    default is that of the current device at the first use. `headers` maps the name in an
    ``#include`` to its text; `flags` go to the compiler. `compiler` is ``nvrtc`` or ``nvcc``; the
    default is NVRTC if it is found.

    >>> k = kernel('''
    ... extern "C" __global__ void scale(const float *x, float *out, int64_t n, float by) {
    ...     int64_t i = blockIdx.x * int64_t(blockDim.x) + threadIdx.x;
    ...     if (i < n) out[i] = by * x[i];
    ... }
    ... ''', block=256)
    >>> k
    <cuda kernel scale>

    Launch it as ``k[(4,)](x, out, x.numel(), 2.0)``, or with ``block=128`` added.
    """
    function = c_source.choose(source, entry, gpu_source.is_kernel, gpu_source.WHAT)
    program = c_source.Program(source, headers or {}, tuple(flags))
    if arch is not None and not re.fullmatch(r"sm_\d+[af]?", arch):
        raise InvalidKernel(
            kernel=function.name,
            problem=f"arch is {arch!r}",
            advice="An architecture is written as 'sm_90' or 'sm_90a'.",
        )
    defaults = gpu_source.defaults(function.name, block, shared)
    return CudaKernel(function, program, defaults, arch, compiler)


class CudaKernel(gpu_source.GpuKernel):
    """A kernel in CUDA C++; `kernel` makes it.

    ::

        k[(4,)](x, out, x.numel(), 2.0, block=256)
    """

    language = "cu"
    kinds = ("cubin", "ptx", "fatbin", "o")

    def __init__(
        self,
        function: c_source.Function,
        program: c_source.Program,
        defaults: Mapping[str, Any],
        arch: str | None,
        compiler: Compiler | None,
    ) -> None:
        own = f"{function.name}.cu"
        super().__init__(function, c_source.beside(program.headers, own, program.text), defaults)
        self._text = f'{_PRELUDE}\n#include "{own}"\n'
        self._flags = program.flags
        self._arch = arch
        self._compiler = compiler

    def driver(self) -> gpu_source.Driver:
        """libcuda."""
        return _driver()

    def target(self, artifact: Artifact) -> SimpleNamespace:
        """What it was compiled for."""
        return SimpleNamespace(backend="cuda", arch=artifact.facts["arch"], warp_size=32)

    def request(self, kind: str = "cubin") -> Request:
        """The request that compiles it, for `arch` or the architecture of the current device."""
        compiler = _choose(self._compiler)
        if kind in ("fatbin", "o") and compiler.name == "nvrtc":
            compiler = _choose("nvcc")
        target = self._arch or self._current_arch()
        target = target if kind == "cubin" else f"{target} {kind}"
        flags = (_STANDARD, *self._flags)
        program = c_source.Program(self._text, self._headers, flags, target)
        return Request(
            backend.name,
            self.__name__,
            program.written(),
            c_source.toolchain_of(compiler.version, compiler.name),
            _places(compiler),
        )

    def _current_arch(self) -> str:
        import torch

        if not torch.cuda.is_available():
            raise InvalidKernel(
                kernel=self.__name__,
                problem="it has no architecture to be compiled for: there is no CUDA device to ask",
                advice="Give one: arch='sm_90'.",
            )
        major, minor = torch.cuda.get_device_capability()
        return f"sm_{major}{minor}"


# -- the driver ------------------------------------------------------------------------------------


class _Driver(gpu_source.Driver):
    """libcuda, loaded and initialized."""

    name = "CUDA's driver"
    launch, load, find = "cuLaunchKernel", "cuModuleLoadData", "cuModuleGetFunction"
    allow = "cuFuncSetAttribute"
    needs = "by a CUDA that the driver knows"

    def __init__(self, library: ctypes.CDLL) -> None:
        super().__init__(library)
        self.check("cuInit", library.cuInit(0))

    def enter(self, device: int) -> None:
        """Make torch's context (the primary one) current in this thread, if it has none."""
        context = ctypes.c_void_p()
        self.check("cuCtxGetCurrent", self.library.cuCtxGetCurrent(ctypes.byref(context)))
        if context.value is None:
            handle = ctypes.c_int()
            self.check("cuDeviceGet", self.library.cuDeviceGet(ctypes.byref(handle), device))
            retained = self.library.cuDevicePrimaryCtxRetain(ctypes.byref(context), handle)
            self.check("cuDevicePrimaryCtxRetain", retained)
            self.check("cuCtxSetCurrent", self.library.cuCtxSetCurrent(context))

    def words(self, result: int) -> tuple[str, str]:
        """The name and the description of a result."""
        found = []
        for ask in (self.library.cuGetErrorName, self.library.cuGetErrorString):
            text = ctypes.c_char_p()
            known = ask(result, ctypes.byref(text)) == 0 and text.value is not None
            found.append(text.value.decode() if known and text.value else f"result {result}")
        return found[0], found[1]


@functools.cache
def _driver() -> _Driver:
    try:
        return _Driver(ctypes.CDLL("libcuda.so.1"))
    except OSError as error:
        raise ToolchainMissing(
            backend=backend.name,
            searched=["libcuda.so.1"],
            advice="It is compiled, but running it takes NVIDIA's driver and a GPU.",
        ) from error


# -- compiling ------------------------------------------------------------------------------------


class _Compiler:
    """A compiler that was found. `version` includes the paths of CUDA's headers."""

    def __init__(self, name: Compiler, path: str, version: str) -> None:
        self.name = name
        self.path = path
        self.version = version


def _choose(name: Compiler | None) -> _Compiler:
    """The compiler of that name; for None, the first that is found."""
    if name not in ("nvrtc", "nvcc", None):
        raise InvalidKernel(
            kernel="a kernel",
            problem=f"compiler is {name!r}",
            advice="It is 'nvrtc', 'nvcc', or None for either.",
        )
    found = (_find_nvrtc() if name != "nvcc" else None) or (
        _find_nvcc() if name != "nvrtc" else None
    )
    if found is None:
        raise ToolchainMissing(
            backend=backend.name,
            searched=["NVRTC (libnvrtc.so)", "nvcc"] if name is None else [name],
            advice="Run `pip install 'tzero-runtime[cuda]'` for NVRTC as a wheel, or install "
            "CUDA's toolkit.",
        )
    return found


def _places(compiler: _Compiler) -> dict[str, str]:
    """The environment of a request: where the compiler is, and the variables that it reads."""
    return {"TZERO_CUDA_COMPILER": compiler.path, **settings.compiler_variables(compiler.name)}


@functools.cache
def _find_nvrtc() -> _Compiler | None:
    for path in _nvrtc_paths():
        try:
            library = ctypes.CDLL(path)
        except OSError:
            continue  # try the next path; the error lists what was searched
        major, minor = ctypes.c_int(), ctypes.c_int()
        if library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)) == 0:
            includes = " ".join(_includes())
            return _Compiler("nvrtc", path, f"nvrtc {major.value}.{minor.value} {includes}".strip())
    return None


def _nvrtc_paths() -> Iterator[str]:
    """Possible paths of NVRTC: NVIDIA's wheels, CUDA toolkits, the loader's search path."""
    for folder in _cuda_folders():
        for lib in ("lib", "lib64", "targets/x86_64-linux/lib"):
            yield from sorted(map(str, Path(folder, lib).glob("libnvrtc.so*")), reverse=True)
    yield from ("libnvrtc.so", "libnvrtc.so.13", "libnvrtc.so.12")


def _cuda_folders() -> Iterator[Path]:
    """Directories that may hold CUDA's libraries and headers."""
    spec = importlib.util.find_spec("nvidia")
    for place in (spec.submodule_search_locations or []) if spec is not None else []:
        yield from sorted((each for each in Path(place).glob("*") if each.is_dir()), reverse=True)
    nvcc = shutil.which("nvcc")
    if nvcc is not None:
        yield Path(nvcc).resolve().parent.parent
    yield from sorted(Path("/usr/local").glob("cuda*"), reverse=True)


def _includes() -> list[str]:
    """The directory of CUDA's headers (cuda_fp16.h and others), if there is one."""
    for folder in _cuda_folders():
        if (folder / "include" / "cuda_fp16.h").exists():
            return [str(folder / "include")]
    return []


@functools.cache
def _find_nvcc() -> _Compiler | None:
    path = shutil.which("nvcc") or shutil.which("/usr/local/cuda/bin/nvcc")
    if path is None:
        return None
    words = c_source.run("nvcc's version", [path, "--version"]).splitlines()
    return _Compiler("nvcc", path, f"nvcc {words[-1].strip() if words else ''}")


def _nvcc(path: str, arch: str, kind: str) -> list[str]:
    """The command that makes a file of a kind with nvcc."""
    makes = "-c" if kind == "o" else f"-{kind}"
    command = [path, makes, f"-arch={arch}", "-I.", "tzero-main.cu", "-o", f"tzero.{kind}"]
    return [*command, "-Xcompiler", "-fPIC"] if kind == "o" else command


class Cuda:
    """The backend ``cuda``: a cubin, or what else `CudaKernel.write` asks for.

    ::

        backend.compile(k.request()).files["kernel.cubin"]
    """

    name = "cuda"
    runs: Literal["process", "thread"] = (
        "thread"  # NVRTC is called through ctypes, which releases the GIL
    )

    def compile(self, request: Request) -> Artifact:
        """Compile with the compiler that the request names."""
        program = c_source.Program.read(request.program)
        arch, _, kind = program.target.partition(" ")
        kind = kind or "cubin"
        path = request.environment["TZERO_CUDA_COMPILER"]
        if request.toolchain.startswith("nvcc"):
            made = c_source.build(
                *(request, program, [*_nvcc(path, arch, kind), *program.flags]),
                source="tzero-main.cu",
                made=f"tzero.{kind}",
                compiler="nvcc",
            )
        else:
            made = nvrtc.compile(request.name, program, arch, kind, ctypes.CDLL(path), _includes())
        return Artifact({f"kernel.{kind}": made}, {"arch": arch})

    def source(self, request: Request) -> str:
        """The texts of the program."""
        return c_source.source_of(request)

    def for_this_machine(self, request: Request) -> Request:
        """The request with the compiler of this machine, if it is the same."""
        name: Compiler = "nvcc" if request.toolchain.startswith("nvcc") else "nvrtc"
        compiler = _choose(name)
        c_source.check_tools(request, compiler.version, compiler.name)
        return dataclasses.replace(request, environment=_places(compiler))


backend = Cuda()
