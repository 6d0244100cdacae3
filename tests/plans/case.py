"""A case: a host function, a fact besides its arguments that it depends on, and a change of it.

Enters: host functions, decorated. Leaves: `Case` values.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import pytest
import torch

Patch = pytest.MonkeyPatch


def numbers() -> tuple[Any, ...]:
    """The arguments of most cases."""
    return (torch.randn(5, dtype=torch.float32),)


@dataclass(frozen=True, slots=True)
class Case:
    """`change` changes the fact by a patch, or returns a context in which it is changed. `guard` is
    the native guard without which the change would go unnoticed, "none" if steps that run in every
    call see it. The host function must be replayed, unless `refused` has words of the reason why
    not."""

    name: str
    host: Callable[..., Any]
    change: Callable[[Patch], Any]
    guard: str
    build: Callable[[], tuple[Any, ...]]
    refused: str

    def changed(self, patch: Patch) -> AbstractContextManager[Any]:
        """Change the fact."""
        context = self.change(patch)
        return context if isinstance(context, AbstractContextManager) else nullcontext()


class Cases(list[Case]):
    """The cases of one subject."""

    def case(
        self,
        change: Callable[[Patch], Any],
        guard: str = "world",
        build: Callable[[], tuple[Any, ...]] = numbers,
        refused: str = "",
    ) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Add a host function as a case."""

        def add(host: Callable[..., Any]) -> Callable[..., Any]:
            self.append(Case(host.__name__, host, change, guard, build, refused))
            return host

        return add
