"""Adapts the C modules of Triton's CUDA driver: what they do, in Python.

Triton 3.6 compiles a module of driver functions, and one launcher for each signature of a kernel.
Where there is no C compiler these serve: tzero's native launches need neither module, only the
first launch of each kernel does, and launches that only Triton makes. They call libcuda through
ctypes, which releases the GIL.

Enters: the types of a kernel's arguments; then what Triton gives to the functions of its modules.
Leaves: the same calls of libcuda, and the same errors. It must not know when they are used.
`tests/adapters/test_triton_driver.py` compares the calls with those of Triton's own modules.
"""

from __future__ import annotations

import ctypes
import functools
import operator
import re
import struct
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

__all__ = ["TensorMap", "driver_functions", "launcher"]

_MAP_BYTES = 128
_NOT_ON_THE_DEVICE = 1  # CUDA_ERROR_INVALID_VALUE
_PRINTF_FIFO_SIZE = 1  # CU_LIMIT_PRINTF_FIFO_SIZE
_DEVICE_POINTER = 3  # CU_POINTER_ATTRIBUTE_DEVICE_POINTER
_PLAIN_SHARED = 48 * 1024

_PROPERTIES = {
    "max_shared_mem": 97,  # CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN
    "max_num_regs": 12,
    "multiprocessor_count": 16,
    "warpSize": 10,
    "sm_clock_rate": 13,
    "mem_clock_rate": 36,
    "mem_bus_width": 37,
}

# CU_FUNC_ATTRIBUTE_...
_MAX_THREADS, _STATIC_SHARED, _LOCAL_BYTES, _REGISTERS = 0, 1, 3, 4
_MOST_DYNAMIC_SHARED, _NON_PORTABLE_CLUSTER = 8, 14
_PREFER_SHARED = 1  # CU_FUNC_CACHE_PREFER_SHARED

# CU_LAUNCH_ATTRIBUTE_...
_COOPERATIVE, _CLUSTER, _CLUSTER_SCHEDULING, _SERIALIZATION = 2, 4, 5, 6
_SPREAD = 1  # CU_CLUSTER_SCHEDULING_POLICY_SPREAD


class _Attribute(ctypes.Structure):
    _fields_ = (("id", ctypes.c_int), ("pad", ctypes.c_int), ("value", ctypes.c_uint * 16))


class _Config(ctypes.Structure):
    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("count", ctypes.c_uint),
    )


# -- libcuda ---------------------------------------------------------------------------------------


@functools.cache
def _library() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")


def _words(result: int) -> str:
    text = ctypes.c_char_p()
    _library().cuGetErrorString(result, ctypes.byref(text))
    return "Unknown error" if text.value is None else text.value.decode()


def _call(name: str, *args: Any) -> None:
    """Call libcuda; raises as Triton's modules do."""
    result = getattr(_library(), name)(*args)
    if result != 0:
        raise RuntimeError(f"Triton Error [CUDA]: {_words(result)}")


def _asked(name: str, *args: Any) -> int:
    """An integer that libcuda returns through its first argument."""
    found = ctypes.c_int()
    _call(name, ctypes.byref(found), *args)
    return found.value


def _enter(device: int) -> None:
    """Make the primary context of a device current, if this thread has none."""
    context = ctypes.c_void_p()
    _call("cuCtxGetCurrent", ctypes.byref(context))
    if context.value is None:
        _call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        _call("cuCtxSetCurrent", context)


# -- the driver functions --------------------------------------------------------------------------


class TensorMap:
    """A descriptor for the tensor memory accelerator: 128 bytes, aligned as Triton aligns them.

    >>> TensorMap().address % 128
    0
    """

    __slots__ = ("_memory", "address")

    def __init__(self) -> None:
        self._memory = ctypes.create_string_buffer(2 * _MAP_BYTES)
        self.address = -(-ctypes.addressof(self._memory) // _MAP_BYTES) * _MAP_BYTES


def driver_functions() -> SimpleNamespace:
    """What Triton's module ``cuda_utils`` has.

    >>> driver_functions().PyCUtensorMap is TensorMap
    True
    """
    return SimpleNamespace(
        PyCUtensorMap=TensorMap,
        load_binary=_load_binary,
        get_device_properties=_get_device_properties,
        cuOccupancyMaxActiveClusters=_most_active_clusters,
        set_printf_fifo_size=_set_printf_fifo_size,
        fill_tma_descriptor=_fill_tma_descriptor,
    )


def _get_device_properties(device: int) -> dict[str, int]:
    handle = _asked("cuDeviceGet", device)
    return {name: _asked("cuDeviceGetAttribute", at, handle) for name, at in _PROPERTIES.items()}


def _load_binary(name: str, data: bytes, shared: int, device: int) -> tuple[int, ...]:
    _enter(device)
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    _call("cuModuleLoadData", ctypes.byref(module), data)
    _call("cuModuleGetFunction", ctypes.byref(function), module, name.encode())
    registers = _asked("cuFuncGetAttribute", _REGISTERS, function)
    spills = _asked("cuFuncGetAttribute", _LOCAL_BYTES, function) // 4
    threads = _asked("cuFuncGetAttribute", _MAX_THREADS, function)
    most = _asked("cuDeviceGetAttribute", _PROPERTIES["max_shared_mem"], device)
    if shared > _PLAIN_SHARED and most > _PLAIN_SHARED:
        _call("cuFuncSetCacheConfig", function, _PREFER_SHARED)
        static = _asked("cuFuncGetAttribute", _STATIC_SHARED, function)
        _call("cuFuncSetAttribute", function, _MOST_DYNAMIC_SHARED, most - static)
    return module.value or 0, function.value or 0, registers, spills, threads


def _most_active_clusters(function: int, shared: int, cluster: int) -> int:
    handle = ctypes.c_void_p(function)
    _call("cuFuncSetAttribute", handle, _MOST_DYNAMIC_SHARED, shared)
    config = _config((cluster, 1, 1), 128, shared, 0, [_attribute(_CLUSTER, cluster, 1, 1)])
    _call("cuFuncSetAttribute", handle, _NON_PORTABLE_CLUSTER, 1)
    return _asked("cuOccupancyMaxActiveClusters", handle, ctypes.byref(config))


def _set_printf_fifo_size(size: int) -> None:
    if size < 0:
        raise ValueError("fifo size must be non-negative")
    _enter(0)
    known = ctypes.c_size_t()
    _call("cuCtxGetLimit", ctypes.byref(known), _PRINTF_FIFO_SIZE)
    if known.value != size:  # CUDA refuses even the same size once a kernel has printed
        _call("cuCtxSetLimit", _PRINTF_FIFO_SIZE, ctypes.c_size_t(size))


def _fill_tma_descriptor(
    address: int,
    swizzle: int,
    size: int,
    type_: int,
    block: Sequence[int],
    shape: Sequence[int],
    strides: Sequence[int],
    padding: int,
) -> TensorMap:
    rank = len(block)
    if not rank == len(shape) == len(strides):
        raise RuntimeError("Rank mismatch")
    sizes = list(reversed(shape))
    steps = [size * each for each in reversed(strides[:-1])]
    steps.append(sizes[-1] * (steps[-1] if steps else size))
    made = TensorMap()
    _call(
        "cuTensorMapEncodeTiled",
        *(ctypes.c_void_p(made.address), type_, rank, ctypes.c_void_p(address)),
        (ctypes.c_uint64 * rank)(*sizes),
        (ctypes.c_uint64 * rank)(*steps),
        (ctypes.c_uint32 * rank)(*reversed(block)),
        (ctypes.c_uint32 * rank)(*[1] * rank),
        *(0, swizzle, 2, int(padding == 1)),  # no interleave; L2 in lines of 128 bytes
    )
    return made


# -- launches --------------------------------------------------------------------------------------

Packed = Any
"""A ctypes value that holds one parameter of a kernel."""

_SIGNED: dict[str, Any] = {
    "i1": ctypes.c_uint8,  # as Triton reads these two
    "i8": ctypes.c_uint8,
    "i16": ctypes.c_int16,
    "i32": ctypes.c_int32,
    "i64": ctypes.c_int64,
}
_UNSIGNED: dict[str, Any] = {
    "u1": ctypes.c_uint8,
    "u8": ctypes.c_uint8,
    "u16": ctypes.c_uint16,
    "u32": ctypes.c_uint32,
    "u64": ctypes.c_uint64,
}
_FLOATS: dict[str, Any] = {
    "fp32": ctypes.c_float,
    "f32": ctypes.c_float,
    "fp64": ctypes.c_double,
}


def launcher(types: Sequence[Any], descriptors: Sequence[Any] | None = None) -> SimpleNamespace:
    """What Triton's launcher module for a kernel with arguments of these types has: `launch`.
    `descriptors` is what the kernel's metadata says about tensor descriptors.

    >>> callable(launcher(["*fp32", "i32", "constexpr"]).launch)
    True
    """
    given = tuple(_expanded(types, descriptors))

    def launch(*args: Any) -> None:
        grid, stream, function, cooperative, dependent = args[:3], *args[3:7]
        scratch, (numbers, metadata, enter, leave) = args[7:9], args[9:13]
        _enter(0)
        read = list(_read(given, args[13:]))
        if enter is not None:
            enter(metadata)
        last = [ctypes.c_void_p(_pointer(each, -1)) for each in scratch]
        held = [*_packed(read), *last]
        _launch(grid, stream, function, numbers, (cooperative, dependent), held)
        if leave is not None:
            leave(metadata)

    return SimpleNamespace(launch=launch)


def _launch(
    grid: tuple[int, int, int],
    stream: int,
    function: int,
    numbers: tuple[int, int, int],
    flags: tuple[bool, bool],
    held: list[Packed],
) -> None:
    warps, blocks, shared = numbers
    cooperative, dependent = flags
    if 0 in grid:
        return
    attributes = []
    if dependent:
        attributes.append(_attribute(_SERIALIZATION, 1))
    if cooperative:
        attributes.append(_attribute(_COOPERATIVE, 1))
    if blocks != 1:
        attributes.append(_attribute(_CLUSTER, blocks, 1, 1))
        attributes.append(_attribute(_CLUSTER_SCHEDULING, _SPREAD))
    handle = ctypes.c_void_p(function)
    if blocks == 16:
        _call("cuFuncSetAttribute", handle, _NON_PORTABLE_CLUSTER, 1)
    sizes = (grid[0] * blocks, grid[1], grid[2])
    config = _config(sizes, 32 * warps, shared, stream, attributes)
    places = (ctypes.c_void_p * len(held))(*map(_address, held))
    _call("cuLaunchKernelEx", ctypes.byref(config), handle, places, None)


def _attribute(kind: int, *values: int) -> _Attribute:
    return _Attribute(kind, 0, (ctypes.c_uint * 16)(*values))


def _config(
    grid: tuple[int, int, int], threads: int, shared: int, stream: int, found: list[_Attribute]
) -> _Config:
    attributes = (_Attribute * 4)(*found)
    sizes, block = (ctypes.c_uint * 3)(*grid), (ctypes.c_uint * 3)(threads, 1, 1)
    return _Config(sizes, block, shared, stream, attributes, len(found))


def _address(value: Packed) -> int:
    return value.address if type(value) is TensorMap else ctypes.addressof(value)


def _expanded(types: Sequence[Any], descriptors: Sequence[Any] | None) -> Iterator[Any]:
    """The types with what Triton passes in place of each tensor descriptor."""
    described = iter(descriptors or ())
    for each in types:
        if not (isinstance(each, str) and each.startswith("tensordesc")):
            yield each
            continue
        found = re.match(r"tensordesc<([^[>]*)\[([^]]*)\]", each)
        assert found is not None, each
        rank = found[2].count(",") + 1
        if next(described, None) is None:
            yield from ("*" + found[1], *["i64"] * 2 * rank, "i1")
        else:
            yield "nvTmaDesc"
        yield from ("i32",) * rank
        yield from ("i64",) * rank


class _Read(NamedTuple):
    """An argument of a launch, before the hooks: a number is converted, the rest is as given."""

    type: str
    value: Any
    place: int


def _read(types: Sequence[Any], values: Sequence[Any]) -> Iterator[_Read]:
    """The parameters of the binary, in order. Constants are none; tuples are several."""
    if len(types) != len(values):
        raise TypeError(f"a launch with {len(values)} arguments, and the kernel has {len(types)}")
    flat = [pair for pair in zip(types, values, strict=True) for pair in _leaves(*pair)]
    for index, (type_, value) in enumerate(flat):
        if type_ == "constexpr":
            continue
        is_number = type_[0] != "*" and type_ != "nvTmaDesc"
        yield _Read(type_, _number(type_, value, index) if is_number else value, index)


def _packed(read: Sequence[_Read]) -> list[Packed]:
    """What the driver is given for each parameter."""
    addresses = {
        each.place: ctypes.c_void_p(_pointer(each.value, each.place))
        for each in read
        if each.type[0] == "*"
    }
    for each in read:
        if each.type == "nvTmaDesc" and type(each.value) is not TensorMap:
            name = type(each.value).__name__
            raise TypeError(f"object must be of type PyCUtensorMap, got {name}")
    return [addresses.get(each.place, each.value) for each in read]


def _leaves(type_: Any, value: Any) -> Iterator[tuple[str, Any]]:
    if not isinstance(type_, tuple):
        yield type_, value
        return
    for each, inner in zip(type_, value, strict=True):
        yield from _leaves(each, inner)


def _number(type_: str, value: Any, index: int) -> Packed:
    if type_ == "fp16":
        return ctypes.c_uint16(*struct.unpack("<H", struct.pack("<e", value)))
    if type_ == "bf16":  # the upper half of a float32, as Triton passes it
        (bits,) = struct.unpack("<I", ctypes.c_float(value))
        return ctypes.c_uint16(bits >> 16)
    if type_ in _FLOATS:
        return _FLOATS[type_](value)
    number = operator.index(value)
    if type_ in _UNSIGNED:
        return _UNSIGNED[type_](number)
    made = _SIGNED[type_](number)
    if made.value != number:
        raise OverflowError(f"argument {index} is {number}, which is no {type_}")
    return made


def _pointer(value: Any, index: int) -> int:
    """The address on the device of an argument; an integer is one already."""
    if value is None or isinstance(value, int):
        return 0 if value is None else value
    try:
        address = value.data_ptr()
    except AttributeError:
        raise TypeError("Pointer argument must be either uint64 or have data_ptr method") from None
    if not isinstance(address, int):
        raise TypeError("data_ptr method of Pointer object must return 64-bit int")
    if address == 0:
        return 0
    found = ctypes.c_uint64()
    ask = _library().cuPointerGetAttribute
    result = ask(ctypes.byref(found), _DEVICE_POINTER, ctypes.c_uint64(address))
    if result == _NOT_ON_THE_DEVICE:
        raise ValueError(
            f"Pointer argument (at {index}) cannot be accessed from Triton (cpu tensor?)"
        )
    if result != 0:
        raise RuntimeError(f"Triton Error [CUDA]: {_words(result)}")
    return found.value
