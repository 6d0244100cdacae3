"""HIP C++ for AMD's GPUs, compiled by hipcc.

Enters: HIP C++ text and an architecture. Leaves: a code object. It must not know how one is run:
tzero compiles for AMD's GPUs but cannot launch on them yet; a launch raises.

A kernel is a function declared ``extern "C" __global__ void``, as in CUDA C++.
"""

from __future__ import annotations

import dataclasses
import functools
import re
import shutil
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from tzero import settings
from tzero.backends import c_source, source_kernel
from tzero.compile.request import Artifact, Request
from tzero.errors import InvalidKernel, ToolchainMissing

__all__ = ["Hip", "HipKernel", "backend", "kernel"]

_WHAT = 'the kernel as `extern "C" __global__ void name(...) { ... }`'
_STANDARD = "-std=c++17"
_PLACES = ("hipcc", "/opt/rocm/bin/hipcc")


def kernel(
    source: str,
    *,
    arch: str,
    entry: str | None = None,
    headers: Mapping[str, str] | None = None,
    flags: Sequence[str] = (),
) -> HipKernel:
    """A kernel in HIP C++, for an architecture such as ``gfx90a``.

    `source` defines it as ``extern "C" __global__ void``; `entry` names it if there are several.
    `headers` maps the name in an ``#include`` to its text; `flags` go to the compiler.

    >>> k = kernel('''
    ... #include <hip/hip_runtime.h>
    ... extern "C" __global__ void scale(const float *x, float *out, int64_t n, float by) {
    ...     int64_t i = blockIdx.x * int64_t(blockDim.x) + threadIdx.x;
    ...     if (i < n) out[i] = by * x[i];
    ... }
    ... ''', arch="gfx90a")
    >>> k
    <hip kernel scale>

    ``k.precompile().result().files["kernel.hsaco"]`` is the code object.
    """
    function = c_source.choose(source, entry, _is_kernel, _WHAT)
    if not re.fullmatch(r"gfx[0-9a-f]+(:\w+[+-])*", arch):
        raise InvalidKernel(
            kernel=function.name,
            problem=f"arch is {arch!r}",
            advice="An architecture is written as 'gfx90a' or 'gfx90a:xnack-'.",
        )
    own = f"{function.name}.hip"
    texts = c_source.beside(headers or {}, own, source)
    program = c_source.Program(f'#include "{own}"\n', texts, (_STANDARD, *flags), arch)
    return HipKernel(function, program)


def _is_kernel(function: c_source.Function) -> bool:
    words = function.head.split()
    return "__global__" in words and words[:2] == ["extern", '"C"']


class HipKernel(source_kernel.Kernel):
    """A kernel in HIP C++; `kernel` makes it.

    ::

        k.precompile().result().files["kernel.hsaco"]
    """

    place = "cuda"  # torch's name for AMD's devices too
    kinds = ("hsaco",)

    def __init__(self, function: c_source.Function, program: c_source.Program) -> None:
        super().__init__(function, source_kernel.checked_parameters(function, source_kernel.RULE))
        self._program = program

    def request(self, kind: str = "hsaco") -> Request:
        """The request that compiles it."""
        path, version = _find()
        return Request(
            backend.name,
            self.__name__,
            self._program.written(),
            c_source.toolchain_of(version, "hipcc"),
            _places(path),
        )

    def device(self) -> tuple[Any, Any]:
        """Raises: there is no launcher."""
        raise self._cannot_run()

    def load(
        self, artifact: Artifact, device: Any, options: Mapping[str, Any]
    ) -> source_kernel.Loaded:
        """Raises: there is no launcher."""
        raise self._cannot_run()

    def options(self, given: dict[str, Any]) -> dict[str, Any]:
        """Any options; launches raise anyway."""
        return given

    def _cannot_run(self) -> ToolchainMissing:
        return ToolchainMissing(
            backend=backend.name,
            searched=["a launcher for AMD's GPUs"],
            advice=f"tzero compiles HIP C++, and does not run it yet: take the code object from "
            f"{self.__name__}.precompile().result(), and load it with hipModuleLoadData.",
        )


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
