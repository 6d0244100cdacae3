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
import math
import re
import shutil
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

from tzero import locks, settings
from tzero.backends import c_source, nvrtc, source_kernel
from tzero.compile.request import Artifact, Request
from tzero.errors import (
    InvalidArgument,
    InvalidKernel,
    LaunchFailed,
    ToolchainMissing,
)

__all__ = ["Cuda", "CudaKernel", "backend", "kernel"]

_WHAT = 'the kernel as `extern "C" __global__ void name(...) { ... }`'

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
    function = c_source.choose(source, entry, _is_kernel, _WHAT)
    program = c_source.Program(source, headers or {}, tuple(flags))
    if arch is not None and not re.fullmatch(r"sm_\d+[af]?", arch):
        raise InvalidKernel(
            kernel=function.name,
            problem=f"arch is {arch!r}",
            advice="An architecture is written as 'sm_90' or 'sm_90a'.",
        )
    defaults: dict[str, Any] = {"shared": shared} if block is None else {}
    if block is not None:
        defaults = {"block": _block(function.name, block), "shared": shared}
    return CudaKernel(function, program, defaults, arch, compiler)


def _is_kernel(function: c_source.Function) -> bool:
    words = function.head.split()
    return "__global__" in words and words[:2] == ["extern", '"C"']


def _block(name: str, block: Any) -> tuple[int, int, int]:
    try:
        sizes = source_kernel.grid_of(name, block)
    except InvalidArgument:
        sizes = (0, 0, 0)
    if 0 in sizes:
        raise InvalidArgument(
            kernel=name,
            problem=f"the block is {block!r}",
            advice="A block is one to three numbers of threads, each at least 1.",
        )
    return sizes


class CudaKernel(source_kernel.Kernel):
    """A kernel in CUDA C++; `kernel` makes it.

    ::

        k[(4,)](x, out, x.numel(), 2.0, block=256)
    """

    place = "cuda"
    kinds = ("cubin", "ptx", "fatbin", "o")

    def __init__(
        self,
        function: c_source.Function,
        program: c_source.Program,
        defaults: Mapping[str, Any],
        arch: str | None,
        compiler: Compiler | None,
    ) -> None:
        super().__init__(function, source_kernel.checked_parameters(function, source_kernel.RULE))
        own = f"{function.name}.cu"
        self._headers = c_source.beside(program.headers, own, program.text)
        self._text = f'{_PRELUDE}\n#include "{own}"\n'
        self._flags = program.flags
        self._defaults = dict(defaults)
        self._arch = arch
        self._compiler = compiler
        self._modules: dict[
            int, _Module
        ] = {}  # by device; one each, so that all launches share its globals

    def options(self, given: dict[str, Any]) -> dict[str, Any]:
        """The threads of a block and the bytes of shared memory, checked."""
        found = self._defaults | given
        unknown = set(found) - {"block", "shared"}
        super().options({name: given[name] for name in unknown})
        if "block" not in found:
            raise InvalidArgument(
                kernel=self.__name__,
                problem="the threads of a block are not given",
                advice="Launch it with block=256, or make the kernel with it.",
            )
        if "block" in given:
            found["block"] = _block(self.__name__, given["block"])
        if type(found["shared"]) is not int or found["shared"] < 0:
            raise InvalidArgument(
                kernel=self.__name__,
                problem=f"shared is {found['shared']!r}",
                advice="It is a number of bytes.",
            )
        return found

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

    def device(self) -> tuple[int, int]:
        """torch's current device and stream."""
        import torch

        from tzero.adapters.torch_internals import current_cuda_stream

        device = torch.cuda.current_device()
        return device, current_cuda_stream(device)

    def load(
        self, artifact: Artifact, device: Any, options: Mapping[str, Any]
    ) -> source_kernel.Loaded:
        """Load the cubin through the driver, once per device."""
        module = self._modules.get(device)
        if module is None:
            cubin = artifact.files["kernel.cubin"]
            module = self._modules[device] = _Module(self.__name__, cubin, device)
        module.allow(options["shared"])
        signature = {each.name: each.declared.type for each in self.params}
        src = SimpleNamespace(signature=signature, attrs={}, fn=self)
        threads = math.prod(options["block"])
        metadata = SimpleNamespace(
            name=self.__name__,
            target=SimpleNamespace(backend="cuda", arch=artifact.facts["arch"], warp_size=32),
            block=options["block"],
            num_warps=-(-threads // 32),
            shared=options["shared"],
        )
        run = Launcher(self.__name__, list(signature.values()), device, metadata)
        asm = {"cu": self._headers[f"{self.__name__}.cu"], "cubin": artifact.files["kernel.cubin"]}
        return source_kernel.Loaded(self.__name__, src, metadata, run, module.function, asm, module)


# -- launching ------------------------------------------------------------------------------------

_C_TYPES: dict[str, Any] = {
    "i1": ctypes.c_bool,
    "i8": ctypes.c_int8,
    "u8": ctypes.c_uint8,
    "i16": ctypes.c_int16,
    "u16": ctypes.c_uint16,
    "i32": ctypes.c_int32,
    "u32": ctypes.c_uint32,
    "i64": ctypes.c_int64,
    "u64": ctypes.c_uint64,
    "fp32": ctypes.c_float,
    "fp64": ctypes.c_double,
}


class Launcher:
    """Launches one kernel on one device; has the attributes of Triton's launchers."""

    global_scratch_size = 0
    profile_scratch_size = 0
    num_ctas = 1
    launch_cooperative_grid = False
    launch_pdl = False

    def __init__(self, name: str, types: Sequence[str], device: int, metadata: Any) -> None:
        self._name = name
        self._makers = [_maker(type_) for type_ in types]
        self._device = device
        self._block: tuple[int, int, int] = metadata.block
        self._shared: int = metadata.shared
        self._driver = _driver()

    def __call__(
        self,
        grid_x: int,
        grid_y: int,
        grid_z: int,
        stream: int,
        function: int,
        packed_metadata: object,
        launch_metadata: object,
        enter_hook: Callable[[Any], Any] | None,
        exit_hook: Callable[[Any], Any] | None,
        *args: Any,
    ) -> None:
        if enter_hook is not None:
            enter_hook(launch_metadata)
        self._launch((grid_x, grid_y, grid_z), stream, function, args)
        if exit_hook is not None:
            exit_hook(launch_metadata)

    def _launch(
        self, grid: tuple[int, int, int], stream: int, function: int, args: tuple[Any, ...]
    ) -> None:
        for value in args:
            where = getattr(value, "device", None)
            if where is not None and where.index != self._device:
                raise InvalidArgument(
                    kernel=self._name,
                    problem=f"it is given a tensor on {where}, and is launched on "
                    f"cuda:{self._device}, the current device",
                    advice="Pass tensors of one device, inside `with torch.cuda.device(...)`.",
                )
        if 0 in grid:
            return
        values = [make(value) for make, value in zip(self._makers, args, strict=True)]
        params = (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values))
        self._driver.enter(self._device)
        result = self._driver.library.cuLaunchKernel(
            ctypes.c_void_p(function),
            *map(ctypes.c_uint, (*grid, *self._block, self._shared)),
            ctypes.c_void_p(stream),
            params,
            None,
        )
        if result != 0:
            name, text = self._driver.words(result)
            raise LaunchFailed(
                kernel=self._name,
                name=name,
                text=text,
                grid=grid,
                block=math.prod(self._block),
                shared=self._shared,
            )


def _maker(type_: str) -> Callable[[Any], Any]:
    """A function that converts an argument to the C value of a parameter."""
    if type_[0] == "*":
        return lambda value: ctypes.c_void_p(0 if value is None else value.data_ptr())
    if type_ == "fp16":
        return lambda value: ctypes.c_uint16(struct.unpack("<H", struct.pack("<e", value))[0])
    if type_ == "bf16":  # the upper half of a float32, as Triton passes it
        return lambda value: ctypes.c_uint16(struct.unpack("<I", struct.pack("<f", value))[0] >> 16)
    made: Callable[[Any], Any] = _C_TYPES[type_]
    return made


class _Driver:
    """libcuda, loaded and initialized."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self.library = library
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

    def check(self, what: str, result: int) -> None:
        """Raise if a result is an error."""
        if result != 0:
            name, text = self.words(result)
            raise RuntimeError(f"CUDA's driver failed in {what}: {name} ({text}).")


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


_MOST_PLAIN_SHARED = 48 * 1024
_MAX_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES


class _Module:
    """A cubin loaded on a device. Never unloaded: its kernels may be running at any time."""

    def __init__(self, name: str, cubin: bytes, device: int) -> None:
        self._name = name
        self._driver = _driver()
        self._shared = _MOST_PLAIN_SHARED
        self._growing = locks.lock()  # protects `_shared`
        self._driver.enter(device)
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        library = self._driver.library
        self._check(library.cuModuleLoadData(ctypes.byref(module), cubin))
        self._check(library.cuModuleGetFunction(ctypes.byref(function), module, name.encode()))
        assert function.value is not None
        self.function = function.value

    def allow(self, shared: int) -> None:
        """Raise the limit of dynamic shared memory to at least `shared` bytes."""
        with self._growing:
            if shared > self._shared:
                handle = ctypes.c_void_p(self.function)
                limit = ctypes.c_int(shared)
                set_ = self._driver.library.cuFuncSetAttribute
                self._check(set_(handle, _MAX_DYNAMIC_SHARED, limit))
                self._shared = shared

    def _check(self, result: int) -> None:
        if result != 0:
            name, text = self._driver.words(result)
            raise RuntimeError(
                f"{self._name}: CUDA's driver does not load it: {name} ({text}). It must be "
                "compiled for this device's architecture, by a CUDA that the driver knows, and ask "
                "for no more shared memory than there is."
            )


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
