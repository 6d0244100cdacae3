"""Whether the elements of two tensors are close.

An element of a float dtype is right if it differs from the reference by at most

    tolerance * (|reference| + scale) + VARIES * what the reference varies by

The tolerance is that of the dtype. The error of a sum that cancels is proportional to its summands,
not to the result. So the `scale` of the whole tensor is added: the magnitude of its typical
elements, which outliers do not move (see `scale_of`). Integers, bools and dtypes without a
tolerance must be equal.

Enters: two tensors of the same shape, dtype and device, and a `Leeway`. Leaves: which elements are
wrong, or how far a reference varies. It must not know what the tensors belong to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch

__all__ = ["EXACT", "TOLERANCES", "Leeway", "limit", "scale_of", "varied", "wrong"]

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
"""The tolerance of each dtype. It allows for another order of summation, which is what configs
change. Wrong kernels are wrong by far more."""

VARIES = 4.0
"""A candidate may differ by this many times what the reference varies by. Two runs of a reference
seldom show its whole range."""

_MOST_VARIED = 0.1  # of an element and the scale: a reference that varies more is not one
_MORE = 100.0  # a reference may vary by this many tolerances, unless that is more than the above

_CHUNK = 1 << 22  # elements compared at once, as 64-bit floats
_SAMPLE = 1 << 18  # elements from which the scale is estimated


@dataclass(frozen=True, slots=True)
class Leeway:
    """What is known about a tensor of the reference, element by element in flat tensors."""

    ignored: torch.Tensor | None = None
    """Elements that do not count: the reference leaves them unwritten."""
    spread: torch.Tensor | None = None
    """By how much each element varied between two runs of the reference."""
    typical: float = 0.0
    """By how much nearly all elements varied at most, relative to the element and the scale."""


EXACT = Leeway()
"""Every element counts, and none varies."""


def limit(tolerance: float) -> float:
    """How much a reference may vary, relative to an element and the scale.

    >>> limit(TOLERANCES[torch.float32]), limit(TOLERANCES[torch.bfloat16]), limit(0.0)
    (0.01, 0.1, 0.0)
    """
    return max(tolerance, min(_MORE * tolerance, _MOST_VARIED))


def wrong(
    mine: torch.Tensor,
    other: torch.Tensor,
    tolerance: float,
    leeway: Leeway,
    scale: Callable[[], float] | None = None,
) -> torch.Tensor | None:
    """Which elements differ too much from the reference, in a flat tensor; None where none does.
    `scale` returns the `scale_of` the reference, if the caller keeps it.

    >>> wrong(torch.tensor([1.0, 0.0, 1e9]), torch.tensor([1.0, 2.0, 1e9]), 1e-4, EXACT)
    tensor([False,  True, False])
    """
    if other.numel() == 0 or other.device.type == "meta" or _equal(mine, other):
        return None
    if _clearly_near(mine, other, tolerance):
        return None
    if other.dtype not in TOLERANCES:
        near = torch.eq(_plain(mine), _plain(other)).reshape(other.numel(), -1).all(dim=1)
        found = ~near
    else:
        allowed = tolerance + VARIES * leeway.typical
        typical = scale_of(other) if scale is None else scale()
        found = torch.cat(
            [
                _far(one, two, allowed, typical, spread)
                for one, two, spread in _chunks(mine, other, leeway.spread)
            ]
        )
    if leeway.ignored is not None:
        found &= ~leeway.ignored
    return found if bool(found.any()) else None


def varied(mine: torch.Tensor, other: torch.Tensor) -> Leeway | None:
    """How far two runs of a reference differ; None where they are equal, and for dtypes whose
    elements must be equal.

    >>> varied(torch.tensor([1.0, 4.5]), torch.tensor([1.0, 4.0])).spread
    tensor([0.0000, 0.5000])
    """
    if other.numel() == 0 or other.device.type == "meta" or other.dtype not in TOLERANCES:
        return None
    if _equal(mine, other):
        return None
    scale = scale_of(other)
    wide = other.dtype in (torch.float64, torch.complex128)
    kept = torch.float64 if wide else torch.float32
    spread = torch.cat([_error(one, two, kept) for one, two, _ in _chunks(mine, other, None)])
    picked = _picked(other.numel(), other.device)
    sizes = _sizes(_parts(_flat(other)[picked]))
    relative = (spread[picked].to(torch.float64) / (sizes + scale)).nan_to_num(0.0, posinf=0.0)
    ordered = relative.sort().values
    return Leeway(spread=spread, typical=float(ordered[int(0.9 * (ordered.numel() - 1))]))


# -- numbers --------------------------------------------------------------------------------------

_QUICK = {
    torch.float64: torch.float64,
    torch.float32: torch.float32,
    torch.float16: torch.float32,
    torch.bfloat16: torch.float32,
}


def _clearly_near(mine: torch.Tensor, other: torch.Tensor, tolerance: float) -> bool:
    """Whether each element is within half of its tolerance without the scale, by few operations in
    a narrow dtype; false also where that is not known. Most right candidates are."""
    dtype = _QUICK.get(other.dtype)
    if dtype is None or not 0 < tolerance < 1:
        return False
    one, two = _flat(mine).to(dtype), _flat(other).to(dtype)
    # A limit is finite, so that an infinity is not near another one.
    most = two.abs().mul_(tolerance / 2).clamp_(max=torch.finfo(dtype).max)
    return bool(((one - two).abs_() <= most).all())


def _far(
    mine: torch.Tensor,
    other: torch.Tensor,
    allowed: float,
    scale: float,
    spread: torch.Tensor | None,
) -> torch.Tensor:
    one, two = _parts(mine), _parts(other)
    equal = (one == two) | (one.isnan() & two.isnan())
    comparable = (equal | (one.isfinite() & two.isfinite())).all(dim=1)
    most = allowed * (_sizes(two) + scale)
    if spread is not None:
        most = torch.maximum(most, VARIES * spread.to(torch.float64))
    return ~(comparable & (equal.all(dim=1) | (_error(mine, other, torch.float64) <= most)))


def _error(mine: torch.Tensor, other: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The distance between elements; parts that are not finite count as 0."""
    one, two = _parts(mine), _parts(other)
    known = one.isfinite() & two.isfinite()
    return _sizes(torch.where(known, one - two, 0.0)).to(dtype)


def _parts(flat: torch.Tensor) -> torch.Tensor:
    """The elements as rows of 64-bit floats: one number, or two of a complex element."""
    if flat.is_complex():
        return torch.view_as_real(flat).to(torch.float64)
    return flat.to(torch.float64).unsqueeze(1)


def _sizes(parts: torch.Tensor) -> torch.Tensor:
    """The magnitudes of elements; parts that are not finite count as 0."""
    finite = torch.where(parts.isfinite(), parts, 0.0)
    return finite[:, 0].abs() if finite.shape[1] == 1 else torch.hypot(finite[:, 0], finite[:, 1])


_FILL = 0.25  # of all elements: a value that so many have is a fill value, such as a mask's
_LOW = 0.001  # of the elements: the low quantile
_FEWEST = 4  # elements below the low quantile, where there are enough


def scale_of(other: torch.Tensor) -> float:
    """The magnitude of typical elements: the median, or less where many elements are small.

    - Zeros, infinities and NaN are left out, and so is a value that a quarter of all elements have:
      zeros and -1e9 may be most of a masked result, and say nothing about the others.
    - If even the median is an outlier, the low quantile counts. Up to the median, quantiles of
      normally distributed values are nearly proportional to their ranks.

    >>> scale_of(torch.tensor([1.0, 2.0, 3.0, 1e9])), scale_of(torch.tensor([1.0] + 9 * [-1e9]))
    (2.0, 1.0)
    """
    sizes = _sizes(_parts(_flat(other)[_picked(other.numel(), other.device)]))
    values, counts = torch.unique(sizes[sizes > 0], return_counts=True)
    if not values.numel():
        return 0.0
    rare = counts <= max(_FILL * sizes.numel(), 1)
    if bool(rare.any()):
        values, counts = values[rare], counts[rare]
    ends = counts.cumsum(0)
    middle = (int(ends[-1]) - 1) // 2
    low = max(int(_LOW * int(ends[-1])), min(_FEWEST, middle))
    ranks = torch.tensor([middle, low], device=values.device)
    median, least = values[torch.searchsorted(ends, ranks, right=True)].tolist()
    return float(min(median, least * (middle + 1) / (low + 1)))


def _picked(count: int, device: torch.device) -> torch.Tensor | slice:
    """The places of a random sample of many elements, always the same."""
    if count <= _SAMPLE:
        return slice(None)
    chance = torch.Generator(device).manual_seed(0)
    return torch.randint(count, (_SAMPLE,), generator=chance, device=device)


# -- elements in order ----------------------------------------------------------------------------

_SIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().resolve_conj().resolve_neg().reshape(-1)


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    """The elements in order, in a dtype that torch compares; each may become several bytes."""
    flat = _flat(tensor)
    if flat.dtype in _SIGNED:
        return flat.view(_SIGNED[flat.dtype])
    if flat.dtype.is_floating_point or not _is_compared(flat.dtype):
        return _bytes(flat)
    return flat


def _is_compared(dtype: torch.dtype) -> bool:
    return dtype is torch.bool or dtype in (
        torch.int8,
        torch.int16,
        torch.int32,
        torch.int64,
        torch.uint8,
    )


def _equal(mine: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether all bytes are equal: the common case, and much cheaper. What both repeat without
    memory of its own, as `expand` does, is compared once."""
    for dim, strides in enumerate(zip(mine.stride(), other.stride(), strict=True)):
        if strides == (0, 0):
            mine, other = mine.narrow(dim, 0, 1), other.narrow(dim, 0, 1)
    return torch.equal(_bytes(_flat(mine)), _bytes(_flat(other)))


def _bytes(flat: torch.Tensor) -> torch.Tensor:
    # A single element may have any stride, and only a stride of 1 can be viewed as bytes.
    whole = torch.view_as_real(flat).reshape(-1) if flat.is_complex() else flat
    return whole.contiguous().as_strided((whole.numel(),), (1,)).view(torch.uint8)


def _chunks(
    mine: torch.Tensor, other: torch.Tensor, spread: torch.Tensor | None
) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]]:
    one, two = _flat(mine), _flat(other)
    for start in range(0, two.numel(), _CHUNK):
        part = slice(start, start + _CHUNK)
        yield one[part], two[part], None if spread is None else spread[part]
