"""Output tensors that are handed out again once nobody holds them.

    plan's Allocate ──► Ring ── one of its tensors is free, and as it was ──► that one
                         └ else ── a new one, which the ring keeps if it has room

Enters: what makes a tensor. Leaves: a tensor that nobody else has. It must not know plans.

A tensor is free when nothing refers to it but its ring: no Python name, no weak reference, nothing
in C++ (a graph of gradients, say), and nothing to its storage, as every view of it would. And it is
as it was when its geometry, its memory, its version and its flags are those it was handed out with.
On CUDA it goes only to the stream that it went to before, whose work is in order, and to none while
a graph is captured, which would go on writing to it. What cannot be seen is another stream that
works on it without holding it: `Tensor.record_stream` speaks to torch's allocator, and a ring is
before that. Who hands outputs to other streams holds them until these are done, or asks for no
pool.
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
"""How many tensors a ring keeps."""


class Stats(NamedTuple):
    """What the rings that there are have done, and what they hold.

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
        """A tensor that nobody else has."""
        place = _place()
        if place is not None:
            for _ in range(len(self._kept)):
                # Taken out while it is looked at: another thread looks at another one.
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
            # All are held, or not what they were: the one that was handed out first makes room.
            del self._kept[: max(0, len(self._kept) - MOST + 1)]
            self._kept.append((made, _state(made, place)))
        return made

    def clear(self) -> None:
        """Let go of every tensor."""
        self._kept.clear()

    def held(self) -> list[torch.Tensor]:
        """The tensors that it has."""
        return [tensor for tensor, _ in self._kept]


_rings: dict[int, weakref.ref[Any]] = {}
"""Every ring there is, by its id; native plans have such, with the same methods. Each step on it is
one of C's, so that no other thread, and no destructor, sees it half changed."""


def added(ring: Any) -> Any:
    """Have a ring counted by `stats` and emptied by `clear`; returns it."""
    known = id(ring)
    _rings[known] = weakref.ref(ring, lambda _: _rings.pop(known, None))
    return ring


def _all() -> list[Any]:
    return [ring for ring in (known() for known in list(_rings.values())) if ring is not None]


def stats() -> Stats:
    """What all rings of the process did and hold.

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
    """Have every ring let go of its tensors; those that are in use stay with who uses them.

    >>> clear()
    >>> stats().tensors
    0
    """
    for ring in _all():
        ring.clear()


def _bytes(tensor: torch.Tensor) -> int:
    """The size of a tensor's memory; its storage is not asked, because that leaves an object behind
    that counts as one who holds it."""
    last = sum((size - 1) * step for size, step in zip(tensor.size(), tensor.stride(), strict=True))
    return (last + 1) * tensor.element_size() if tensor.numel() else 0


def _place() -> Any:
    """Where work goes now, beyond the CPU; None while no tensor may be used again."""
    if torch.are_deterministic_algorithms_enabled():  # new memory has contents that are known then
        return None
    if not torch.cuda.is_available() or not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return ()
    if torch.cuda.is_current_stream_capturing():
        return None
    return torch.cuda.current_stream().cuda_stream


def _state(tensor: torch.Tensor, place: Any) -> tuple[Any, ...]:
    """All that must be as it was for a tensor to pass for a new one."""
    storage = tensor.untyped_storage()
    # One Python object stands for a storage as long as that lives: who holds it counts there.
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
    """Whether it may be free later: uses end, but changes stay."""
    return now[1:3] == was[1:3] and now[4:] == was[4:]
