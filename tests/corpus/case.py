"""One case of the corpus: a host function, three shapes, and arguments for each of them.

Enters: functions under `@case(...)`, which draw the arguments of a call. Leaves: `Case`s in source
order. A project's module is imported when a case is first called. It must not know of tzero.

    @case("liger_kernel.ops.geglu", (2, 64), (3, 96), (4, 128))
    def geglu_forward(draw, rows, cols):
        return given(draw(rows, cols), draw(rows, cols))
"""

from __future__ import annotations

import functools
import importlib
import operator
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

__all__ = ["CASES", "Case", "Draw", "Given", "case", "given"]

# Before fla reads it: its tuning results would be written to Triton's cache.
os.environ.setdefault("FLA_CACHE_RESULTS", "0")

PROJECTS = {"liger_kernel": "liger", "fla": "fla"}


class Given(NamedTuple):
    """The arguments of one call."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]


def given(*args: Any, **kwargs: Any) -> Given:
    """The arguments of one call, as they are written.

    >>> given(1, scale=2.0)
    Given(args=(1,), kwargs={'scale': 2.0})
    """
    return Given(args, kwargs)


class Draw:
    """Draws tensors; the same seed draws the same ones.

    >>> torch.equal(Draw(3)(2, 4), Draw(3)(2, 4))
    True
    """

    def __init__(self, seed: int) -> None:
        self._generator = torch.Generator().manual_seed(seed)

    def __call__(self, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Normal values."""
        return torch.randn(shape, generator=self._generator).to(dtype)

    def unit(self, *shape: int) -> torch.Tensor:
        """Values between 0 and 1."""
        return torch.rand(shape, generator=self._generator) * 0.9 + 0.05

    def decay(self, *shape: int) -> torch.Tensor:
        """Logarithms of values between 0 and 1."""
        return self.unit(*shape).log()

    def below(self, end: int, *shape: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
        """Integers from 0."""
        return torch.randint(end, shape, generator=self._generator).to(dtype)

    def rows_of_unit_length(self, *shape: int) -> torch.Tensor:
        """Normal values, of length 1 along the last dimension."""
        return torch.nn.functional.normalize(self(*shape), dim=-1)


Make = Callable[..., Given]


@dataclass(frozen=True, slots=True)
class Case:
    """A host function with its shapes. `make` draws the arguments for a shape; `in_ci` cases are
    part of `make test`, all others run in `make corpus`."""

    project: str
    name: str
    load: Callable[[], Callable[..., Any]]
    shapes: tuple[tuple[Any, ...], ...]
    make: Make
    in_ci: bool

    @property
    def id(self) -> str:
        """The name with its project, unlike that of any other case."""
        return f"{self.project}/{self.name}"

    @property
    def function(self) -> Callable[..., Any]:
        """The host function."""
        return self.load()

    def given(self, shape: int, seed: int) -> Given:
        """The arguments of a call with a shape, the same for the same seed."""
        return self.make(Draw(seed), *self.shapes[shape])


CASES: dict[str, Case] = {}
"""Every case that was declared, under its id."""


def case(
    where: str | Callable[..., Any],
    *shapes: tuple[Any, ...],
    function: str = "",
    project: str = "",
    name: str = "",
    late: bool = False,
    ci: bool = False,
) -> Callable[[Make], Make]:
    """Declare a case: `where` is the host function, or the module that has it under the name of the
    decorated function or `function`; if `late`, a function that makes the host function. Its name
    is that of the decorated function, unless given."""
    assert len(shapes) == 3, "a case has three shapes"

    def declare(make: Make) -> Make:
        if isinstance(where, str):
            load = functools.partial(_loaded, where, function or make.__name__)
            project_ = PROJECTS[where.partition(".")[0]]
        else:
            load, project_ = where if late else functools.partial(_itself, where), project
        made = Case(project_, name or make.__name__, load, shapes, make, ci)
        assert made.id not in CASES, f"two cases are called {made.id}"
        CASES[made.id] = made
        return make

    return declare


def _loaded(module: str, name: str) -> Any:
    return operator.attrgetter(name)(importlib.import_module(module))


def _itself(function: Any) -> Any:
    return function
