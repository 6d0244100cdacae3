"""Output pools: output tensors that are reused once nothing refers to them.

    plan's Allocate ──► Ring ── one of its tensors is free and unchanged ──► that one
                         └ else ── a new one, which the ring keeps

Enters: a function that makes a tensor. Leaves: a tensor that nothing else refers to. It must not
know plans.

A tensor is free if only its ring refers to it: no Python name, no weak reference, nothing in C++
(such as an autograd graph), and nothing refers to its storage, as a view would. It is unchanged if
its geometry, memory, version and flags are those it was returned with. On CUDA it is reused only on
the same stream, whose work is in order, and never during graph capture, because the graph would go
on writing to it. A ring cannot see that another stream uses a tensor without a reference to it:
`Tensor.record_stream` informs torch's allocator, which the ring bypasses. Users who pass outputs to
other streams must keep a reference until those are done, or use no pool.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from tzero.adapters.torch_internals import hooks_of, storage_id, uses, version
from tzero.adapters.torch_layout import reference_words

__all__ = ["Ring", "Stats", "clear", "stats"]

MOST = 4
"""How many tensors a ring keeps at most."""


class Stats(NamedTuple):
    """How often all rings reused or made a tensor, and what they hold now.

    >>> Stats(reused=3, made=1, tensors=1, bytes=16384).made
    1
    """

    reused: int
    made: int
    tensors: int
    bytes: int


class Ring:
    """The tensors of one allocation in a plan.

    >>> ring = Ring(lambda: torch.empty(3))
    >>> one = ring.take(); address = one.data_ptr(); del one
    >>> ring.take().data_ptr() == address
    True
    """

    __slots__ = ("__weakref__", "_kept", "_make", "made", "reused")

    def __init__(self, make: Callable[[], torch.Tensor]) -> None:
        self._make = make
        self._kept: list[tuple[torch.Tensor, Any]] = []
        self.made, self.reused = 0, 0
        added(self)

    def take(self) -> torch.Tensor:
        """A tensor that nothing else refers to."""
        place = _place()
        if place is not None:
            for _ in range(len(self._kept)):
                # Removed while it is checked, so that other threads check other tensors.
                try:
                    tensor, was = self._kept.pop(0)
                except IndexError:
                    break
                now = _state(tensor, place)
                free = sys.getrefcount(tensor) == 2 and not weakref.getweakrefcount(tensor)
                if free and now == was:
                    self._kept.append((tensor, was))
                    self.reused += 1
                    return tensor
                if _may_come_back(now, was):
                    self._kept.append((tensor, was))
                del tensor
        made = self._make()
        self.made += 1
        if place is not None:
            # All are in use or changed: drop the oldest.
            del self._kept[: max(0, len(self._kept) - MOST + 1)]
            self._kept.append((made, _state(made, place)))
        return made

    def clear(self) -> None:
        """Drop all tensors."""
        self._kept.clear()

    def held(self) -> list[torch.Tensor]:
        """The tensors in the ring."""
        return [tensor for tensor, _ in self._kept]


_rings: dict[int, weakref.ref[Any]] = {}
"""All rings by id, those of native plans included. Every access is one operation of the dict in C,
so it is atomic for other threads and for destructors."""


def added(ring: Any) -> Any:
    """Register a ring with `stats` and `clear`; returns it."""
    known = id(ring)
    _rings[known] = weakref.ref(ring, lambda _: _rings.pop(known, None))
    return ring


def _all() -> list[Any]:
    return [ring for ring in (known() for known in list(_rings.values())) if ring is not None]


def stats() -> Stats:
    """The totals of all rings in the process.

    >>> stats().reused >= 0
    True
    """
    rings = _all()
    held = [tensor for ring in rings for tensor in ring.held()]
    return Stats(
        sum(ring.reused for ring in rings),
        sum(ring.made for ring in rings),
        len(held),
        sum(map(_bytes, held)),
    )


def clear() -> None:
    """Drop the tensors of all rings; tensors in use are not affected.

    >>> clear()
    >>> stats().tensors
    0
    """
    for ring in _all():
        ring.clear()


def _bytes(tensor: torch.Tensor) -> int:
    """The size of a tensor's memory. It does not use the storage object, because creating that
    would count as a reference to the storage."""
    last = sum((size - 1) * step for size, step in zip(tensor.size(), tensor.stride(), strict=True))
    return (last + 1) * tensor.element_size() if tensor.numel() else 0


def _place() -> Any:
    """The current CUDA stream, () without CUDA, None while no tensor may be reused."""
    if torch.are_deterministic_algorithms_enabled():  # new memory is filled then
        return None
    if not torch.cuda.is_available() or not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return ()
    if torch.cuda.is_current_stream_capturing():
        return None
    return torch.cuda.current_stream().cuda_stream


def _state(tensor: torch.Tensor, place: Any) -> tuple[Any, ...]:
    """Everything that must be unchanged for a tensor to be reused."""
    storage = tensor.untyped_storage()
    # A storage has one Python object as long as it lives, so its references can be counted there.
    holders = (sys.getrefcount(storage), weakref.getweakrefcount(storage))
    return (
        place,
        (type(tensor), tensor.dtype, tensor.size(), tensor.stride(), tensor.storage_offset()),
        (tensor.data_ptr(), storage_id(storage)),
        (uses(tensor), holders, reference_words(tensor)),
        (None if tensor.is_inference() else version(tensor), tensor.is_inference()),
        (tensor.requires_grad, tensor.grad_fn, tensor.grad if tensor.is_leaf else False),
        hooks_of(tensor),
        (tensor.is_conj(), tensor.is_neg(), bool(tensor.__dict__)),
    )


def _may_come_back(now: tuple[Any, ...], was: tuple[Any, ...]) -> bool:
    """Whether a tensor may become free later: references go away, changes do not."""
    return now[1:3] == was[1:3] and now[4:] == was[4:]
