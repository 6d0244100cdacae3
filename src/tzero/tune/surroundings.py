"""Tensors that a host function reaches without being given them: in globals and closures.

::

    globals, closures ── save ──► snapshots ── restore: before each run, and when the search ends

Enters: what a host function reaches by name. Leaves: the same tensors, with the contents that they
had before the search. It must not know configs, or how calls are made.

A search calls the host function thousands of times. A state that each call changes, such as a
running sum, must not change by that, and all candidates must find the same state. Only what a
watched call changes is restored: other threads may change the rest meanwhile.

Storages above `LARGEST` are left alone: weights are that large, and calls only read them. Numbers,
lists and names that a call assigns are left alone, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from tzero.adapters.torch_internals import storage_id
from tzero.errors import UnsupportedType
from tzero.tune.copying import Location, bytes_of, has_contents, location_of, tensors_in

__all__ = ["LARGEST", "Surroundings"]

LARGEST = 32 << 20
"""Bytes of a storage; larger ones are not saved."""

_MOST = 128 << 20  # bytes of all snapshots; what is found later is not saved


class Surroundings:
    """The tensors, their snapshots, and which of them calls write to.

    >>> total = torch.zeros(2)
    >>> around = Surroundings(lambda: [total])
    >>> around.save()
    >>> with around.watched():
    ...     _ = total.add_(1)
    >>> around.restore(), total
    (None, tensor([0., 0.]))
    """

    def __init__(self, reached: Callable[[], Iterable[Any]] = tuple) -> None:
        self._reached = reached
        self._live: dict[Location, torch.Tensor] = {}
        self._saved: dict[Location, torch.Tensor] = {}
        self._written: set[Location] = set()
        self._bytes = 0

    @property
    def tensors(self) -> Mapping[Location, torch.Tensor]:
        """A tensor in each storage that was saved."""
        return self._live

    def save(self) -> None:
        """Take snapshots of what was not saved yet."""
        for tensor in tensors_in(list(self._reached())):
            try:
                location = location_of(tensor)
            except UnsupportedType:  # a sparse tensor, or a subclass
                continue
            size = location[2]
            new = location not in self._live and has_contents(location)
            if new and size <= LARGEST and self._bytes + size <= _MOST:
                self._live[location] = tensor
                self._saved[location] = bytes_of(tensor.untyped_storage()).clone()
                self._bytes += size

    @contextmanager
    def watched(self) -> Iterator[list[Location]]:
        """A block in which one call is made; what it changes is restored from now on, and is in the
        list after the block."""
        others = self._live.keys() - self._written
        for location in others:
            if not self._is_unchanged(location):  # by another thread
                self._saved[location].copy_(self._contents(location))
        changed: list[Location] = []
        try:
            yield changed
        finally:
            changed += [each for each in self._live if not self._is_unchanged(each)]
            self._written.update(changed)

    def mark(self, tensors: Iterable[torch.Tensor]) -> set[Location]:
        """Restore the storages of these from now on, because they will be written to; returns
        which are here."""
        ids = {storage_id(each) for each in tensors if each.layout is torch.strided}
        found = {k for k, each in self._live.items() if storage_id(each) in ids}
        self._written |= found
        return found

    def restore(self) -> None:
        """Give what calls have written to the saved contents."""
        for location in self._written:
            self._contents(location).copy_(self._saved[location])

    @property
    def are_written(self) -> bool:
        """Whether a call has written to any of them."""
        return bool(self._written)

    def _is_unchanged(self, location: Location) -> bool:
        return torch.equal(self._contents(location), self._saved[location])

    def _contents(self, location: Location) -> torch.Tensor:
        return bytes_of(self._live[location].untyped_storage())
