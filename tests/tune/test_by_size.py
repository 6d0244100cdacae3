"""Resized arguments, the origin of the sizes of results, and the nearest hint of a call."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch

from tzero.config import Config
from tzero.launches.ahead import run_without_memory
from tzero.tune.by_size import (
    BySize,
    NotFollowed,
    NotResizable,
    Origin,
    described,
    imagined,
    most_general,
    origins,
    resized,
)
from tzero.tune.select import Hint


def test_the_hint_replaces_every_size_above_one() -> None:
    x, row, none = resized(
        (torch.randn(5, 7), torch.randn(1, 7), torch.randn(0, 3)), ("x", "row", "none"), 16
    )
    assert (x.shape, row.shape, none.shape) == ((16, 16), (1, 16), (0, 16))


def test_dimensions_that_are_marked_static_keep_their_size() -> None:
    x = torch.randn(5, 7)
    torch._dynamo.mark_static(x, 1)
    (made,) = resized((x,), ("x",), 16)
    assert made.shape == (16, 7)
    assert made._dynamo_static_indices == {1}


def test_the_order_of_dimensions_in_memory_is_kept() -> None:
    (made,) = resized((torch.randn(5, 7, 3).permute(2, 0, 1),), ("x",), 4)
    assert made.stride() == (1, 16, 4)


def test_contents_are_repeated_and_integers_stay_below_the_hint() -> None:
    x, at = resized((torch.tensor([1.0, 2.0]), torch.tensor([9, -1, 3])), ("x", "at"), 4)
    assert x.tolist() == [1, 2, 1, 2]
    assert at.tolist() == [1, -1, 3, 1]


@pytest.mark.parametrize(("n", "new"), [(5, 16), (7, 16), (35, 256), (1, 1), (0, 0), (-3, -3)])
def test_integers_that_are_sizes_are_resized(n: int, new: int) -> None:
    assert resized((torch.randn(5, 7), n), ("x", "n"), 16)[1] == new


@pytest.mark.parametrize("n", [17, -100, 10**9])
def test_an_integer_that_may_be_a_size_but_matches_no_tensor_is_rejected(n: int) -> None:
    with pytest.raises(NotResizable, match=f"argument 'n' is {n}"):
        resized((torch.randn(5, 7), n), ("x", "n"), 16)


def test_tensors_in_lists_are_resized_and_other_values_kept() -> None:
    xs, flag, name = resized(([torch.ones(3)], True, "sum"), ("xs", "flag", "name"), 8)
    assert xs[0].shape == (8,)
    assert (flag, name) == (True, "sum")


def test_a_tensor_given_twice_stays_one_object() -> None:
    x = torch.ones(3)
    one, other = resized((x, x), ("x", "y"), 8)
    assert one is other


A, B, C = Config(BLOCK=16), Config(BLOCK=64), Config(BLOCK=256)


@pytest.mark.parametrize(
    ("times", "hint", "config"),
    [
        ({64: {A: 1.0, B: 2.0}}, 64, A),
        ({64: {A: 1.0, B: 2.0}, 256: {A: 1.2, B: 1.0}}, 256, B),  # A is not as fast there
        ({64: {A: 1.0, B: 2.0}, 256: {A: 1.02, B: 1.0}}, 256, A),  # it is, and far better at 64
        ({64: {A: 1.02, B: 1.0}, 256: {A: 1.0, B: 1.1}}, 64, A),
        # A nearer hint has more weight, though the other config is worse by as much.
        ({64: {A: 1.0, B: 1.3}, 256: {A: 1.0, B: 1.02}, 4096: {A: 1.3, B: 1.0}}, 256, A),
        ({64: {A: 1.3, B: 1.0}, 256: {A: 1.0, B: 1.02}, 4096: {A: 1.0, B: 1.3}}, 256, B),
        # A config that was not timed everywhere is taken only as the fastest.
        ({64: {B: 1.0}, 256: {A: 1.02, B: 1.1, C: 1.0}}, 256, C),
        ({64: {B: 1.0, C: 2.0}, 256: {A: 1.02, B: 1.1, C: 1.0}}, 256, C),
        ({64: {B: 1.0, C: 2.0}, 256: {A: 1.02, B: 1.03, C: 1.0}}, 256, B),
    ],
)
def test_of_equally_fast_configs_the_best_at_the_other_sizes_is_taken(
    times: dict[int, dict[Config, float]], hint: int, config: Config
) -> None:
    assert most_general(times, hint) == config


def came_from(function: Any, *args: Any) -> Any:
    names = [f"a{k}" for k in range(len(args))]
    return origins(lambda given: run_without_memory(function, given), args, names)


def test_sizes_of_results_come_from_those_of_arguments() -> None:
    found = came_from(torch.matmul, torch.randn(4, 6), torch.randn(6, 8))
    assert found == ((Origin(0, 0), Origin(1, 1)),)


def test_a_size_that_no_argument_has_is_unknown() -> None:
    def outer(x: torch.Tensor) -> torch.Tensor:
        return torch.empty(x.shape[0] // 2, 1, 0)

    (sizes,) = came_from(outer, torch.randn(4))
    assert [size.of([(4,)]) for size in sizes] == [None, 1, 0]


def test_a_host_function_that_does_not_run_on_meta_tensors_gives_the_reason() -> None:
    def picky(x: torch.Tensor) -> torch.Tensor:
        if x.shape[0] % 2:
            raise ValueError("an even size is wanted")
        return x

    with pytest.raises(NotFollowed, match=r"^ValueError: an even size is wanted$"):
        came_from(picky, torch.randn(4))


def test_inputs_and_results_are_compared_with_the_hints() -> None:
    hints = [
        Hint(Config(B=1), [(64, 64), (64, 64)], [(64, 64)]),
        Hint(Config(B=2), [(1024, 1024), (1024, 1024)], [(1024, 1024)]),
    ]
    choose = BySize(hints, ((Origin(0, 0), Origin(1, 1)),), ("a", "b"))
    # The inputs alone are equally near to both hints; the size of the result decides.
    assert choose((torch.empty(64, 1024), torch.empty(1024, 64))).variant == Config(B=1)
    assert choose((torch.empty(1024, 64), torch.empty(64, 1024))).variant == Config(B=2)
    assert choose.shapes((torch.empty(2, 3), torch.empty(3, 5))) == ((2, 3), (3, 5), (2, 5))


def test_a_layout_holds_no_tensor_and_makes_a_similar_one() -> None:
    x = torch.randn(6, 4).t()
    (made, n, [at]) = imagined(described((x, 3, [torch.tensor([5])])))
    assert (made.shape, made.stride(), made.dtype) == (x.shape, x.stride(), x.dtype)
    assert n == 3
    assert at.tolist() == [0]


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.uint16, torch.uint32])
@pytest.mark.parametrize("hint", [16, 4096])
def test_tensors_of_small_and_unsigned_integers_are_resized(dtype: torch.dtype, hint: int) -> None:
    (made,) = resized((torch.tensor([1, 20, 3]).to(dtype),), ("x",), hint)
    assert made.dtype == dtype
    assert made[:3].to(torch.int64).tolist() == [1, 20 % hint, 3]


@pytest.mark.parametrize("sizes", [[5], (1, 5), {"n": 17}, torch.Size([5, 7])])
def test_integers_in_lists_that_may_be_sizes_are_rejected(sizes: Any) -> None:
    with pytest.raises(NotResizable, match=r"is in a list|size of no tensor"):
        resized((torch.randn(5, 7), sizes), ("x", "sizes"), 16)


def test_integers_in_lists_that_are_not_sizes_are_kept() -> None:
    assert resized((torch.randn(5, 7), [1, 2]), ("x", "axes"), 16)[1] == [1, 2]


@dataclass
class Pair:
    one: torch.Tensor
    other: torch.Tensor


def test_tensors_inside_other_objects_are_rejected() -> None:
    with pytest.raises(NotResizable, match="argument 'pair' is a Pair"):
        resized((Pair(torch.ones(3), torch.ones(3)),), ("pair",), 16)


def test_sizes_that_exceed_the_memory_are_rejected_before_allocating() -> None:
    with pytest.raises(NotResizable, match="would take 17592186044416 bytes on cpu"):
        resized((torch.ones(2, 2, 2),), ("x",), 1 << 14)


def test_more_dimensions_than_can_be_compared_are_rejected() -> None:
    with pytest.raises(NotResizable, match="have 300 dimensions"):
        resized(([torch.ones(2, 2)] * 150,), ("xs",), 4)


def test_layouts_of_expanded_tensors_and_inside_dataclasses_are_kept() -> None:
    wide = torch.ones(3, 1).expand(3, 5)
    made, pair = imagined(described((wide, Pair(wide, torch.ones(0, 2)))))
    assert (made.shape, made.stride()) == ((3, 5), (1, 0))
    assert pair.one is made
    assert pair.other.shape == (0, 2)
