"""The geometry of what torch computes, by rule and as torch makes it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from tzero.plans.size_rules import RESULTS
from tzero.symbolic.formulas import Formulas
from tzero.symbolic.shapes import Shape

SIZES = [(2, 3, 4), (1, 3, 4), (2, 1, 4), (2, 3, 1), (0, 3, 4), (2, 0, 4), (1, 1, 1), (5,), (0,)]
REDUCED = ["sum", "mean", "amax", "amin", "prod", "logsumexp", "argmax", "argmin"]


def tensors() -> Iterator[torch.Tensor]:
    for size in SIZES:
        for order in itertools.permutations(range(len(size))):
            yield torch.ones(size).permute(*order)


def check(name: str, x: torch.Tensor, dim: Any, **options: Any) -> bool:
    """Compare a rule with torch; returns whether torch computes this at all."""
    named = options if dim is None else {"dim": dim, **options}
    try:
        made = getattr(torch, name)(x, **named)
    except (TypeError, IndexError, RuntimeError):
        return False
    formulas = Formulas()
    number, value = formulas.constant, formulas.value
    if dim is not None:
        named["dim"] = tuple(map(number, dim)) if isinstance(dim, tuple) else number(dim)
    shape = Shape(tuple(map(number, x.shape)), tuple(map(number, x.stride())), number(0))
    found = RESULTS[name](formulas, shape, **named)
    assert tuple(map(value, found.sizes)) == tuple(made.shape)
    assert tuple(map(value, found.strides)) == made.stride()
    return True


@pytest.mark.parametrize("name", REDUCED)
def test_reductions(name: str) -> None:
    checked = [
        check(name, x, dim, **options)
        for x in tensors()
        for dim in (None, *range(-x.dim(), x.dim()), (0, -1))
        for options in ({}, {"keepdim": True})
    ]
    assert sum(checked) > 100


@pytest.mark.parametrize("name", ["cumsum", "cumprod"])
def test_running_totals(name: str) -> None:
    checked = [check(name, x, dim) for x in tensors() for dim in range(-x.dim(), x.dim())]
    assert all(checked)
