"""What kernels in CUDA C++ and HIP C++ share: blocks of threads, loading, launching.

::

    declaration, Artifact ── GpuKernel.load ── Driver ──► function
    grid, block, arguments ── Launcher ── packed ── Driver ──► launched on torch's current stream

Enters: a kernel's declaration, and the library that loads and launches. Leaves: the attributes that
Triton's launchers have, so that recordings and replays work alike. It must not know how a kernel is
compiled, nor which library it is. Calls go through ctypes, which releases the GIL.
"""

from __future__ import annotations

import abc
import ctypes
import math
import struct
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from tzero import locks
from tzero.backends import c_source, source_kernel
from tzero.compile.request import Artifact
from tzero.errors import InvalidArgument, LaunchFailed

__all__ = ["WHAT", "Driver", "GpuKernel", "Launcher", "defaults", "is_kernel"]

WHAT = 'the kernel as `extern "C" __global__ void name(...) { ... }`'
"""What a source text must define, for messages."""


def is_kernel(function: c_source.Function) -> bool:
    """Whether a function is declared as a kernel."""
    words = function.head.split()
    return "__global__" in words and words[:2] == ["extern", '"C"']


def defaults(name: str, block: Any, shared: int) -> dict[str, Any]:
    """The options of launches that do not give them.

    >>> defaults("add", 256, 0), defaults("add", None, 0)
    ({'block': (256, 1, 1), 'shared': 0}, {'shared': 0})
    """
    given = {} if block is None else {"block": _block(name, block)}
    return {**given, "shared": shared}


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


class Driver(abc.ABC):
    """A library that loads and launches: CUDA's driver, or AMD's HIP. Both have these functions,
    with the same parameters."""

    name: str
    launch: str
    load: str
    find: str
    allow: str
    needs: str
    """What a binary must be compiled by, for messages."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self.library = library

    @abc.abstractmethod
    def enter(self, device: int) -> None:
        """Let the calls of this thread go to a device."""

    @abc.abstractmethod
    def words(self, result: int) -> tuple[str, str]:
        """The name and the description of a result."""

    def call(self, name: str, *args: Any) -> int:
        """Call a function; its result, 0 for success."""
        result: int = getattr(self.library, name)(*args)
        return result

    def check(self, what: str, result: int) -> None:
        """Raise if a result is an error."""
        if result != 0:
            name, text = self.words(result)
            raise RuntimeError(f"{self.name} failed in {what}: {name} ({text}).")


class GpuKernel(source_kernel.Kernel):
    """A kernel in CUDA C++ or HIP C++; the backends' subclasses compile it.

    ::

        k[(4,)](x, out, x.numel(), 2.0, block=256)
    """

    place = "cuda"  # torch's name for AMD's devices too
    language: str
    """The extension of its source file."""

    def __init__(
        self,
        function: c_source.Function,
        headers: Mapping[str, str],
        defaults: Mapping[str, Any],
    ) -> None:
        super().__init__(function, source_kernel.checked_parameters(function, source_kernel.RULE))
        self._headers = dict(headers)  # with its own text
        self._defaults = dict(defaults)
        self._modules: dict[
            int, _Module
        ] = {}  # by device; one each, so that all launches share its globals

    @abc.abstractmethod
    def driver(self) -> Driver:
        """What loads and launches it; `ToolchainMissing` if there is none."""

    @abc.abstractmethod
    def target(self, artifact: Artifact) -> SimpleNamespace:
        """What it was compiled for, as Triton names it."""

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

    def device(self) -> tuple[int, int]:
        """torch's current device and stream."""
        import torch

        from tzero.adapters.torch_internals import current_cuda_stream

        device = torch.cuda.current_device()
        return device, current_cuda_stream(device)

    def load(
        self, artifact: Artifact, device: Any, options: Mapping[str, Any]
    ) -> source_kernel.Loaded:
        """Load the binary through the driver, once per device."""
        driver, kind = self.driver(), self.kinds[0]
        binary = artifact.files[f"kernel.{kind}"]
        module = self._modules.get(device)
        if module is None:
            module = self._modules[device] = _Module(self.__name__, binary, device, driver)
        module.allow(options["shared"])
        signature = {each.name: each.declared.type for each in self.params}
        src = SimpleNamespace(signature=signature, attrs={}, fn=self)
        threads, target = math.prod(options["block"]), self.target(artifact)
        metadata = SimpleNamespace(
            name=self.__name__,
            target=target,
            block=options["block"],
            num_warps=-(-threads // target.warp_size),
            shared=options["shared"],
        )
        run = Launcher(self.__name__, list(signature.values()), device, metadata, driver)
        asm = {self.language: self._headers[f"{self.__name__}.{self.language}"], kind: binary}
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

    def __init__(
        self, name: str, types: Sequence[str], device: int, metadata: Any, driver: Driver
    ) -> None:
        self._name = name
        self._makers = [_maker(type_) for type_ in types]
        self._device = device
        self._block: tuple[int, int, int] = metadata.block
        self._shared: int = metadata.shared
        self._driver = driver

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
        result = self._driver.call(
            self._driver.launch,
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


_MOST_PLAIN_SHARED = 48 * 1024
_MAX_DYNAMIC_SHARED = 8  # the attribute of a function, in CUDA and in HIP


class _Module:
    """A binary loaded on a device. Never unloaded: its kernels may be running at any time."""

    def __init__(self, name: str, binary: bytes, device: int, driver: Driver) -> None:
        self._name = name
        self._driver = driver
        self._shared = _MOST_PLAIN_SHARED
        self._growing = locks.lock()  # protects `_shared`
        driver.enter(device)
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        self._check(driver.call(driver.load, ctypes.byref(module), binary))
        found = driver.call(driver.find, ctypes.byref(function), module, name.encode())
        self._check(found)
        assert function.value is not None
        self.function = function.value

    def allow(self, shared: int) -> None:
        """Raise the limit of dynamic shared memory to at least `shared` bytes."""
        with self._growing:
            if shared > self._shared:
                handle = ctypes.c_void_p(self.function)
                limit = ctypes.c_int(shared)
                driver = self._driver
                self._check(driver.call(driver.allow, handle, _MAX_DYNAMIC_SHARED, limit))
                self._shared = shared

    def _check(self, result: int) -> None:
        if result != 0:
            name, text = self._driver.words(result)
            raise RuntimeError(
                f"{self._name}: {self._driver.name} does not load it: {name} ({text}). It must be "
                f"compiled for this device's architecture, {self._driver.needs}, and ask for no "
                "more shared memory than there is."
            )
