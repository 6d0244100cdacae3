"""Arguments with other sizes in some dimensions, and everything else as it is.

::

    (x: 3 x 256, w: 256 x 256), {x[0]: 64} ──► (x: 64 x 256, w: 256 x 256)

Enters: arguments, and new sizes for some dimensions of tensors and some integers. Leaves: arguments
to time configs with, or `Spec`s to compile for. It must not know where the new sizes come from.

Equal sizes need not be the same dimension, so nothing else is resized. But a kernel must not run
past the end of a tensor whose dimension should have been named too. So a tensor with the old size
of a dimension that grows gets more memory, as if that dimension grew as well. Integers in tensors
may be indices: they are kept below a dimension that shrinks.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from tzero.adapters.torch_internals import static_dims
from tzero.arguments.situation import leaves
from tzero.launches.ahead import Spec
from tzero.symbolic.formulas import Source
from tzero.tune.by_size import NotResizable, bounded, check_memory, filled
from tzero.tune.copying import tensors_in, walk

__all__ = ["Place", "changed", "sharing", "specified"]


class Place(NamedTuple):
    """A dimension of a tensor argument; without a dimension, an integer argument.

    >>> print(Place(0, "x", 1), Place(2, "n"))
    x[1] n
    """

    at: int
    """The number of the argument."""
    argument: str
    dimension: int | None = None

    def __str__(self) -> str:
        return self.argument if self.dimension is None else f"{self.argument}[{self.dimension}]"

    def size(self, args: Sequence[Any]) -> int:
        """The size in these arguments; a negative integer counts as 0.

        >>> Place(0, "x", 1).size((torch.ones(2, 3),)), Place(0, "n").size((-1,))
        (3, 0)
        """
        value = args[self.at]
        if self.dimension is None:
            return int(min(max(value, 0), _LARGEST))
        return int(value.shape[self.dimension])

    def source(self, args: Sequence[Any]) -> Source:
        """Where the size comes from, in calls with such arguments.

        >>> Place(1, "x", 0).source(([1, 2], torch.ones(3)))
        Source(what='size', leaf=2, dim=0)
        """
        leaf = sum(1 for _ in leaves(args[: self.at], [""] * self.at))
        if self.dimension is None:
            return Source("number", leaf)
        return Source("size", leaf, self.dimension)


_LARGEST = 2**63 - 1

Sizes = Mapping[Place, int]


def changed(args: tuple[Any, ...], parameters: Sequence[str], new: Sizes) -> tuple[Any, ...]:
    """Arguments with new sizes. Tensors are cut, or filled by repeating their contents. An integer
    that equals the old size of a resized dimension, and of no other, is resized with it.

    >>> x, w, m = changed(
    ...     (torch.ones(3, 8), torch.ones(8, 8), 3), ("x", "w", "m"), {Place(0, "x", 0): 5}
    ... )
    >>> x.shape, w.shape, m
    (torch.Size([5, 8]), torch.Size([8, 8]), 5)

    `NotResizable` where an integer may be such a size or not, or where the tensors would take too
    much memory.
    """
    changes = _Changes.of(args, new)
    needed: dict[torch.device, int] = {}  # bytes
    for name, value in leaves(args, parameters):
        if isinstance(value, torch.Tensor):
            elements = changes.elements(value)
            if elements is not None:
                _check_plain(name, value)
                size = elements * value.dtype.itemsize
                needed[value.device] = needed.get(value.device, 0) + size
        else:
            _check_held(name, value, changes)
    alike = sharing(args, parameters, new)
    for device, size in needed.items():
        words = f"{changes} (and {alike} as if it grew with them)" if alike else str(changes)
        check_memory(device, size, words)
    numbers = _Numbers.of(args, parameters, changes)
    made: tuple[Any, ...] = walk(args, changes.tensor, {})
    return _with_integers(made, parameters, changes, numbers)


def specified(args: tuple[Any, ...], parameters: Sequence[str], new: Sizes) -> tuple[Any, ...]:
    """The same without memory: each resized argument, a tensor or a `Spec`, is a `Spec`.

    >>> specified((Spec((3, 8)), 3), ("x", "m"), {Place(0, "x", 0): 5})[0].shape
    (5, 8)
    """
    changes = _Changes.of(args, new)
    numbers = _Numbers.of(args, parameters, changes)
    made = list(args)
    for at in {place.at for place in new if place.dimension is not None}:
        value, sizes = args[at], changes.sizes(args[at])
        if sizes != tuple(value.shape):
            made[at] = Spec(sizes, value.dtype, value.device)
    return _with_integers(tuple(made), parameters, changes, numbers)


def sharing(args: tuple[Any, ...], parameters: Sequence[str], new: Sizes) -> str:
    """The dimensions that have the old size of a resized one and are not named, as text; mostly
    empty.

    >>> x, y = torch.ones(3, 8), torch.ones(3, 4)
    >>> sharing((x, y), ("x", "y"), {Place(0, "x", 0): 5})
    'y[0]'
    """
    changes = _Changes.of(args, new)
    old = {each.old for each in changes.dimensions}
    found = [
        f"{name}[{k}]"
        for name, value in leaves(args, parameters)
        if isinstance(value, torch.Tensor)
        for k, size in _open(value)
        if size in old and (id(value), k) not in changes.named
    ]
    return ", ".join(found)


class _Change(NamedTuple):
    old: int
    new: int


class _Changes(NamedTuple):
    """What changes in some arguments."""

    named: Mapping[tuple[int, int], int]
    """The new size by the id of a tensor and the dimension, also where it is the old one."""
    dimensions: tuple[_Change, ...]
    """Resized dimensions."""
    integers: Mapping[int, _Change]
    """Integers by the number of the argument, also those that stay."""

    @classmethod
    def of(cls, args: tuple[Any, ...], new: Sizes) -> _Changes:
        named: dict[tuple[int, int], int] = {}
        for place, size in new.items():
            if place.dimension is None:
                continue
            key = id(args[place.at]), place.dimension
            if named.setdefault(key, size) != size:
                raise NotResizable(f"two arguments are one tensor, and {place} gets two sizes")
        pairs = [(place.size(args), size, place.dimension) for place, size in new.items()]
        dims = [_Change(old, size) for old, size, dim in pairs if dim is not None and old != size]
        whole = {p.at: _Change(args[p.at], n) for p, n in new.items() if p.dimension is None}
        return cls(named, tuple(dims), whole)

    def __str__(self) -> str:
        return ", ".join(sorted({str(size) for size in self.named.values()}))

    @property
    def limit(self) -> int | None:
        """What integers in tensors stay below: the least size of a dimension that shrinks."""
        return min((each.new for each in self.dimensions if each.new < each.old), default=None)

    def sizes(self, tensor: Any) -> tuple[int, ...]:
        """The new sizes of a tensor."""
        return tuple(self.named.get((id(tensor), k), n) for k, n in enumerate(tensor.shape))

    def elements(self, tensor: torch.Tensor) -> int | None:
        """The elements of the new tensor, with its room; None where the tensor stays as it is."""
        sizes = self.sizes(tensor)
        rooms = [self._room(tensor, sizes), *self._counted(tensor, sizes)]
        most = max([0, *(c.new for c in self._alone() if c.old <= tensor.numel())])
        same = sizes == tuple(tensor.shape)
        if same and most <= tensor.numel() and rooms == [sizes] and not self._is_bounded(tensor):
            return None
        strides = tensor.stride() if same else _dense(sizes, tensor)
        return max(most, *(max(math.prod(room), _extent(room, strides)) for room in rooms))

    def _room(self, tensor: torch.Tensor, sizes: tuple[int, ...]) -> tuple[int, ...]:
        """The sizes if all dimensions grew that have the old size of one that grows."""
        every = [*self.dimensions, *self.integers.values()]
        found = list(sizes)
        for k, size in _open(tensor):
            if (id(tensor), k) not in self.named:
                found[k] = max([size, *(each.new for each in every if each.old == size)])
        return tuple(found)

    def _counted(self, tensor: torch.Tensor, sizes: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        """The sizes if one dimension grew, of which an integer may count a part."""
        for each in self._alone():
            for k, size in _open(tensor):
                if (id(tensor), k) not in self.named and each.old <= size < each.new:
                    yield (*sizes[:k], each.new, *sizes[k + 1 :])

    def _alone(self) -> set[_Change]:
        """The integers that change without a dimension, which would be the one that they count."""
        return set(self.integers.values()).difference(self.dimensions)

    def _is_bounded(self, tensor: torch.Tensor) -> bool:
        kind = tensor.dtype
        whole = not (kind.is_floating_point or kind.is_complex or kind == torch.bool)
        return whole and self.limit is not None

    def tensor(self, tensor: torch.Tensor) -> torch.Tensor:
        """The new tensor."""
        elements = self.elements(tensor) if type(tensor) in _PLAIN else None
        if elements is None:
            return tensor
        sizes = self.sizes(tensor)
        made = tensor.detach()
        if sizes != tuple(tensor.shape):
            made = filled(tensor, sizes)
        extent = _extent(sizes, made.stride())
        memory = torch.zeros(elements, dtype=tensor.dtype, device=tensor.device)
        # The memory is copied, gaps included: torch does not copy into overlapping elements.
        memory[:extent].copy_(made.as_strided((extent,), (1,), made.storage_offset()))
        if self.limit is not None:
            memory = bounded(memory, self.limit)
        made = memory.as_strided(sizes, made.stride())
        made.requires_grad_(tensor.requires_grad)
        made.__dict__.update(tensor.__dict__)
        return made


_PLAIN = (torch.Tensor, torch.nn.Parameter)


def _open(tensor: torch.Tensor) -> Iterator[tuple[int, int]]:
    """The dimensions that may differ between calls with the same key, and their sizes."""
    static = static_dims(tensor)
    return ((k, n) for k, n in enumerate(tensor.shape) if n > 1 and k not in static)


def _extent(sizes: Sequence[int], strides: Sequence[int]) -> int:
    """The elements from the first to the last in memory."""
    if 0 in sizes:
        return 0
    return 1 + sum((n - 1) * step for n, step in zip(sizes, strides, strict=True))


def _dense(sizes: Sequence[int], tensor: torch.Tensor) -> tuple[int, ...]:
    """The strides that `filled` gives a tensor of these sizes."""
    found = tensor.stride()
    order = sorted(range(len(sizes)), key=lambda k: (-found[k], k))
    strides, step = [0] * len(sizes), 1
    for k in reversed(order):
        strides[k], step = step, step * max(sizes[k], 1)
    return tuple(strides)


def _check_plain(name: str, tensor: torch.Tensor) -> None:
    if type(tensor) not in _PLAIN or tensor.layout is not torch.strided:
        kind = type(tensor).__name__ if type(tensor) not in _PLAIN else f"{tensor.layout} tensor"
        raise NotResizable(f"argument {name!r} is a {kind}")


def _check_held(name: str, value: Any, changes: _Changes) -> None:
    """Reject objects whose tensors may have to grow: they stay as they are."""
    for tensor in tensors_in(value):
        if changes.elements(tensor) is not None:
            raise NotResizable(
                f"argument {name!r} is a {type(value).__name__}, and holds a tensor of sizes "
                f"{tuple(tensor.shape)}, which may have to be resized: pass it as an argument of "
                "its own"
            )


# -- integers ------------------------------------------------------------------------------------


class _Numbers(NamedTuple):
    """What becomes of integers that are not named."""

    moved: Mapping[int, int | None]
    """Old sizes and element counts of what is resized, to new ones; None where two disagree."""
    kept: frozenset[int]
    """Sizes and element counts that stay."""
    least: int | None
    """The least new size."""

    @classmethod
    def of(cls, args: tuple[Any, ...], parameters: Sequence[str], changes: _Changes) -> _Numbers:
        moved: dict[int, int | None] = {}
        kept: set[int] = set()
        for _, value in leaves(args, parameters):
            if isinstance(value, (torch.Tensor, Spec)):
                old, new = tuple(value.shape), changes.sizes(value)
                counts = [(math.prod(old), math.prod(new))] if len(old) > 1 else []
                for before, after in [*zip(old, new, strict=True), *counts]:
                    if before == after:
                        kept.add(before)
                    else:
                        moved[before] = after if moved.get(before, after) == after else None
        least = min((each.new for each in changes.dimensions), default=None)
        return cls(moved, frozenset(kept), least)

    def of_integer(self, name: str, value: int) -> int:
        """The new value of an integer that is not named."""
        advice = f"name it: size_hints={{{name!r}: [...]}}"
        if value in self.moved:
            new = self.moved[value]
            if new is None or value in self.kept:
                raise NotResizable(
                    f"argument {name!r} is {value}, the size of a dimension that is resized, and "
                    f"of another one; {advice}"
                )
            return new
        if value not in self.kept and self.least is not None and abs(value) > self.least:
            raise NotResizable(
                f"argument {name!r} is {value}, which is the size of no tensor, and more than the "
                f"size hint {self.least}; {advice}"
            )
        return value


def _with_integers(
    args: tuple[Any, ...], parameters: Sequence[str], changes: _Changes, numbers: _Numbers
) -> tuple[Any, ...]:
    for name, value in leaves(args, parameters):
        if name not in parameters or type(value) is torch.Size:
            for each in value if type(value) is torch.Size else (value,):
                if type(each) is int and numbers.of_integer(name, each) != each:
                    raise NotResizable(f"{name} is {value}, which may be a size, and is in a list")
    return tuple(
        changes.integers[k].new
        if k in changes.integers
        else numbers.of_integer(name, value)
        if type(value) is int
        else value
        for k, (name, value) in enumerate(zip(parameters, args, strict=True))
    )
