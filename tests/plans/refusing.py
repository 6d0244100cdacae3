"""Rows of host functions that are not replayed: the function, words of the reason, and its line.

The line is the one marked ``# here``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

Build = Callable[[], tuple[Any, ...]]


class Refused(NamedTuple):
    name: str
    host: Callable[..., Any]
    words: str
    build: Build


def vector() -> tuple[Any, ...]:
    return (torch.arange(1.0, 6.0),)


class Table(list[Refused]):
    """The rows of one subject."""

    def refused(self, words: str, build: Build = vector) -> Callable[[Any], Any]:
        """Add a host function as a row."""

        def add(host: Any) -> Any:
            self.append(Refused(host.__name__, host, words, build))
            return host

        return add
