"""One row of the Helion suite: a kernel, its inputs, and the expected result from torch.

Enters: functions in Helion's language under `@row(...)`. Leaves: `Row`s in source order, which the
tests run and from which the table of docs/helion.md is generated. It must not know of tzero: a row
is a program written for Helion.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from importlib.metadata import version
from types import ModuleType
from typing import Any

import helion
import torch
from packaging.version import Version

__all__ = ["Inputs", "Row", "Wanted", "limit", "row", "rows_of"]

Inputs = Callable[[], tuple[Any, ...]]
Wanted = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Row:
    """One kernel and its feature; `error` and `why` are set if the CPU cannot run it.

    `error` is the start of the message that it must fail with. A row that starts to work fails the
    suite, so that the list of limits stays true.
    """

    name: str
    feature: str
    kernel: Any
    inputs: Inputs
    wanted: Wanted
    rtol: float
    atol: float
    since: str = ""
    error: str = ""
    why: str = ""

    @property
    def there(self) -> bool:
        """Whether the installed Helion has the feature."""
        return not self.since or Version(version("helion")) >= Version(self.since)

    def fresh(self) -> tuple[Any, ...]:
        """New inputs, equal each time, because kernels may write to them."""
        torch.manual_seed(0)
        return self.inputs()

    def expected(self) -> Any:
        """The expected result, computed by torch."""
        return self.wanted(*self.fresh())


def row(
    feature: str,
    inputs: Inputs,
    wanted: Wanted,
    *,
    static_shapes: bool = True,
    key: Callable[..., Any] | None = None,
    rtol: float = 1e-5,
    atol: float = 1e-5,
    since: str = "",
    **config: Any,
) -> Callable[[Callable[..., Any]], Row]:
    """Make a row of a function, with one config, so that nothing is tuned."""

    def make(function: Callable[..., Any]) -> Row:
        pinned = helion.Config(**{"num_warps": 4, "num_stages": 1, **config})
        kernel = helion.kernel(config=pinned, static_shapes=static_shapes, key=key)(function)
        return Row(function.__name__, feature, kernel, inputs, wanted, rtol, atol, since)

    return make


def limit(error: str, why: str) -> Callable[[Row], Row]:
    """Mark a row that does not run on the CPU: how it fails, and why."""

    def mark(made: Row) -> Row:
        return replace(made, error=error, why=why)

    return mark


def rows_of(*modules: ModuleType) -> Iterator[Row]:
    """The rows of these modules in source order."""
    for module in modules:
        yield from (value for value in vars(module).values() if isinstance(value, Row))
