"""`Slots`: the tensors of one recorded call, by number.

Enters: tensors, when the recorder first sees them. Leaves: their slots, and the values of a call in
terms of these. It must not know steps.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tzero.plans.plan import Constant, Nest, Slot, Tensor, Value, is_sequence_type
from tzero.plans.values import NotAStep, constant_of

__all__ = ["Slots"]


class Slots:
    """The tensors of a call so far."""

    def __init__(self, is_kept: Callable[[Any], bool] = lambda _: False) -> None:
        self.is_generator_kept = is_kept
        """Whether each call draws from the same generator."""
        self.all: list[Slot] = []
        self.tensors: list[torch.Tensor] = []  # of the slots; kept so that ids stay unique
        self.made: set[int] = set()
        """Slots that `Allocate` made."""
        self._of: dict[int, int] = {}

    def of(self, tensor: torch.Tensor) -> int | None:
        """The slot of a tensor; None if it is new."""
        return self._of.get(id(tensor))

    def has(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor has a slot."""
        return id(tensor) in self._of

    def value(
        self, value: Any, what: str, other: Callable[[Any], Value | None] = lambda _: None
    ) -> Value:
        """A value in terms of the slots. `other` is asked for what only some values may hold."""
        if isinstance(value, torch.Tensor):
            slot = self.of(value)
            if slot is None:
                raise NotAStep(f"{what} is a tensor whose origin tzero did not see")
            return Tensor(slot)
        kind = type(value)
        named = isinstance(value, tuple) and (hasattr(kind, "_fields") or is_sequence_type(kind))
        if kind is list or kind is tuple or named:
            return Nest(kind, tuple(self.value(item, what, other) for item in value))
        if kind is dict:
            items = tuple(self.value(item, what, other) for item in value.values())
            return Nest(kind, items, tuple(constant_of(key, what).value for key in value))
        found = other(value)
        if found is not None:
            return found
        if kind is torch.Generator and self.is_generator_kept(value):
            return Constant(value)
        return constant_of(value, what)

    def add(
        self, tensor: torch.Tensor, name: str, leaf: int | None = None, guard: int | None = None
    ) -> int:
        """Number a tensor; returns its slot."""
        slot = len(self.all)
        self._of[id(tensor)] = slot
        self.tensors.append(tensor)
        geometry = (tuple(tensor.size()), tuple(tensor.stride()))
        self.all.append(Slot(name, tensor.dtype, tensor.device, *geometry, leaf, guard))
        return slot
