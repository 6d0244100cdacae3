"""Copies of arguments: a candidate writes to these, never to the caller's tensors.

::

    arguments ── Copies ──► new storages, allocated once ── taken() ──► arguments in those storages
                               │  ▲                          restore(): the original contents again
                               │  └── changed(): which storages a call wrote to
                               └───── kept(value): results, safe from the next restore

Enters: arguments, nested in lists, tuples, dicts and dataclasses. Leaves: the same with new tensors
that have the same strides, storage offsets and alignment, and share memory where the originals do.
It must not know what is called with them.
"""

from __future__ import annotations

import array
import copy
import ctypes
import dataclasses
import functools
import sys
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from enum import Enum
from types import CellType, FunctionType, MappingProxyType, MethodType, ModuleType
from typing import Any, NamedTuple

import torch
from torch.utils.dlpack import from_dlpack

from tzero.adapters.torch_internals import negated_view, storage_id
from tzero.errors import UnsupportedType

__all__ = [
    "Copies",
    "Location",
    "View",
    "attributes",
    "bytes_of",
    "copies",
    "has_contents",
    "held_by",
    "location_of",
    "location_of_storage",
    "new_storages",
    "sparse_parts",
    "tensor_of",
    "tensors_in",
    "view_of",
    "walk",
]

_ALIGNED = 512  # what CUDA's own allocations are multiples of, and a multiple of 16


def copies(args: Any) -> Any:
    """A copy of some arguments, for kernels that work in place or accumulate.

    Lists, tuples, dicts and dataclasses are walked; other objects stay the same. Tensors that share
    memory share it in the copies, one object stays one object, and every tensor keeps its strides,
    its storage offset and its alignment. Storages are copied whole.

    >>> x = torch.arange(6.0)
    >>> y, [row] = copies((x, [x[2:4]]))
    >>> _ = row.fill_(9)
    >>> y, x
    (tensor([0., 1., 9., 9., 4., 5.]), tensor([0., 1., 2., 3., 4., 5.]))
    """
    return Copies(args).taken()


class Copies:
    """Copies of arguments: allocated once, restored before each use.

    >>> x = torch.ones(2)
    >>> held = Copies([x])
    >>> [y] = held.taken()
    >>> _ = y.add_(1)
    >>> len(held.changed()), held.restore(), y
    (1, None, tensor([1., 1.]))
    """

    def __init__(self, args: Any) -> None:
        self._args = args
        self._holders = {location_of(tensor): tensor for tensor in tensors_in(args)}
        self._storages = _storages(self._holders)

    def taken(self) -> Any:
        """The arguments with copies in place of their tensors: each time new lists, dicts and
        tensor objects, in the same memory."""
        return walk(self._args, lambda each: _tensor(each, self._storages[location_of(each)]), {})

    def tensors(self, taken: Any) -> dict[Location, torch.Tensor]:
        """A tensor of taken copies for each storage, by the location of the original."""
        places = {storage_id(storage): each for each, storage in self._storages.items()}
        found = [each for each in tensors_in(taken) if each.layout is torch.strided]
        return {places[storage_id(e)]: e for e in found if storage_id(e) in places}

    def has(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor is in the memory of the copies."""
        return storage_id(tensor) in {storage_id(each) for each in self._storages.values()}

    def restore(self, locations: Collection[Location] | None = None) -> None:
        """Copy the contents of the arguments again: into all copies, or into these."""
        for location in self._storages if locations is None else locations:
            if has_contents(location):
                _fill(self._storages[location], self._holders[location].untyped_storage())

    def changed(self) -> list[Location]:
        """The storages whose bytes differ from those of the arguments."""
        return [
            location
            for location, storage in self._storages.items()
            if has_contents(location)
            and not _equal(storage, self._holders[location].untyped_storage())
        ]

    def kept(self, value: Any) -> Any:
        """A snapshot of a value, such as the results of a call, in memory that neither the next
        call nor `restore` writes to. Copies that were not changed are not copied again: the
        arguments have the same contents.

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
        for location, storage in self._storages.items():
            first = self._holders[location].untyped_storage()
            homes[storage_id(storage)] = _cloned(storage) if location in changed else first
        found = [each for each in tensors_in(value) if each.layout not in _SPARSE]
        others = [each for each in found if storage_id(each) not in homes]
        made = _storages({location_of(each): each for each in others})

        def visit(each: Any) -> Any:
            if not isinstance(each, torch.Tensor):
                return copy.copy(each)
            if each.layout in _SPARSE:
                return each.detach().clone()
            storage = homes.get(storage_id(each))
            return _tensor(each, made[location_of(each)] if storage is None else storage)

        return walk(value, visit, {}, (torch.Tensor, *_memory_types()))


def _memory_types() -> tuple[type, ...]:
    """Types of objects, other than tensors, whose contents a later call may overwrite."""
    numpy: Any = sys.modules.get("numpy")
    return (bytearray, array.array, set, *(() if numpy is None else (numpy.ndarray,)))


def tensors_in(value: Any) -> list[torch.Tensor]:
    """The tensors in nested lists, tuples, dicts and dataclasses, each once.

    >>> x = torch.ones(2)
    >>> len(tensors_in((x, {"a": [x, x + 1]}, 3)))
    2
    """
    found: list[torch.Tensor] = []
    seen: dict[int, Any] = {}
    waiting = [value]
    while waiting:
        each = waiting.pop()
        if id(each) in seen:
            continue
        seen[id(each)] = each
        if isinstance(each, torch.Tensor):
            found.append(each)
        elif not isinstance(each, _CALLABLES):
            waiting += reversed(_inside(each, len(seen)))
    return found


_SPARSE: Mapping[torch.layout, tuple[str, ...]] = {
    torch.sparse_coo: ("indices", "values"),
    torch.sparse_csr: ("crow_indices", "col_indices", "values"),
    torch.sparse_csc: ("ccol_indices", "row_indices", "values"),
    torch.sparse_bsr: ("crow_indices", "col_indices", "values"),
    torch.sparse_bsc: ("ccol_indices", "row_indices", "values"),
}


def sparse_parts(tensor: torch.Tensor) -> dict[str, torch.Tensor]:
    """The plain tensors that a sparse tensor consists of, by the methods that return them.

    >>> sparse_parts(torch.eye(2).to_sparse())["values"]
    tensor([1., 1.])
    """
    if tensor.layout not in _SPARSE:
        raise UnsupportedType(kind=f"{tensor.layout} tensor", advice="Return plain tensors.")
    tensor = tensor.detach()
    whole = tensor.coalesce() if tensor.layout is torch.sparse_coo else tensor
    return {name: getattr(whole, name)() for name in _SPARSE[tensor.layout]}


def walk(
    value: Any,
    visit: Callable[[Any], Any],
    seen: dict[int, tuple[Any, Any]],
    kind: type | tuple[type, ...] = torch.Tensor,
) -> Any:
    """The value with `visit(each)` in place of each tensor in it, or of each object of other
    types. `seen` maps the id of an object to the object and its replacement; it keeps the object
    alive, so that its id is not reused."""
    if id(value) in seen:
        return seen[id(value)][1]
    made: Any = value
    if isinstance(value, kind):
        made = visit(value)
    elif isinstance(value, list | dict | deque):
        made = copy.copy(value)
        seen[id(value)] = (value, made)  # before its items: it may contain itself
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            made[key] = walk(item, visit, seen, kind)
    elif isinstance(value, tuple):
        items = [walk(item, visit, seen, kind) for item in value]
        if any(new is not old for new, old in zip(items, value, strict=True)):
            make = getattr(type(value), "_make", type(value))
            made = make(items)
    elif isinstance(value, MappingProxyType):
        made = MappingProxyType(walk(dict(value), visit, seen, kind))
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        made = copy.copy(value)
        seen[id(value)] = (value, made)
        for field in dataclasses.fields(value):
            if hasattr(value, field.name):
                item = walk(getattr(value, field.name), visit, seen, kind)
                object.__setattr__(made, field.name, item)  # it may be frozen
    elif not isinstance(value, _CALLABLES) and held_by(value, kind):
        try:
            made = copy.copy(value)
        except Exception:  # of its class: it cannot be copied, and stays the same object
            return value
        if made is value:  # as with an object of which there is only one
            return value
        seen[id(value)] = (value, made)
        for name, each in attributes(value).items():
            item = walk(each, visit, seen, kind)
            if name in getattr(made, "__dict__", ()):
                vars(made)[name] = item
            else:
                object.__setattr__(made, name, item)
    seen[id(value)] = (value, made)
    return made


_MOST_LOOKED_AT = 10_000  # objects, when tensors are searched in an object


def held_by(value: Any, kind: type | tuple[type, ...] = torch.Tensor) -> dict[str, Any]:
    """The attributes of an object in which there are tensors, or objects of another type. Closure
    variables and bound arguments of a function count as its attributes.

    >>> from types import SimpleNamespace
    >>> held_by(SimpleNamespace(a=[torch.ones(1)], b=3))
    {'a': [tensor([1.])]}
    """
    if isinstance(value, kind):
        return {}
    looked_at: dict[int, Any] = {id(value): value}
    return {k: v for k, v in attributes(value).items() if _holds(v, kind, looked_at)}


def _holds(value: Any, kind: type | tuple[type, ...], looked_at: dict[int, Any]) -> bool:
    waiting = [value]
    while waiting:
        each = waiting.pop()
        if isinstance(each, kind):
            return True
        if id(each) not in looked_at:
            looked_at[id(each)] = each
            waiting += _inside(each, len(looked_at))
    return False


def _inside(value: Any, looked_at: int) -> list[Any]:
    """The items of a collection, or the attributes of an object."""
    if isinstance(value, dict | MappingProxyType):
        return list(value.values())
    if isinstance(value, list | tuple | deque):
        return list(value)
    return list(attributes(value).values()) if looked_at < _MOST_LOOKED_AT else []


_CALLABLES = (FunctionType, MethodType, functools.partial)
_NO_OBJECTS = (ModuleType, type, str, int, float, complex, Enum)


def attributes(value: Any) -> dict[str, Any]:
    """The attributes in an object's dict and slots; of a function its closure, of a method its
    object, of a partial what it binds.

    >>> from types import SimpleNamespace
    >>> attributes(SimpleNamespace(a=3))
    {'a': 3}
    """
    if isinstance(value, _NO_OBJECTS):
        return {}
    if isinstance(value, FunctionType):
        cells = zip(value.__code__.co_freevars, value.__closure__ or (), strict=True)
        return {name: each.cell_contents for name, each in cells if each != CellType()}
    if isinstance(value, MethodType):
        return {"__self__": value.__self__}
    if isinstance(value, functools.partial):
        return {"func": value.func, "args": value.args, "keywords": value.keywords}
    found = dict(getattr(value, "__dict__", ()))
    for each in type(value).__mro__:
        slots = each.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in ("__dict__", "__weakref__") and hasattr(value, name):
                found[name] = getattr(value, name)
    return found


Location = tuple[torch.device, int, int, int]
"""Where a storage is: device, address, bytes; and an id, where it has no address."""


def location_of(tensor: torch.Tensor) -> Location:
    """Where a tensor's storage is; `UnsupportedType` for tensors that cannot be copied.

    >>> x = torch.ones(4)
    >>> location_of(x) == location_of(x[2:])
    True
    """
    plain = type(tensor) in (torch.Tensor, torch.nn.Parameter)
    if not plain or tensor.is_nested or tensor.layout is not torch.strided or tensor.is_quantized:
        kind = type(tensor).__name__ if not plain else f"{tensor.layout} tensor"
        raise UnsupportedType(kind=kind, advice="Only plain tensors can be copied; pass those.")
    return location_of_storage(tensor.untyped_storage())


def location_of_storage(storage: torch.UntypedStorage) -> Location:
    """Where a storage is.

    >>> location_of_storage(torch.ones(2).untyped_storage())[2]
    8
    """
    address = storage.data_ptr()
    return storage.device, address, storage.nbytes(), 0 if address else storage_id(storage)


def has_contents(location: Location) -> bool:
    """Whether a storage has any bytes: it is not a meta storage, and not empty.

    >>> has_contents(location_of(torch.ones(2))), has_contents(location_of(torch.ones(0)))
    (True, False)
    """
    return location[0].type != "meta" and location[1] != 0


_CHUNK = 1 << 26  # bytes compared at once


def _equal(mine: torch.UntypedStorage, other: torch.UntypedStorage) -> bool:
    pairs = zip(
        torch.split(bytes_of(mine), _CHUNK), torch.split(bytes_of(other), _CHUNK), strict=True
    )
    return all(torch.equal(one, two) for one, two in pairs)


def _cloned(storage: torch.UntypedStorage) -> torch.UntypedStorage:
    return bytes_of(storage).clone().untyped_storage()


def bytes_of(storage: torch.UntypedStorage) -> torch.Tensor:
    """The contents of a storage, as a view.

    >>> bytes_of(torch.tensor([1, 2], dtype=torch.uint8).untyped_storage())
    tensor([1, 2], dtype=torch.uint8)
    """
    whole = torch.empty(0, dtype=torch.uint8, device=storage.device)
    return whole.set_(storage, 0, (storage.nbytes(),), (1,))


def _storages(holders: Mapping[Location, torch.Tensor]) -> dict[Location, torch.UntypedStorage]:
    """A new storage for each storage of the tensors, with the same contents."""
    made = new_storages({location: each.is_pinned() for location, each in holders.items()})
    for location, storage in made.items():
        if has_contents(location):
            _fill(storage, holders[location].untyped_storage())
    return made


def _fill(storage: torch.UntypedStorage, other: torch.UntypedStorage) -> None:
    """Copy the contents of a storage into another. On the CPU this is not done by torch: its
    threads keep spinning for a while, on cores that the next timed call needs. Where the sizes
    differ, torch raises."""
    if storage.device.type == "cpu" and storage.nbytes() == other.nbytes():
        ctypes.memmove(storage.data_ptr(), other.data_ptr(), other.nbytes())
    else:
        storage.copy_(other, non_blocking=False)


def new_storages(locations: Mapping[Location, bool]) -> dict[Location, torch.UntypedStorage]:
    """A new, uninitialized storage for each location; storages that overlapped overlap again. The
    locations may be those of another process. The values say which memory is pinned.

    >>> x = torch.ones(2)
    >>> [storage] = new_storages({location_of(x): False}).values()
    >>> storage.nbytes()
    8
    """
    made: dict[Location, torch.UntypedStorage] = {}
    for group in _overlapping(locations):
        device, begin = group[0][:2]
        end = max(address + size for _, address, size, _ in group)
        if not has_contents(group[0]):
            for location in group:
                made[location] = torch.UntypedStorage(location[2], device=device)  # type: ignore[no-untyped-call]
            continue
        ahead = begin % _ALIGNED
        pinned = any(locations[location] for location in group)  # a device may read it
        size = end - begin + 2 * _ALIGNED
        memory = torch.empty(size, dtype=torch.uint8, device=device, pin_memory=pinned)
        ahead += -memory.data_ptr() % _ALIGNED
        for location in group:
            _, address, size, _ = location
            start = ahead + address - begin
            # A tensor that comes by DLPack has a storage that begins where the tensor does.
            made[location] = from_dlpack(memory[start : start + size]).untyped_storage()
    return made


def _overlapping(locations: Iterable[Location]) -> list[list[Location]]:
    groups: list[list[Location]] = []
    end = 0
    for location in sorted(locations, key=lambda location: (str(location[0]), *location[1:])):
        device, address, size, _ = location
        if groups and address and groups[-1][0][0] == device and address < end:
            groups[-1].append(location)
            end = max(end, address + size)
        else:
            groups.append([location])
            end = address + size
    return groups


class View(NamedTuple):
    """Everything about a tensor but its storage; it can be sent to another process."""

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
    """Attributes that were set on it, such as the dimensions that are marked static."""


def view_of(tensor: torch.Tensor) -> View:
    """Everything about a tensor but its storage.

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
    def forward(ctx: Any, anchor: torch.Tensor, *given: Any) -> torch.Tensor:
        return _placed(*given)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[None, None, None]:
        """No gradients: the inputs that it was computed from do not exist here."""
        return None, None, None


def _computed(view: View, storage: torch.UntypedStorage) -> torch.Tensor:
    """A tensor that requires gradients and is not a leaf, like the result of an operation. It may
    be modified in place, which torch forbids for a leaf."""
    anchor = torch.zeros((), requires_grad=True, device=view.device)
    made: torch.Tensor = _Computed.apply(anchor, view, storage)  # type: ignore[no-untyped-call]
    return made


def _tensor(tensor: torch.Tensor, storage: torch.UntypedStorage) -> torch.Tensor:
    return tensor_of(view_of(tensor), storage)
