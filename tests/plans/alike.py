# mypy: allow-untyped-decorators, disable-error-code="no-untyped-call,no-any-return,misc"
"""Two models with the same parameters, one of which is replayed: after each change they give the
same."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import tzero
from tests.plans.tiers import verifying

__all__ = ["Alike", "kernel", "same"]

kernel: Any = tzero.kernel(graph=True)


def same(one: Any, other: Any) -> bool:
    """Whether two results are alike in all that torch says of them."""
    if isinstance(one, Tensor):
        facts = [
            (t.dtype, t.shape, t.stride(), t.requires_grad, t.is_inference()) for t in (one, other)
        ]
        values = [t.detach().clone() for t in (one, other)]
        return facts[0] == facts[1] and torch.equal(*values)
    if isinstance(one, (list, tuple)):
        return type(one) is type(other) and len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[k], other[k]) for k in one)
    return bool(one == other)


def _facts(tensor: Tensor) -> Any:
    facts = tensor.dtype, tensor.shape, tensor.stride(), tensor.requires_grad
    return *facts, tensor.is_inference()


class Alike:
    """A model as it is written, and a copy of it whose step is a kernel. `decorated` says that the
    second of two models has its kernel already."""

    def __init__(self, plain: Any, given: Callable[[], Any], step: Any = None) -> None:
        self.plain, self.given = plain, given
        self.model = copy.deepcopy(plain) if step is None else step
        self.kernel = kernel(self.model.forward) if step is None else step.forward

    def calls(self, count: int = 3) -> None:
        """Make calls of both."""
        for _ in range(count):
            given = self.given()
            given = given if isinstance(given, tuple) else (given,)
            state = torch.get_rng_state()
            wanted = self.plain.forward(*given)
            torch.set_rng_state(state)
            found = self.kernel(*given)
            assert same(found, wanted), (found, wanted)
            for one, other in zip(self.plain.buffers(), self.model.buffers(), strict=True):
                assert torch.equal(one, other), "other buffers"

    def replays(self) -> None:
        """Calls are replayed from the second on."""
        self.calls(2)
        before = self.kernel.stats().native_replays
        self.calls(3)
        why = self.kernel.explain(*self._arguments()).refusal
        assert verifying() or self.kernel.stats().native_replays == before + 3, why

    def changed(self, change: Callable[[Any], object], replayed: bool = True) -> None:
        """Both models change, and still give the same; `replayed`: calls are replayed again."""
        change(self.plain), change(self.model)
        if replayed:
            self.replays()
        else:
            self.calls(3)

    def _arguments(self) -> tuple[Any, ...]:
        given = self.given()
        return given if isinstance(given, tuple) else (given,)
