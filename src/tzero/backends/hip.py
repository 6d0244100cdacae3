"""HIP C++ for AMD's GPUs, compiled by hipcc, launched on torch's current stream.

    source ── kernel ──► declaration, Request ── hipcc ──► code object ── libamdhip64 ──► function

Enters: HIP C++ text. Leaves: a kernel for ``k[grid](..., block=...)``, behind the same launcher as
CUDA C++ (`gpu_source`). Compiling needs no GPU if the architecture is given; loading and launching
need AMD's library and a torch that was built for ROCm.

A kernel is a function declared ``extern "C" __global__ void``, as in CUDA C++.
"""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import re
import shutil
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any, Literal

from tzero import settings
from tzero.backends import c_source, gpu_source
from tzero.compile.request import Artifact, Request
from tzero.errors import InvalidKernel, ToolchainMissing

__all__ = ["Hip", "HipKernel", "backend", "kernel"]

_STANDARD = "-std=c++17"
_PLACES = ("hipcc", "/opt/rocm/bin/hipcc")


def kernel(
    source: str,
    *,
    arch: str | None = None,
    entry: str | None = None,
    block: int | Sequence[int] | None = None,
    shared: int = 0,
    headers: Mapping[str, str] | None = None,
    flags: Sequence[str] = (),
) -> HipKernel:
    """A kernel in HIP C++.

    `source` defines it as ``extern "C" __global__ void``; `entry` names it if there are several.
    `arch` is an architecture such as ``gfx90a``; the default is that of the current device at the
    first use. `block` (threads of a block) and `shared` (bytes of dynamic shared memory) can be
    given at each launch instead. `headers` maps the name in an ``#include`` to its text; `flags` go
    to the compiler.

    >>> k = kernel('''
    ... #include <hip/hip_runtime.h>
    ... extern "C" __global__ void scale(const float *x, float *out, int64_t n, float by) {
    ...     int64_t i = blockIdx.x * int64_t(blockDim.x) + threadIdx.x;
    ...     if (i < n) out[i] = by * x[i];
    ... }
    ... ''', arch="gfx90a", block=256)
    >>> k
    <hip kernel scale>

    Launch it as ``k[(4,)](x, out, x.numel(), 2.0)``. ``k.precompile().result()`` has the code
    object, as ``.files["kernel.hsaco"]``.
    """
    function = c_source.choose(source, entry, gpu_source.is_kernel, gpu_source.WHAT)
    if arch is not None and not re.fullmatch(r"gfx[0-9a-f]+(:\w+[+-])*", arch):
        raise InvalidKernel(
            kernel=function.name,
            problem=f"arch is {arch!r}",
            advice="An architecture is written as 'gfx90a' or 'gfx90a:xnack-'.",
        )
    own = f"{function.name}.hip"
    texts = c_source.beside(headers or {}, own, source)
    program = c_source.Program(f'#include "{own}"\n', texts, (_STANDARD, *flags))
    return HipKernel(function, program, gpu_source.defaults(function.name, block, shared), arch)


class HipKernel(gpu_source.GpuKernel):
    """A kernel in HIP C++; `kernel` makes it.

    ::

        k[(4,)](x, out, x.numel(), 2.0, block=256)
    """

    language = "hip"
    kinds = ("hsaco",)

    def __init__(
        self,
        function: c_source.Function,
        program: c_source.Program,
        defaults: Mapping[str, Any],
        arch: str | None,
    ) -> None:
        super().__init__(function, program.headers, defaults)
        self._program, self._arch = program, arch

    def request(self, kind: str = "hsaco") -> Request:
        """The request that compiles it, for `arch` or the architecture of the current device."""
        path, version = _find()
        program = dataclasses.replace(self._program, target=self._arch or self._current_arch())
        return Request(
            backend.name,
            self.__name__,
            program.written(),
            c_source.toolchain_of(version, "hipcc"),
            _places(path),
        )

    def _current_arch(self) -> str:
        import torch

        if torch.version.hip is None or not torch.cuda.is_available():
            raise InvalidKernel(
                kernel=self.__name__,
                problem="it has no architecture to be compiled for: there is no ROCm device to ask",
                advice="Give one: arch='gfx90a'.",
            )
        return str(torch.cuda.get_device_properties().gcnArchName)

    def driver(self) -> gpu_source.Driver:
        """libamdhip64, if torch was built for it: tensors and streams are torch's."""
        import torch

        if torch.version.hip is None:
            raise ToolchainMissing(
                backend=backend.name,
                searched=["a torch for ROCm"],
                advice="It is compiled, but running it takes a torch that was built for ROCm, and "
                f"a GPU. The code object is {self.__name__}.precompile().result().",
            )
        return _driver()

    def device(self) -> tuple[int, int]:
        """torch's current device and stream."""
        self.driver()  # else torch's error would be about CUDA
        return super().device()

    def target(self, artifact: Artifact) -> SimpleNamespace:
        """What it was compiled for."""
        arch = str(artifact.facts["arch"])
        return SimpleNamespace(
            backend="hip", arch=arch, warp_size=64 if arch.startswith("gfx9") else 32
        )


# -- the library -----------------------------------------------------------------------------------


class _Driver(gpu_source.Driver):
    """libamdhip64, loaded and initialized."""

    name = "HIP"
    launch, load, find = "hipModuleLaunchKernel", "hipModuleLoadData", "hipModuleGetFunction"
    allow = "hipFuncSetAttribute"
    needs = "by a ROCm that the driver knows"

    def __init__(self, library: ctypes.CDLL) -> None:
        super().__init__(library)
        for ask in (library.hipGetErrorName, library.hipGetErrorString):
            ask.restype = ctypes.c_char_p
        self.check("hipInit", library.hipInit(0))

    def enter(self, device: int) -> None:
        """Make a device the current one of this thread, if another is. torch calls the same
        library, so that it sees this too."""
        current = ctypes.c_int()
        self.check("hipGetDevice", self.library.hipGetDevice(ctypes.byref(current)))
        if current.value != device:
            self.check("hipSetDevice", self.library.hipSetDevice(device))

    def words(self, result: int) -> tuple[str, str]:
        """The name and the description of a result."""
        asked = (self.library.hipGetErrorName(result), self.library.hipGetErrorString(result))
        name, text = (f"result {result}" if each is None else each.decode() for each in asked)
        return name, text


def _loaded_by_torch(maps: str = "/proc/self/maps") -> str:
    """The path of the library that is in this process already, which torch may have brought along:
    another copy would know nothing of torch's streams. Empty if there is none."""
    with open(maps, encoding="utf-8", errors="replace") as file:
        paths = (line.split(maxsplit=5)[5:] for line in file if "libamdhip64.so" in line)
        return next((path[0].rstrip("\n") for path in paths if path), "")


@functools.cache
def _driver() -> _Driver:
    try:
        return _Driver(ctypes.CDLL(_loaded_by_torch() or "libamdhip64.so"))
    except OSError as error:
        raise ToolchainMissing(
            backend=backend.name,
            searched=["libamdhip64.so"],
            advice="It is compiled, but running it takes AMD's ROCm and a GPU.",
        ) from error


# -- compiling -------------------------------------------------------------------------------------


_FOR_AMD = ("env", "HIP_PLATFORM=amd")
"""Before hipcc: where nvcc is installed too, hipcc would compile for NVIDIA's GPUs."""


@functools.cache
def _find() -> tuple[str, str]:
    """hipcc, and its version."""
    path = next(filter(None, map(shutil.which, _PLACES)), None)
    if path is None:
        raise ToolchainMissing(
            backend=backend.name,
            searched=_PLACES,
            advice="Install hipcc (Debian: apt-get install hipcc), or AMD's ROCm.",
        )
    words = c_source.run("hipcc's version", [*_FOR_AMD, path, "--version"])
    version = re.findall(r"^(?:HIP version|.*clang version).*$", words, re.MULTILINE)
    return path, f"hipcc {'; '.join(version)}"


def _places(path: str) -> dict[str, str]:
    """The environment of a request: where hipcc is, and the variables that it reads."""
    return {"TZERO_HIPCC": path, **settings.compiler_variables("hipcc")}


class Hip:
    """The backend ``hip``: a code object.

    ::

        backend.compile(k.request()).files["kernel.hsaco"]
    """

    name = "hip"
    runs: Literal["process", "thread"] = "thread"

    def compile(self, request: Request) -> Artifact:
        """Run the compiler."""
        program = c_source.Program.read(request.program)
        words = [*_FOR_AMD, request.environment["TZERO_HIPCC"], "--genco"]
        words += [
            f"--offload-arch={program.target}",
            "-O3",
            "-I.",
            "tzero-main.hip",
            "-o",
            "tzero.hsaco",
            *program.flags,
        ]
        made = c_source.build(
            *(request, program, words),
            source="tzero-main.hip",
            made="tzero.hsaco",
            compiler="hipcc",
        )
        return Artifact({"kernel.hsaco": made}, {"arch": program.target})

    def source(self, request: Request) -> str:
        """The texts of the program."""
        return c_source.source_of(request)

    def for_this_machine(self, request: Request) -> Request:
        """The request with the compiler of this machine, if it is the same."""
        path, version = _find()
        c_source.check_tools(request, version, "hipcc")
        return dataclasses.replace(request, environment=_places(path))


backend = Hip()
