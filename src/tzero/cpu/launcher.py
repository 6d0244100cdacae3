"""One launch: packs the arguments of Triton's call and runs the grid on the pool.

    (gx, gy, gz, stream, function, ..., *args)
      enter hook ─► values ─► one block of bytes ─► tz_run_packed ─► outcome ─► exit hook

Enters: a kernel's source object and metadata, then the arguments of each call. Leaves: the kernel
has run, or an error that names it. It must not know how kernels are compiled or loaded.
"""

from __future__ import annotations

import ctypes
import math
import operator
import struct
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from tzero.cpu import pool, sealing
from tzero.cpu.triton_compat import Parameter, cache_directory, parameters
from tzero.errors import KernelAssertion, OutOfBounds

__all__ = ["Launcher", "Native"]

Hook = Callable[[Any], Any] | None

# Triton type -> (the parameter's tag in the metadata, struct code).
_SCALARS = {
    "i1": ("i1", "?"),
    "u1": ("i1", "?"),
    "i8": ("i8", "b"),
    "u8": ("i8", "B"),
    "i16": ("i16", "h"),
    "u16": ("i16", "H"),
    "i32": ("i32", "i"),
    "u32": ("i32", "I"),
    "i64": ("i64", "q"),
    "u64": ("i64", "Q"),
    "fp16": ("f16", "e"),
    "bf16": ("bf16", "H"),
    "fp32": ("f32", "f"),
    "f32": ("f32", "f"),
    "fp64": ("f64", "d"),
}

# tz_packed of pool.h: kernel, grid, threads, padding that aligns the arguments.
_HEADER = "@P4i8x"

_ANY_BYTES = (0, ctypes.c_size_t(-1).value)
_NO_BYTES = (0, 0)


class Native(NamedTuple):
    """Addresses of ``tz_run_packed`` and of the kernel's ``tz_program``, valid as long as its
    launcher lives."""

    run: int
    program: int


class Launcher:
    """Launches one compiled kernel; Triton makes one per kernel and calls it per launch.

    Hooks are called as by Triton's CUDA launcher: the enter hook before the arguments are read,
    both hooks also for an empty grid, and no exit hook when the launch raises.
    """

    is_sealed = True
    """Whether the metadata comes from Triton's cache, and needs a seal."""

    def __init__(self, src: Any, metadata: Any) -> None:
        import torch  # not at the top: Triton imports this module during its own import

        directory = cache_directory()
        if self.is_sealed:
            sealing.require(metadata, directory)
        self._tensor = torch.Tensor
        self._allowed_threads = torch.get_num_threads
        self._name: str = metadata.name
        self._sites: Sequence[Sequence[Any]] = metadata.cpu_sites
        self._check: bool = metadata.cpu_check
        self._parameters = parameters(src)
        self._codes = self._codes_for(metadata.cpu_params)
        self._values = _reader(self._parameters)
        self._pointers = [i for i, p in enumerate(self._parameters) if p.type[0] == "*"]
        self._bf16 = [i for i, p in enumerate(self._parameters) if p.type == "bf16"]
        self._pack = struct.Struct(_HEADER + "".join(self._codes)).pack
        self._pool = pool.load(directory)
        self._run = self._pool.run_packed
        self._program = pool.Program(
            scratch=metadata.cpu_scratch,
            work=metadata.cpu_work,
            cooperative=bool(getattr(metadata, "launch_cooperative_grid", False)),
        )
        self._program_ref = ctypes.byref(self._program)

    def __call__(
        self,
        grid_x: int,
        grid_y: int,
        grid_z: int,
        stream: int,
        function: int,
        packed_metadata: object,
        launch_metadata: object,
        enter_hook: Hook,
        exit_hook: Hook,
        *args: Any,
    ) -> None:
        if enter_hook is not None:
            enter_hook(launch_metadata)
        values = self._values(args)
        spans = self._spans(values) if self._check else None
        tensor = self._tensor
        for i in self._pointers:
            value = values[i]
            # The common case is inlined: this loop is most of a launch's cost.
            if value.__class__ is tensor and value.is_cpu:
                address = value.data_ptr()
            else:
                address = self._address(i, value)
            values[i] = address or self._null_address(i, value, (grid_x, grid_y, grid_z))
        for i in self._bf16:
            values[i] = _bf16_bits(values[i])
        threads = self._allowed_threads()
        try:
            packed = self._pack(function, grid_x, grid_y, grid_z, threads, *values)
        except (struct.error, OverflowError):
            packed = self._pack_one_by_one(function, (grid_x, grid_y, grid_z), threads, values)
        outcome = self._run(self._program_ref, packed, spans)
        if outcome:
            raise self.error(outcome, (grid_x, grid_y, grid_z), args)
        if exit_hook is not None:
            exit_hook(launch_metadata)

    def direct(self) -> Callable[..., int] | None:
        """A faster launch for callers that pass addresses instead of CPU tensors:
        ``(function, x, y, z, arguments)`` to an outcome for `error`. It raises `struct.error` or
        `OverflowError` for a value that does not fit. None for kernels whose arguments must be
        converted or checked."""
        if self._check or self._bf16 or any(p.part or len(p.path) > 1 for p in self._parameters):
            return None
        pack, run, program, threads = (
            self._pack,
            self._run,
            self._program_ref,
            self._allowed_threads,
        )
        values, count = self._values, len(self._parameters)
        are_first = [p.path[0] for p in self._parameters] == list(range(count))

        def launch(function: int, x: int, y: int, z: int, arguments: tuple[Any, ...]) -> int:
            given = arguments[:count] if are_first else values(arguments)
            outcome: int = run(program, pack(function, x, y, z, threads(), *given), None)
            return outcome

        return launch

    def native(self) -> Native | None:
        """What native code needs to launch this kernel; None in checked mode."""
        if self._check:
            return None
        return Native(self._pool.run_packed_address, ctypes.addressof(self._program))

    # ---- arguments ------------------------------------------------------------------------------

    def _codes_for(self, tags: Sequence[str]) -> list[str]:
        """The struct code of each parameter, after a check that the compiled kernel agrees."""
        rows = [_row(self._name, parameter) for parameter in self._parameters]
        if [tag for tag, _ in rows] != list(tags):
            raise RuntimeError(
                f"{self._name}: Triton's signature flattens to {[tag for tag, _ in rows]}, but the "
                f"compiled kernel takes {list(tags)}. tzero does not know how this Triton passes "
                "arguments; please report it with the Triton version."
            )
        return [code for _, code in rows]

    def _address(self, index: int, value: Any) -> int:
        """The address of whatever Triton accepts for a pointer parameter."""
        if value is None:
            return 0
        if isinstance(value, int):
            return value
        name = f"{self._name}: argument {self._parameters[index].name!r}"
        device = getattr(value, "device", None)
        kind = getattr(device, "type", "cpu")
        if kind != "cpu":
            raise ValueError(
                f"{name} is on device {device}, and this kernel runs on the CPU. Pass a tensor on "
                "the CPU, or unset TZERO_CPU to run on the GPU."
            )
        read = getattr(value, "data_ptr", None)
        if read is None:
            raise TypeError(
                f"{name} must be a tensor, an object with data_ptr(), an address or None; it is "
                f"a {type(value).__name__}."
            )
        address: int = read()
        return address

    def _null_address(self, index: int, value: Any, grid: tuple[int, int, int]) -> int:
        """0, or an error if programs would dereference it, which would crash the process."""
        if not isinstance(value, self._tensor) or 0 in grid or value.numel() == 0:
            return 0
        raise ValueError(
            f"{self._name}: argument {self._parameters[index].name!r} is a {type(value).__name__} "
            f"of {value.numel()} elements that has no memory: it is fake, or wrapped by a "
            "transform, or its storage was freed. Launch on real tensors; for torch's tracers, "
            "make the caller an operator with torch.library.custom_op."
        )

    def _pack_one_by_one(
        self, function: int, grid: tuple[int, int, int], threads: int, values: list[Any]
    ) -> bytes:
        """Pack one by one, to convert a value as C would or to name the one that does not fit."""
        for axis, size in zip("xyz", grid, strict=True):
            _fit(f"{self._name}: the grid's {axis}", "i32", "i", size)
        for index, (parameter, code) in enumerate(zip(self._parameters, self._codes, strict=True)):
            name = f"{self._name}: argument {parameter.name!r}"
            values[index] = _fit(name, parameter.type, code, values[index])
        packed: bytes = self._pack(function, *grid, threads, *values)
        return packed

    def _spans(self, values: Sequence[Any]) -> bytes:
        """``tz_span`` of every parameter, for checked mode."""
        flat = [
            bound
            for parameter, value in zip(self._parameters, values, strict=True)
            for bound in (_span(value) if parameter.type[0] == "*" else _NO_BYTES)
        ]
        return struct.pack(f"@{len(flat)}P", *flat)

    # ---- outcomes -------------------------------------------------------------------------------

    def error(self, outcome: int, grid: tuple[int, int, int], args: Sequence[Any]) -> Exception:
        """The exception for an outcome of the calling thread's latest launch."""
        if outcome == pool.RAISED:
            return self._failed_check(self._pool.last_status(), args)
        if outcome == pool.NO_MEMORY:
            need = self._program.scratch
            return MemoryError(f"{self._name}: cannot allocate {need} bytes of scratch per thread.")
        if outcome == pool.NO_THREADS:
            return RuntimeError(
                f"{self._name}: launch_cooperative_grid needs a thread for each of the "
                f"{math.prod(grid)} programs of the grid {grid}, and the system cannot start them. "
                "Launch fewer programs, or raise the limit on threads."
            )
        return ValueError(
            f"{self._name}: the grid {grid} has {math.prod(grid)} programs, which is too many"
            + (
                f": launch_cooperative_grid runs each on its own thread, at most "
                f"{pool.MAX_COOPERATIVE}. Launch fewer programs."
                if self._program.cooperative
                else "."
            )
        )

    def _failed_check(self, status: pool.Status, args: Sequence[Any]) -> Exception:
        kind, message, file, line, argument = self._sites[status.site]
        program = (status.pid[0], status.pid[1], status.pid[2])
        if kind == "assert":
            return KernelAssertion(
                message=message, kernel=self._name, program=program, file=file, line=line
            )
        size = None
        if 0 <= status.param < len(self._parameters):
            parameter = self._parameters[status.param]
            argument = argument or parameter.name
            size = _elements(parameter.read(args))
        return OutOfBounds(
            kernel=self._name,
            argument=argument,
            offset=status.offset,
            size=size,
            program=program,
            file=file,
            line=line,
        )


def _reader(parameters: Sequence[Parameter]) -> Callable[[Sequence[Any]], list[Any]]:
    """A function from launch arguments to a new list of parameter values."""
    if any(p.part is not None or len(p.path) > 1 for p in parameters):
        return lambda args: [parameter.read(args) for parameter in parameters]
    indices = [p.path[0] for p in parameters]
    if indices == list(range(len(indices))):
        count = len(indices)  # constexpr arguments, if any, come last
        return lambda args: list(args[:count])
    if len(indices) == 1:
        return lambda args: [args[indices[0]]]
    pick = operator.itemgetter(*indices)
    return lambda args: list(pick(args))


def _row(kernel: str, parameter: Parameter) -> tuple[str, str]:
    if parameter.type[0] == "*":
        return ("ptr", "P")
    if parameter.type not in _SCALARS:
        raise TypeError(
            f"{kernel}: argument {parameter.name!r} has the type {parameter.type}, which cannot "
            "be passed to a kernel on the CPU."
        )
    return _SCALARS[parameter.type]


def _fit(name: str, type_: str, code: str, value: Any) -> Any:
    """The value if it packs; infinity for a float beyond float32, as C converts it."""
    try:
        struct.pack(f"@{code}", value)
    except OverflowError as error:
        if code == "f":
            return math.copysign(math.inf, value)
        raise OverflowError(f"{name} is {value!r}, which does not fit its type {type_}.") from error
    except struct.error as error:
        if isinstance(value, int) or hasattr(value, "__index__"):
            text = f"{name} is {value!r}, which does not fit its type {type_}."
            raise OverflowError(text) from error
        text = f"{name} must be a number of type {type_}; it is a {type(value).__name__}."
        raise TypeError(text) from error
    return value


def _bf16_bits(value: float) -> int:
    """The upper half of a float32, truncated as Triton's GPU launchers do."""
    try:
        bits: int = struct.unpack("@I", struct.pack("@f", value))[0]
    except OverflowError:
        return 0x7F80 if value > 0 else 0xFF80
    return bits >> 16


def _span(value: Any) -> tuple[int, int]:
    """The byte range of a tensor's elements; all memory for objects without shape and strides."""
    if value is None:
        return _NO_BYTES
    sizes, strides = getattr(value, "shape", None), getattr(value, "stride", None)
    if sizes is None or strides is None or not hasattr(value, "element_size"):
        return _ANY_BYTES
    start: int = value.data_ptr()
    if 0 in sizes:
        return (start, start)
    reach = [(size - 1) * stride for size, stride in zip(sizes, strides(), strict=True)]
    item: int = value.element_size()
    low = sum(each for each in reach if each < 0) * item
    high = sum(each for each in reach if each > 0) * item + item
    return (start + low, start + high)


def _elements(value: Any) -> int | None:
    """Number of elements from a tensor's pointer to its end, if known."""
    low, high = _span(value)
    if (low, high) == _ANY_BYTES or value is None:
        return None
    elements: int = (high - value.data_ptr()) // value.element_size()
    return elements
