"""Fills the memory that a host function allocates with a pattern, so that unwritten elements show.

::

    host function ── torch.empty, new_empty, resize_, ... ── Filling ──► memory full of the pattern

Enters: one of the patterns. Leaves: tensors that hold it until something else is written. It must
not know configs, or how results are compared.

An allocator hands out memory that an earlier call has freed. So what a kernel forgets to write
often holds the right result of that call. Filled memory does not. What differs between runs with
different patterns was not written, or was computed from unwritten memory.

All memory that operators of torch allocate without writing it is filled, on every device. Inside a
custom operator torch itself fills it (see `filled_by_torch`), always with one pattern. What torch
does not allocate is not filled: arrays of numpy, storages made without a tensor, and memory of the
code that torch.compile generates.
"""

from __future__ import annotations

import functools
import math
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch

from tzero.adapters import torch_modes
from tzero.adapters.torch_internals import filled_by_torch, name_of

__all__ = ["PATTERNS", "Filling", "Pattern", "fill", "holding"]


class Pattern(NamedTuple):
    """What memory is filled with.

    >>> with Filling(PATTERNS[1]):
    ...     torch.empty(2, dtype=torch.float16), torch.empty(2, dtype=torch.int8)
    (tensor([-65504., -65504.], dtype=torch.float16), tensor([85, 85], dtype=torch.int8))
    """

    number: float
    """For floats; in narrow dtypes, the number next to it."""
    whole: int
    """For integers: small, because unwritten memory may be used as an index."""
    flag: bool
    byte: int
    """For all other dtypes."""


_LARGE = 2.0**100
PATTERNS = (
    Pattern(math.nan, 113, True, 0xFF),
    Pattern(-_LARGE, 85, False, 0x55),
    Pattern(_LARGE, 29, True, 0xAA),
    Pattern(0.0, 0, False, 0x00),
)
"""A right result may hold one of them, but not the first and then the second. NaN shows in sums and
products, whatever is added to it. A maximum or a minimum ignores it, but not both of the large
numbers. Zero shows where only that an element is not zero, or is large, counts."""

_EMPTY = frozenset(
    {
        "aten::empty",
        "aten::empty_like",
        "aten::empty_permuted",
        "aten::empty_quantized",
        "aten::empty_strided",
        "aten::new_empty",
        "aten::new_empty_strided",
        "aten::_empty_affine_quantized",
        "aten::_empty_per_channel_affine_quantized",
    }
)
_RESIZED = frozenset({"aten::resize_", "aten::resize_as_"})


class Filling(torch_modes.Dispatching):
    """A block in which fresh memory of this thread is filled with a pattern.

    >>> with Filling(PATTERNS[0]):
    ...     torch.empty_like(torch.ones(2)), torch.ones(1).resize_(2)
    (tensor([nan, nan]), tensor([1., nan]))
    """

    supports_higher_order_operators = True  # such as torch.cond: they are called as they are

    def __init__(self, pattern: Pattern) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._pattern = pattern

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        name = name_of(function).partition(".")[0]
        kwargs = kwargs or {}
        if name in _RESIZED and _has_memory(args[0]):
            size = args[0].untyped_storage().nbytes()
            result = function(*args, **kwargs)
            fill(args[0], self._pattern, size)
            return result
        inside = nullcontext() if function.namespace in ("aten", "prims") else filled_by_torch()
        with inside:
            result = function(*args, **kwargs)
        if name in _EMPTY and "out" not in kwargs and _has_memory(result):
            fill(result, self._pattern)
        return result


def _has_memory(tensor: torch.Tensor) -> bool:
    """Whether a tensor is in memory of its own; sparse tensors and subclasses consist of others."""
    plain = type(tensor) in (torch.Tensor, torch.nn.Parameter)
    return plain and tensor.layout is torch.strided and tensor.device.type != "meta"


def fill(tensor: torch.Tensor, pattern: Pattern, begin: int = 0) -> None:
    """Fill a tensor's storage, from a byte on."""
    storage = tensor.untyped_storage()
    cuda = tensor.device.type == "cuda"
    # A graph that the host function captures and keeps would fill memory in every later call.
    if storage.nbytes() <= begin or (cuda and torch.cuda.is_current_stream_capturing()):
        return
    carrier, bits = _bits(tensor.dtype, pattern)
    first = -(-begin // carrier.itemsize)
    count = storage.nbytes() // carrier.itemsize - first
    # Through a tensor of its own: filling the result would change its version.
    whole = torch.empty(0, dtype=carrier, device=tensor.device)
    whole.set_(storage, first, (count,), (1,)).fill_(bits)
    if cuda:  # the host function need not wait for this stream before it writes in another
        torch.cuda.current_stream(tensor.device).synchronize()


_CARRIERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@functools.cache
def _bits(dtype: torch.dtype, pattern: Pattern) -> tuple[torch.dtype, int]:
    """A pattern in a dtype, as an integer of the same width."""
    dtype = _real(dtype)
    carrier = _CARRIERS[dtype.itemsize]
    if dtype is torch.bool:
        return carrier, int(pattern.flag)
    if dtype in _WHOLE:
        return carrier, pattern.whole
    if not _is_number(dtype):
        return torch.uint8, pattern.byte
    number = _number(pattern.number, dtype)
    if not math.isnan(pattern.number) and not bool(number.to(torch.float64).isfinite()):
        number = _number(math.copysign(torch.finfo(dtype).max, pattern.number), dtype)
    return carrier, int(number.view(carrier).item())


def _real(dtype: torch.dtype) -> torch.dtype:
    return dtype.to_real() if dtype.is_complex else dtype


def _number(value: float, dtype: torch.dtype) -> torch.Tensor:
    return torch.tensor([value], dtype=torch.float64, device="cpu").to(dtype)


@functools.cache
def _is_number(dtype: torch.dtype) -> bool:
    """Whether torch can convert to a dtype: not to packed, quantized and opaque ones."""
    try:
        torch.zeros(1, device="cpu").to(dtype)
    except (NotImplementedError, RuntimeError):
        return False
    return True


_WHOLE = frozenset(
    {
        torch.int8,
        torch.int16,
        torch.int32,
        torch.int64,
        torch.uint8,
        torch.uint16,
        torch.uint32,
        torch.uint64,
    }
)


def holding(tensor: torch.Tensor, pattern: Pattern) -> torch.Tensor:
    """Which elements of a tensor hold a pattern, in a flat tensor of bools. It may have been
    converted from a wider dtype.

    >>> holding(torch.tensor([1.0, -(2.0**100), 0.0]).half(), PATTERNS[1])
    tensor([False,  True, False])
    """
    flat = tensor.detach().resolve_conj().resolve_neg().reshape(-1).contiguous()
    carrier, bits = _bits(flat.dtype, pattern)
    floating = (flat.is_floating_point() or flat.is_complex()) and _is_number(flat.dtype)
    held = flat.view(carrier) == bits
    if floating:
        parts = (torch.view_as_real(flat).reshape(-1) if flat.is_complex() else flat).double()
        converted = float(_number(pattern.number, _real(flat.dtype)))
        if math.isnan(pattern.number):
            held = parts.isnan()
        elif not math.isnan(converted):  # as where a dtype has no infinity
            held |= parts == converted
    return held.reshape(flat.numel(), -1).all(dim=1)
