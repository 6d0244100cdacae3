"""A row: a host function, and a change of the world after which a stale replay would be wrong.

Enters: decorated host functions. Leaves: tables of `Row`s, and changes that several rows use.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from tests.rows import Rows

Patch = pytest.MonkeyPatch


@dataclass(frozen=True, slots=True)
class Row:
    """`change` changes the world by a patch, or returns a context in which it is changed. The host
    function is replayed, unless `refused` has words of the reason why not. A stale replay is wrong,
    unless not `guarded`: then the steps themselves see the change."""

    name: str
    host: Callable[..., Any]
    change: Callable[[Patch], Any]
    refused: str
    guarded: bool

    def changed(self, patch: Patch) -> AbstractContextManager[Any]:
        """Change the world."""
        context = self.change(patch)
        return context if isinstance(context, AbstractContextManager) else nullcontext()

    def build(self) -> tuple[Any, ...]:
        """The arguments of a call."""
        return (torch.arange(4, dtype=torch.float32),)


def rows() -> Rows[Row]:
    """The rows of one subject."""
    return Rows(_row)


def _row(
    name: str,
    host: Callable[..., Any],
    change: Callable[[Patch], Any],
    refused: str = "",
    guarded: bool = True,
) -> Row:
    return Row(name, host, change, refused, guarded)


# -- changes ---------------------------------------------------------------------------------------


def attribute(owner: Any, name: str, value: Any) -> Callable[[Patch], None]:
    """A change: an attribute has another value, or is new."""
    return lambda patch: patch.setattr(owner, name, value, raising=False)


def added(kind: type, name: str, value: Any) -> Callable[[Patch], Any]:
    """A change: a class gets an attribute that it did not have itself."""

    @contextmanager
    def change() -> Any:
        assert name not in vars(kind)
        setattr(kind, name, value)
        try:
            yield
        finally:
            delattr(kind, name)

    return lambda patch: change()


def item(owner: Any, key: Any, value: Any) -> Callable[[Patch], Any]:
    """A change: a container holds another item."""

    @contextmanager
    def change() -> Any:
        before = owner[key]
        owner[key] = value
        try:
            yield
        finally:
            owner[key] = before

    return lambda patch: change()


def grown(owner: list[Any], value: Any) -> Callable[[Patch], Any]:
    """A change: a list has one more item."""

    @contextmanager
    def change() -> Any:
        owner.append(value)
        try:
            yield
        finally:
            owner.pop()

    return lambda patch: change()


def done(do: Callable[[], Any], undo: Callable[[], Any]) -> Callable[[Patch], Any]:
    """A change by a function, and its way back."""

    @contextmanager
    def change() -> Any:
        do()
        try:
            yield
        finally:
            undo()

    return lambda patch: change()


def nothing(patch: Patch) -> None:
    """No change: what is not replayed runs each time."""
