"""Arguments with memory of their own: what a candidate writes, it writes there.

::

    arguments ── Copies ──► storages of their own, made once ── taken() ──► arguments like them
                               │  ▲                              restore(): as they were at first
                               │  └── changed(): which storages a call wrote to
                               └───── kept(value): results, out of the way of the next restore

Enters: arguments of any nest. Leaves: the same nest with other tensors: of the same strides,
storage offsets and alignment, sharing memory where the first do. It must not know what is called
with them.
"""

from __future__ import annotations

import copy
import ctypes
import dataclasses
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, NamedTuple

import torch
from torch.utils.dlpack import from_dlpack

from tzero.adapters.torch_internals import negated_view, storage_id
from tzero.errors import UnsupportedType

__all__ = [
    "Copies",
    "Place",
    "View",
    "bytes_of",
    "copies",
    "has_contents",
    "place_of",
    "place_of_storage",
    "rooms",
    "tensor_of",
    "tensors_in",
    "view_of",
]

_ALIGNED = 512  # what CUDA's own allocations are multiples of, and a multiple of 16


def copies(args: Any) -> Any:
    """Arguments with tensors of their own, for kernels that work in place or accumulate.

    Lists, tuples, dicts and dataclasses are walked; what else there is stays the same object. What
    shared memory shares it in the copies, what was one object is one again, and every tensor keeps
    its strides, its storage offset, and its alignment. Storages are copied whole.

    >>> x = torch.arange(6.0)
    >>> y, [row] = copies((x, [x[2:4]]))
    >>> _ = row.fill_(9)
    >>> y, x
    (tensor([0., 1., 9., 9., 4., 5.]), tensor([0., 1., 2., 3., 4., 5.]))
    """
    return Copies(args).taken()


class Copies:
    """Copies of arguments that are made once, and put back to what they were before each use.

    >>> x = torch.ones(2)
    >>> held = Copies([x])
    >>> [y] = held.taken()
    >>> _ = y.add_(1)
    >>> len(held.changed()), held.restore(), y
    (1, None, tensor([1., 1.]))
    """

    def __init__(self, args: Any) -> None:
        self._args = args
        self._holders = {place_of(tensor): tensor for tensor in tensors_in(args)}
        self._storages = _storages(self._holders)

    def taken(self) -> Any:
        """The arguments, with the copies in place of their tensors: new lists, dicts and tensors
        each time, in the same memory each time."""
        return walk(self._args, lambda each: _tensor(each, self._storages[place_of(each)]), {})

    def restore(self, places: Collection[Place] | None = None) -> None:
        """Give the copies the contents of the arguments: all of them, or those at these places."""
        for place in self._storages if places is None else places:
            if has_contents(place):
                _fill(self._storages[place], self._holders[place].untyped_storage())

    def changed(self) -> list[Place]:
        """Where the contents are no longer those of the arguments, bit by bit."""
        return [
            place
            for place, storage in self._storages.items()
            if has_contents(place) and not _equal(storage, self._holders[place].untyped_storage())
        ]

    def kept(self, value: Any) -> Any:
        """A value, such as the results of a call, as it is now: with memory that neither the next
        call nor `restore` writes to. Copies that were not changed need none: they are as the
        arguments are.

        >>> x = torch.zeros(2)
        >>> held = Copies(x)
        >>> y = held.taken()
        >>> before = held.kept(y.add_(1))
        >>> held.restore()
        >>> before
        tensor([1., 1.])
        """
        changed = self.changed()
        homes: dict[int, torch.UntypedStorage] = {}
        for place, storage in self._storages.items():
            first = self._holders[place].untyped_storage()
            homes[storage_id(storage)] = _cloned(storage) if place in changed else first
        others = [each for each in tensors_in(value) if _home(each) not in homes]
        made = _storages({place_of(each): each for each in others})

        def visit(tensor: torch.Tensor) -> torch.Tensor:
            storage = homes.get(_home(tensor))
            return _tensor(tensor, made[place_of(tensor)] if storage is None else storage)

        return walk(value, visit, {})


def tensors_in(value: Any) -> list[torch.Tensor]:
    """The tensors in a nest of lists, tuples, dicts and dataclasses, each once.

    >>> x = torch.ones(2)
    >>> len(tensors_in((x, {"a": [x, x + 1]}, 3)))
    2
    """
    found: list[torch.Tensor] = []

    def gather(tensor: torch.Tensor) -> torch.Tensor:
        found.append(tensor)
        return tensor

    walk(value, gather, {})
    return found


def walk(
    value: Any,
    visit: Callable[[Any], Any],
    seen: dict[int, tuple[Any, Any]],
    kind: type = torch.Tensor,
) -> Any:
    """The value with what `visit` makes of each tensor in it, or of what else has this type. `seen`
    has objects, and what became of them, by their ids: it holds them, so that no other object can
    get the id of one."""
    if id(value) in seen:
        return seen[id(value)][1]
    made: Any = value
    if isinstance(value, kind):
        made = visit(value)
    elif isinstance(value, list | dict):
        made = copy.copy(value)
        seen[id(value)] = (value, made)  # before its items: it may hold itself
        for place, item in value.items() if isinstance(value, dict) else enumerate(value):
            made[place] = walk(item, visit, seen, kind)
    elif isinstance(value, tuple):
        items = [walk(item, visit, seen, kind) for item in value]
        if any(new is not old for new, old in zip(items, value, strict=True)):
            make = getattr(type(value), "_make", type(value))
            made = make(items)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        made = copy.copy(value)
        seen[id(value)] = (value, made)
        for field in dataclasses.fields(value):
            if hasattr(value, field.name):
                item = walk(getattr(value, field.name), visit, seen, kind)
                object.__setattr__(made, field.name, item)  # it may be frozen
    seen[id(value)] = (value, made)
    return made


Place = tuple[torch.device, int, int, int]
"""Where a storage is: device, address, bytes; and which it is, where it has no address."""


def place_of(tensor: torch.Tensor) -> Place:
    """Where a tensor's storage is; tensors that copies cannot be made of are refused.

    >>> x = torch.ones(4)
    >>> place_of(x) == place_of(x[2:])
    True
    """
    plain = type(tensor) in (torch.Tensor, torch.nn.Parameter)
    if not plain or tensor.is_nested or tensor.layout is not torch.strided or tensor.is_quantized:
        kind = type(tensor).__name__ if not plain else f"{tensor.layout} tensor"
        raise UnsupportedType(kind=kind, advice="Plain tensors can be copied; pass such ones.")
    return place_of_storage(tensor.untyped_storage())


def place_of_storage(storage: torch.UntypedStorage) -> Place:
    """Where a storage is.

    >>> place_of_storage(torch.ones(2).untyped_storage())[2]
    8
    """
    address = storage.data_ptr()
    return storage.device, address, storage.nbytes(), 0 if address else storage_id(storage)


def _home(tensor: torch.Tensor) -> int:
    """Which storage a tensor has."""
    return storage_id(tensor)


def has_contents(place: Place) -> bool:
    """Whether there is anything at a place.

    >>> has_contents(place_of(torch.ones(2))), has_contents(place_of(torch.ones(0)))
    (True, False)
    """
    return place[0].type != "meta" and place[1] != 0


_CHUNK = 1 << 26  # bytes compared at once


def _equal(mine: torch.UntypedStorage, other: torch.UntypedStorage) -> bool:
    pairs = zip(
        torch.split(bytes_of(mine), _CHUNK), torch.split(bytes_of(other), _CHUNK), strict=True
    )
    return all(torch.equal(one, two) for one, two in pairs)


def _cloned(storage: torch.UntypedStorage) -> torch.UntypedStorage:
    return bytes_of(storage).clone().untyped_storage()


def bytes_of(storage: torch.UntypedStorage) -> torch.Tensor:
    """The contents of a storage, where they are.

    >>> bytes_of(torch.tensor([1, 2], dtype=torch.uint8).untyped_storage())
    tensor([1, 2], dtype=torch.uint8)
    """
    whole = torch.empty(0, dtype=torch.uint8, device=storage.device)
    return whole.set_(storage, 0, (storage.nbytes(),), (1,))


def _storages(holders: Mapping[Place, torch.Tensor]) -> dict[Place, torch.UntypedStorage]:
    """A new storage for each that the tensors have, with the same contents."""
    made = rooms({place: each.is_pinned() for place, each in holders.items()})
    for place, storage in made.items():
        if has_contents(place):
            _fill(storage, holders[place].untyped_storage())
    return made


def _fill(storage: torch.UntypedStorage, other: torch.UntypedStorage) -> None:
    """Give a storage the contents of another. On the CPU not by torch, whose threads spin for a
    while after what they did, on the cores that what is timed next is to have. Where they are not
    of one size any more, torch says so."""
    if storage.device.type == "cpu" and storage.nbytes() == other.nbytes():
        ctypes.memmove(storage.data_ptr(), other.data_ptr(), other.nbytes())
    else:
        storage.copy_(other, non_blocking=False)


def rooms(places: Mapping[Place, bool]) -> dict[Place, torch.UntypedStorage]:
    """A new storage like each of these, with any contents; those that overlap do so again. The
    places may be of another process. Each comes with whether its memory is pinned.

    >>> x = torch.ones(2)
    >>> [storage] = rooms({place_of(x): False}).values()
    >>> storage.nbytes()
    8
    """
    made: dict[Place, torch.UntypedStorage] = {}
    for group in _overlapping(places):
        device, begin = group[0][:2]
        end = max(address + size for _, address, size, _ in group)
        if not has_contents(group[0]):
            for place in group:
                made[place] = torch.UntypedStorage(place[2], device=device)  # type: ignore[no-untyped-call]
            continue
        ahead = begin % _ALIGNED
        pinned = any(places[place] for place in group)  # a device may read it
        size = end - begin + 2 * _ALIGNED
        room = torch.empty(size, dtype=torch.uint8, device=device, pin_memory=pinned)
        ahead += -room.data_ptr() % _ALIGNED
        for place in group:
            _, address, size, _ = place
            start = ahead + address - begin
            # A tensor that comes by DLPack has a storage that begins where the tensor does.
            made[place] = from_dlpack(room[start : start + size]).untyped_storage()
    return made


def _overlapping(places: Iterable[Place]) -> list[list[Place]]:
    groups: list[list[Place]] = []
    end = 0
    for place in sorted(places, key=lambda place: (str(place[0]), *place[1:])):
        device, address, size, _ = place
        if groups and address and groups[-1][0][0] == device and address < end:
            groups[-1].append(place)
            end = max(end, address + size)
        else:
            groups.append([place])
            end = address + size
    return groups


class View(NamedTuple):
    """What a tensor is besides its storage; it can be sent to another process.

    >>> view_of(torch.ones(2, 3)).strides
    (3, 1)
    """

    dtype: torch.dtype
    device: torch.device
    offset: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    conj: bool
    neg: bool
    parameter: bool
    grad: bool
    leaf: bool
    attributes: dict[str, Any]
    """What someone has put on it: dimensions that are marked static, for one."""


def view_of(tensor: torch.Tensor) -> View:
    """What a tensor is besides its storage.

    >>> view_of(torch.ones(4)[1:]).offset
    1
    """
    return View(
        tensor.dtype,
        tensor.device,
        int(tensor.storage_offset()),
        tuple(tensor.size()),
        tuple(tensor.stride()),
        tensor.is_conj(),
        tensor.is_neg(),
        isinstance(tensor, torch.nn.Parameter),
        tensor.requires_grad,
        tensor.is_leaf,
        tensor.__dict__,
    )


def tensor_of(view: View, storage: torch.UntypedStorage) -> torch.Tensor:
    """A tensor in a storage.

    >>> x = torch.arange(4)
    >>> tensor_of(view_of(x[1:]), x.untyped_storage())
    tensor([1, 2, 3])
    """
    computed = view.grad and not view.leaf
    with torch.set_grad_enabled(computed):
        made = _computed(view, storage) if computed else _placed(view, storage)
        made = made.conj() if view.conj else made
        made = negated_view(made) if view.neg else made
    if view.parameter:
        made = torch.nn.Parameter(made, requires_grad=view.grad)
    elif view.grad and view.leaf:
        made.requires_grad_()
    made.__dict__.update(view.attributes)
    return made


def _placed(view: View, storage: torch.UntypedStorage) -> torch.Tensor:
    made = torch.empty(0, dtype=view.dtype, device=view.device)
    return made.set_(storage, view.offset, view.sizes, view.strides)


class _Computed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, anchor: torch.Tensor, *place: Any) -> torch.Tensor:
        return _placed(*place)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[None, None, None]:
        """What it was computed from is not there."""
        return None, None, None


def _computed(view: View, storage: torch.UntypedStorage) -> torch.Tensor:
    """A tensor as one that was computed, with gradients: what is in it may be written over, which
    torch forbids where it was made so."""
    anchor = torch.zeros((), requires_grad=True, device=view.device)
    made: torch.Tensor = _Computed.apply(anchor, view, storage)  # type: ignore[no-untyped-call]
    return made


def _tensor(tensor: torch.Tensor, storage: torch.UntypedStorage) -> torch.Tensor:
    return tensor_of(view_of(tensor), storage)
