"""Functions in NVIDIA's CuTe DSL, compiled ahead of time, called with tensors.

    text of a module ── Request ── a worker imports it, cute.compile ──► object file
    f(x, out, 2.0) ── tensors by DLPack, torch's current stream ──► called

Enters: the text of a module with a ``@cute.jit`` function, and the types of its parameters. Leaves:
a function of tensors. It must not know how CuTe DSL compiles. Compiling needs no GPU. CuTe DSL is
imported in the worker, and here at the first call.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.metadata
import importlib.util
import json
import os
import re
import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from tzero import locks, scratch
from tzero.backends import c_source, source_kernel
from tzero.backends.c_source import Port
from tzero.compile.request import Artifact, Request
from tzero.errors import CompileFailed, InvalidArgument, InvalidKernel, ToolchainMissing

__all__ = ["CuteDsl", "CuteFunction", "backend", "function"]

_TYPES = {
    "bool": "Boolean",
    **{f"int{bits}": f"Int{bits}" for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": f"Uint{bits}" for bits in (8, 16, 32, 64)},
    **{f"float{bits}": f"Float{bits}" for bits in (16, 32, 64)},
    "bfloat16": "BFloat16",
}
_NAMES = {dtype: name for name, dtype in c_source.DTYPES.items()}


def function(
    source: str, *, entry: str, takes: Mapping[str, str], arch: str | None = None
) -> CuteFunction:
    """A function in CuTe DSL, called with tensors on a GPU.

    `source` is the text of a complete module: the worker gets nothing else. `entry` names its
    ``@cute.jit`` function, whose last parameter is a stream, annotated ``cuda.CUstream``. `takes`
    maps the other parameters, in order, to their types: ``float32[2]`` is a tensor with two
    dimensions of any size, the last with stride 1; ``float32`` is a number. `arch` is an
    architecture such as ``sm_90a``; the default is that of the current device at the first use.

    >>> takes = {"x": "float32[1]", "by": "float32"}
    >>> f = function("...", entry="scale", takes=takes, arch="sm_90a")
    >>> f
    <CuTe function scale(x, by)>
    """
    ports = []
    for name, text in takes.items():
        try:
            port = Port.read(name, text)
        except ValueError:
            port = Port(name, "", None)
        if port.dtype not in _TYPES:
            raise InvalidKernel(
                kernel=entry,
                problem=f"parameter {name!r} is said to be {text!r}",
                advice="Write 'float32[2]' for a tensor of two dimensions, 'float32' for a number.",
            )
        ports.append(port)
    return CuteFunction(source, entry, ports, arch)


class CuteFunction:
    """A function in CuTe DSL, called with tensors; `function` makes it. The first call or
    `precompile` compiles it.

    ::

        f(x, out, 2.0)
    """

    def __init__(self, source: str, entry: str, ports: Sequence[Port], arch: str | None) -> None:
        self.__name__ = entry
        self._source = source
        self._ports = list(ports)
        self._arch = arch
        self._calls: dict[str, Any] = {}  # by architecture
        self._loading = locks.lock()  # protects `_calls` while something is loaded

    def request(self) -> Request:
        """The request that compiles it, for `arch` or the architecture of the current device."""
        facts = [self._source, self.__name__, self._ports, self._arch or self._current_arch()]
        return Request(
            backend.name,
            self.__name__,
            json.dumps(facts),
            c_source.toolchain_of(
                f"nvidia-cutlass-dsl {_version()} "
                f"python {'.'.join(map(str, sys.version_info[:2]))}",
                backend.name,
            ),
        )

    def _current_arch(self) -> str:
        import torch

        if not torch.cuda.is_available():
            raise InvalidKernel(
                kernel=self.__name__,
                problem="it has no architecture to be compiled for: there is no CUDA device to ask",
                advice="Give one: arch='sm_90a'.",
            )
        major, minor = torch.cuda.get_device_capability()
        return f"sm_{major}{minor}{'a' if major >= 9 else ''}"

    def precompile(self) -> Any:
        """Start compiling in the background; returns a future."""
        from tzero.compile.service import service

        return service().submit(self.request())

    def __call__(self, *args: Any) -> None:
        """Run it on torch's current stream."""
        source_kernel.check_count(self.__name__, self._ports, args)
        for port, arg in zip(self._ports, args, strict=True):
            self._check(port, arg)
        self._run(args)

    def _check(self, port: Port, arg: Any) -> None:
        star = "" if port.rank is None else "*"
        spelled = port.dtype if port.rank is None else f"{port.dtype}[{port.rank}]"
        parameter = c_source.Parameter(port.name, star + _NAMES[port.dtype], spelled)
        found = source_kernel.check(self.__name__, parameter, "cuda")(arg)
        if port.rank is None:
            return
        problem = ""
        if found is None or found.dim() != port.rank:
            problem = "is None" if found is None else f"has {found.dim()} dimensions"
        elif port.rank and found.size(-1) > 1 and found.stride(-1) != 1:
            problem = f"has strides {tuple(found.stride())}, and its last dimension is not dense"
        if problem:
            raise InvalidArgument(
                kernel=self.__name__,
                argument=port.name,
                problem=f"{problem}; it is declared as {spelled!r}",
                advice="Pass what is declared, or a copy that is contiguous.",
            )

    def _run(self, args: Sequence[Any]) -> None:
        import torch

        arch = self._arch or self._current_arch()
        call = self._calls.get(arch) or self._load(arch)
        cuda = importlib.import_module("cuda.bindings.driver")
        given = [_as_cute(port, arg) for port, arg in zip(self._ports, args, strict=True)]
        call(*given, cuda.CUstream(torch.cuda.current_stream().cuda_stream))

    def _load(self, arch: str) -> Any:
        from tzero.compile.service import service

        artifact = service().compile(self.request())
        with self._loading:
            if arch not in self._calls:
                self._calls[arch] = _opened(artifact.files["function.o"])
        return self._calls[arch]

    def __repr__(self) -> str:
        return f"<CuTe function {self.__name__}({', '.join(p.name for p in self._ports)})>"


def _opened(binary: bytes) -> Any:
    """Load the function from an object file that CuTe DSL exported."""
    runtime = _imported("cutlass.cute.runtime")
    with scratch.folder() as folder:
        path = Path(folder, "function.o")
        path.write_bytes(binary)
        return runtime.load_module(str(path))[_PREFIX]


def _as_cute(port: Port, arg: Any) -> Any:
    if port.rank is None:
        return getattr(_imported("cutlass"), _TYPES[port.dtype])(arg)
    made = _imported("cutlass.cute.runtime").from_dlpack(arg.detach())
    return made.mark_layout_dynamic(leading_dim=port.rank - 1) if port.rank else made


# -- compiling ------------------------------------------------------------------------------------

_PREFIX = "tzero"
"""The prefix of the names of exported functions."""


def _version() -> str:
    try:
        return importlib.metadata.version("nvidia-cutlass-dsl")
    except importlib.metadata.PackageNotFoundError as error:
        raise _missing() from error


def _missing() -> ToolchainMissing:
    return ToolchainMissing(
        backend=backend.name,
        searched=["the nvidia-cutlass-dsl package"],
        advice="Run `pip install 'tzero-runtime[cutedsl]'`.",
    )


def _imported(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise _missing() from error


class CuteDsl:
    """The backend ``cutedsl``: an object file, as CuTe DSL exports it.

    ::

        backend.compile(f.request()).files["function.o"]
    """

    name = "cutedsl"
    runs: Literal["process", "thread"] = "process"

    def warm(self) -> None:
        """Import CuTe DSL."""
        _version()
        _imported("cutlass.cute")

    def compile(self, request: Request) -> Artifact:
        """Import the module's text, and have CuTe DSL compile its function."""
        _version()
        source, entry, ports, arch = json.loads(request.program)
        with scratch.folder() as folder:
            # As a file: CuTe DSL reads the source of functions with inspect.
            path = Path(folder, "module.py")
            path.write_text(source, encoding="utf-8")
            try:
                _compile(path, entry, [Port(*port) for port in ports], arch)
            except ToolchainMissing:
                raise
            except (
                Exception
            ) as error:  # raised by the module or by CuTe DSL; reported with its message
                said = re.sub(r"\x1b\[[0-9;]*m", "", str(error)).strip()
                raise CompileFailed(
                    kernel=request.name,
                    problem=f"{type(error).__name__}: {c_source.gist('CuTe DSL', 1, said)}",
                    trace=f"{traceback.format_exc()}\n{said}",
                ) from error
            return Artifact({"function.o": Path(folder, "function.o").read_bytes()}, {"arch": arch})


def _compile(path: Path, entry: str, ports: Sequence[Port], arch: str) -> None:
    cute = _imported("cutlass.cute")
    runtime = _imported("cutlass.cute.runtime")
    spec = importlib.util.spec_from_file_location(f"tzero_cutedsl_{os.urandom(8).hex()}", path)
    assert spec is not None and spec.loader is not None  # it is a Python file
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where inspect looks for the source of its functions
    try:
        spec.loader.exec_module(module)
        given = [_example(cute, runtime, port) for port in ports]
        # As an option, because CuTe DSL reads the variable CUTE_DSL_ARCH only when it is imported.
        # Exporting then needs its runtime libraries to be loaded.
        for library in runtime.find_runtime_libraries(enable_tvm_ffi=False):
            ctypes.CDLL(library, mode=ctypes.RTLD_GLOBAL)
        options = f"--gpu-arch {arch}"
        stream = runtime.make_fake_stream()
        made = cute.compile(getattr(module, entry), *given, stream, options=options)
        made.export_to_c(str(path.parent), "function", _PREFIX)
    finally:
        del sys.modules[spec.name]


def _example(cute: Any, runtime: Any, port: Port) -> Any:
    """A placeholder for an argument while the function is compiled."""
    kind = getattr(_imported("cutlass"), _TYPES[port.dtype])
    if port.rank is None:
        return kind(0)
    shape = tuple(cute.sym_int() for _ in range(port.rank))
    strides = (*(cute.sym_int64() for _ in range(port.rank - 1)), 1)[: port.rank]
    return runtime.make_fake_tensor(kind, shape, strides)


backend = CuteDsl()
