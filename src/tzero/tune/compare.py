"""Whether a candidate computes what the reference config computes.

Enters: the results of two calls. Leaves: a `Comparison`, which says where they first differ. It
must not know configs, or how calls are made.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any

import torch

__all__ = ["TOLERANCES", "Comparison", "same"]


@dataclasses.dataclass(frozen=True, slots=True)
class Comparison:
    """True where results agree with the reference; else `words` says where they differ."""

    words: str = ""

    def __bool__(self) -> bool:
        return not self.words


TOLERANCES: Mapping[torch.dtype, float] = {
    torch.float64: 1e-9,
    torch.float32: 1e-4,
    torch.float16: 1e-2,
    torch.bfloat16: 2e-2,
    torch.complex128: 1e-9,
    torch.complex64: 1e-4,
    torch.complex32: 1e-2,
    torch.float8_e4m3fn: 0.13,
    torch.float8_e4m3fnuz: 0.13,
    torch.float8_e5m2: 0.26,
    torch.float8_e5m2fnuz: 0.26,
}
"""The tolerance of each dtype, relative to the value and to the root mean square of the reference.
It allows for another order of summation, which is what configs change. Wrong kernels are wrong by
far more."""

_CHUNK = 1 << 24  # elements compared at once, as 64-bit floats


def same(
    results: Any, reference: Any, *, tolerance: float | None = None, named: str = "result"
) -> Comparison:
    """Whether a candidate's results agree with those of the reference.

    Shapes, dtypes and devices must agree, integers must be equal, and floats within the tolerance
    of their dtype (`TOLERANCES`) or the given one. NaN equals NaN, and infinities equal themselves.
    Lists, tuples, dicts and dataclasses are compared item by item. `named` is the name of the
    results in the message.

    >>> same([torch.tensor([1.0, 2.0])], [torch.tensor([1.0, 2.5])]).words
    'result[0] is 2.0 at (1,), and the reference 2.5; 1 of 2 elements differ'
    """
    return Comparison(_differ(results, reference, named, tolerance) or "")


def _differ(mine: Any, other: Any, at: str, tolerance: float | None) -> str | None:
    if type(mine) is not type(other):
        return f"{at} is of type {type(mine).__name__}, and the reference {type(other).__name__}"
    if isinstance(mine, torch.Tensor):
        return _tensors_differ(mine, other, at, tolerance)
    if isinstance(mine, dict):
        if list(mine) != list(other):
            return f"{at} has the keys {list(mine)}, and the reference {list(other)}"
        return _first(((f"{at}[{k!r}]", mine[k], other[k]) for k in mine), tolerance)
    if isinstance(mine, list | tuple):
        if len(mine) != len(other):
            return f"{at} has {len(mine)} items, and the reference {len(other)}"
        pairs = enumerate(zip(mine, other, strict=True))
        return _first(((f"{at}[{k}]", one, two) for k, (one, two) in pairs), tolerance)
    if dataclasses.is_dataclass(mine):
        names = [field.name for field in dataclasses.fields(mine)]
        items = ((f"{at}.{k}", getattr(mine, k), getattr(other, k)) for k in names)
        return _first(items, tolerance)
    if isinstance(mine, float | complex):
        allowed = TOLERANCES[torch.float32] if tolerance is None else tolerance
        near = _close(_parts(mine), _parts(other), 0.0, allowed)  # a number read from a tensor
        return None if bool(near.all()) else f"{at} is {mine}, and the reference {other}"
    if hasattr(mine, "__array__"):  # an array of numpy's
        return _tensors_differ(torch.as_tensor(mine), torch.as_tensor(other), at, tolerance)
    if mine is other or (mine == other) is True:
        return None
    kind: Any = type(mine)
    if kind.__eq__ is object.__eq__ and hasattr(mine, "__dict__") and not isinstance(mine, Enum):
        return None  # it compares by identity, so nothing can be said about it
    return f"{at} is {mine!r}, and the reference {other!r}"


def _parts(number: complex) -> torch.Tensor:
    return torch.view_as_real(torch.tensor(number, dtype=torch.complex128, device="cpu"))


def _first(items: Iterable[tuple[str, Any, Any]], tolerance: float | None) -> str | None:
    found = (_differ(one, two, at, tolerance) for at, one, two in items)
    return next((words for words in found if words is not None), None)


def _tensors_differ(
    mine: torch.Tensor, other: torch.Tensor, at: str, tolerance: float | None
) -> str | None:
    facts: tuple[tuple[str, Any, Any], ...] = (
        ("dtype", mine.dtype, other.dtype),
        ("shape", tuple(mine.shape), tuple(other.shape)),
        ("device", mine.device, other.device),
    )
    for fact, its, wanted in facts:
        if its != wanted:
            return f"{at} has {fact} {its}, and the reference {wanted}"
    if mine.numel() == 0:
        return None
    one, two = _flat(mine), _flat(other)
    if torch.equal(_bytes(one), _bytes(two)):  # the common case, and much cheaper
        return None
    if mine.dtype in TOLERANCES:
        allowed = TOLERANCES[mine.dtype] if tolerance is None else tolerance
        near = _near(one, two, allowed)
    else:
        near = torch.eq(one, two)
    # A complex element is two numbers; an element of a dtype compared as bytes may be several.
    wrong = ~near.reshape(mine.numel(), -1).all(dim=1)
    count = int(wrong.sum())
    if count == 0:
        return None
    index = int(wrong.to(torch.uint8).argmax())
    place = tuple(
        int(k) for k in torch.unravel_index(torch.tensor(index, device="cpu"), mine.shape)
    )
    shown, wanted = mine[place].tolist(), other[place].tolist()
    many = f"{count} of {mine.numel()} elements differ"
    return f"{at} is {shown} at {place}, and the reference {wanted}; {many}"


_SIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    """The elements in order, in a dtype that torch compares."""
    tensor = tensor.detach().resolve_conj().resolve_neg().reshape(-1)
    if tensor.is_complex():
        return torch.view_as_real(tensor).reshape(-1)
    if tensor.dtype in _SIGNED:
        return tensor.view(_SIGNED[tensor.dtype])
    if tensor.dtype.is_floating_point and tensor.dtype not in TOLERANCES:
        return tensor.contiguous().view(torch.uint8)
    return tensor


def _bytes(flat: torch.Tensor) -> torch.Tensor:
    # A single element may have any stride, and only a stride of 1 can be viewed as bytes.
    return flat.contiguous().as_strided((flat.numel(),), (1,)).view(torch.uint8)


def _near(mine: torch.Tensor, other: torch.Tensor, allowed: float) -> torch.Tensor:
    total, count = 0.0, 0
    for part in torch.split(other, _CHUNK):
        finite = part[part.to(torch.float64).isfinite()].to(torch.float64)
        total += float((finite * finite).sum())
        count += finite.numel()
    scale = math.sqrt(total / count) if count and math.isfinite(total) else 0.0
    pairs = zip(torch.split(mine, _CHUNK), torch.split(other, _CHUNK), strict=True)
    return torch.cat([_close(one, two, scale, allowed) for one, two in pairs])


def _close(mine: torch.Tensor, other: torch.Tensor, scale: float, allowed: float) -> torch.Tensor:
    one, two = mine.to(torch.float64), other.to(torch.float64)
    return torch.isclose(one, two, rtol=allowed, atol=allowed * scale, equal_nan=True)
