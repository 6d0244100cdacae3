"""The geometry of views in formulas is that of torch, for these sizes and for others."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from tests.symbolic.views import METHODS, call, tensor
from tzero.symbolic.formulas import Formulas, Source, computed, holds
from tzero.symbolic.shapes import VIEWS, NoRule, Shape, contiguous, require_contiguous


class Found:
    """What a rule says of one call, whose integer arguments are formulas too."""

    def __init__(self, name: str, of: torch.Tensor, args: tuple[Any, ...]) -> None:
        self.formulas = these = Formulas()
        self.numbers: list[int] = []
        shape = Shape(
            tuple(these.input(Source("size", 0, k), n) for k, n in enumerate(of.shape)),
            tuple(these.input(Source("stride", 0, k), n) for k, n in enumerate(of.stride())),
            these.constant(0),
        )
        self.shape = VIEWS[f"Tensor.{name}"](these, shape, *map(self.lifted, args))

    def lifted(self, value: Any) -> Any:
        if type(value) is int:
            self.numbers.append(value)
            return self.formulas.input(Source("number", len(self.numbers)), value)
        if isinstance(value, (list, tuple)):
            return type(value)(map(self.lifted, value))
        if isinstance(value, slice):
            return slice(*map(self.lifted, (value.start, value.stop, value.step)))
        return value

    def predicted(self, of: torch.Tensor, args: tuple[Any, ...]) -> Any:
        """Sizes, strides and offset for other arguments; None if the conditions do not hold."""
        numbers = list(flat(args))

        def find(source: Source) -> int:
            if source.what == "number":
                return numbers[source.leaf - 1]
            return (of.shape if source.what == "size" else of.stride())[source.dim]

        try:
            values = computed(self.formulas.nodes, find)
        except ArithmeticError:
            return None
        if not holds(list(self.formulas.conditions), values):
            return None
        return geometry(self.shape, values)


def flat(value: Any) -> Any:
    if type(value) is int:
        yield value
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from flat(each)
    elif isinstance(value, slice):
        yield from flat((value.start, value.stop, value.step))


def geometry(shape: Shape, values: Any) -> tuple[Any, ...]:
    return (
        tuple(values[each] for each in shape.sizes),
        tuple(values[each] for each in shape.strides),
        values[shape.offset],
    )


def made(name: str, of: torch.Tensor, args: tuple[Any, ...]) -> Any:
    """What torch makes: None if it raises an exception, or makes a copy."""
    try:
        found = getattr(of, name)(*args)
    except (RuntimeError, IndexError, ValueError, TypeError):
        return None
    if found.untyped_storage().data_ptr() != of.untyped_storage().data_ptr():
        return None
    return tuple(found.shape), found.stride(), found.storage_offset() - of.storage_offset()


@pytest.mark.parametrize("name", METHODS)
def test_the_geometry_of_a_view_is_that_of_torch(name: str):
    chance = random.Random(name)
    seen = dict.fromkeys(["same", "refused", "other"], 0)
    for _ in range(800):
        of = tensor(chance)
        args = call(chance, name, of)
        wanted = made(name, of, args)
        try:
            found = Found(name, of, args)
        except (NoRule, ArithmeticError):
            seen["refused"] += 1
            continue
        assert found.predicted(of, args) == wanted, (of.shape, of.stride(), args)
        seen["same"] += 1
        for _ in range(4):
            other = tensor(chance, like=of)
            others = call(chance, name, other, like=args)
            predicted = found.predicted(other, others)
            if predicted is not None:
                told = (of.shape, of.stride(), args, other.shape, other.stride(), others)
                assert predicted == made(name, other, others), told
                seen["other"] += 1
    assert seen["same"] > 150 and seen["other"] > 50, seen


def test_a_view_of_a_tensor_that_is_not_contiguous_has_a_rule_where_torch_makes_one():
    of = torch.empty(4, 6, 8)[:, :, :5]
    for args in [(24, 5), (2, 2, 6, 5), (4, 6, 5), (8, 3, 5), (-1, 5)]:
        assert Found("view", of, args).predicted(of, args) == made("view", of, args)
    with pytest.raises(NoRule):
        Found("view", of, (4, 30))


def test_strides_of_new_tensors_are_those_of_torch():
    chance = random.Random(1)
    for _ in range(300):
        sizes = [chance.choice([0, 1, 2, 3, 7]) for _ in range(chance.randint(0, 5))]
        these = Formulas()
        found = contiguous(these, [these.constant(n) for n in sizes])
        assert tuple(map(these.value, found)) == torch.empty(sizes).stride()


def test_a_tensor_with_gaps_is_not_taken_for_contiguous():
    these = Formulas()
    n, m = these.input(Source("size", 0), 3), these.input(Source("stride", 0), 4)
    with pytest.raises(NoRule):
        require_contiguous(these, Shape((n, n), (m, these.constant(1)), these.constant(0)))
