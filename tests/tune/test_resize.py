"""Arguments with new sizes in the dimensions that are named, and everything else as it is."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tzero.arguments.host import read_host
from tzero.launches.ahead import Spec
from tzero.tune.by_size import NotResizable
from tzero.tune.copying import copies
from tzero.tune.resize import Place, changed, sharing, specified
from tzero.tune.transfer import opened, packed

X0 = Place(0, "x", 0)


def elements(tensor: torch.Tensor) -> int:
    """How many elements fit into a tensor's memory, from its first on."""
    return tensor.untyped_storage().nbytes() // tensor.itemsize - int(tensor.storage_offset())


def test_only_named_dimensions_change() -> None:
    x, w = torch.randn(3, 256), torch.randn(256, 256)
    made, kept = changed((x, w), ("x", "w"), {X0: 16})
    assert made.shape == (16, 256)
    assert torch.equal(made, x[torch.arange(16) % 3])
    assert kept is w


def test_a_dimension_that_keeps_its_size_keeps_its_tensor() -> None:
    x = torch.randn(3, 8)
    assert changed((x,), ("x",), {X0: 3})[0] is x


def test_a_conjugated_view_is_resized_as_what_it_shows() -> None:
    x = torch.tensor([1 + 2j, 3j])
    assert changed((x.conj(),), ("x",), {X0: 3})[0].tolist() == [1 - 2j, -3j, 1 - 2j]


def test_order_in_memory_gradients_and_marks_are_kept() -> None:
    x = torch.randn(8, 3).t().requires_grad_()
    torch._dynamo.mark_static(x, 1)
    (made,) = changed((x,), ("x",), {X0: 5})
    assert (made.shape, made.stride()) == ((5, 8), (1, 5))
    assert made.requires_grad and made._dynamo_static_indices == {1}


def test_a_tensor_given_twice_stays_one_object() -> None:
    x = torch.randn(3, 8)
    one, other = changed((x, x), ("x", "y"), {X0: 5})
    assert one is other and one.shape == (5, 8)
    with pytest.raises(NotResizable, match="two arguments are one tensor"):
        changed((x, x), ("x", "y"), {X0: 5, Place(1, "y", 0): 6})


# -- memory of what is not named -------------------------------------------------------------------


def test_a_tensor_that_shares_a_size_gets_memory_as_if_it_grew() -> None:
    x, y = torch.randn(3, 8), torch.randn(3, 4)
    _, kept = changed((x, y), ("x", "y"), {X0: 64})
    assert torch.equal(kept, y) and kept.stride() == y.stride()
    assert elements(kept) >= 64 * 4
    assert elements(copies((kept,))[0]) >= 64 * 4
    parcel = packed(read_host(lambda y: y, None), (kept,))
    (sent,) = opened(parcel)[1]
    os.close(parcel.descriptor)
    assert elements(sent) >= 64 * 4
    assert sharing((x, y), ("x", "y"), {X0: 64}) == "y[0]"
    assert changed((x, y), ("x", "y"), {X0: 2})[1] is y  # it is large enough


@given(
    sizes=st.lists(st.sampled_from([1, 2, 3, 5]), min_size=1, max_size=3),
    new=st.integers(2, 9),
    order=st.randoms(use_true_random=False),
    step=st.integers(1, 2),
    wide=st.booleans(),
)
def test_memory_is_enough_if_every_shared_dimension_grew(
    sizes: list[int], new: int, order: Any, step: int, wide: bool
) -> None:
    whole = torch.arange(1000.0)[: step * torch.Size(sizes).numel()]
    y = whole.view([*sizes, step])[..., 0] if not wide else torch.ones(1).expand(sizes)
    y = y.permute(order.sample(range(y.dim()), y.dim()))
    x = torch.randn(3, 2)
    _, kept = changed((x, y), ("x", "y"), {X0: new})
    assert torch.equal(kept, y) and kept.stride() == y.stride()
    grown = [max(new, n) if n == 3 else n for n in y.shape]
    last = sum((n - 1) * s for n, s in zip(grown, y.stride(), strict=True))
    assert elements(kept) > last
    assert elements(kept) >= torch.Size(grown).numel() or grown == list(y.shape)


def test_an_integer_that_grows_alone_gets_memory_for_what_it_may_count() -> None:
    x, n = torch.randn(10, 4), Place(1, "n")
    for value in (3, 10, 40):
        kept, number = changed((x, value), ("x", "n"), {n: 100})
        assert (kept.shape, number) == ((10, 4), 100)
        assert elements(kept) >= (100 if value == 40 else 400)
    assert changed((x, 41), ("x", "n"), {n: 100})[0] is x  # it counts no part of x


def test_an_integer_that_grows_with_a_dimension_counts_that_one() -> None:
    x, w = torch.randn(3, 8), torch.randn(8, 8)
    made, kept, m = changed((x, w, 3), ("x", "w", "m"), {X0: 64, Place(2, "m"): 64})
    assert (made.shape, m) == ((64, 8), 64)
    assert kept is w


def test_static_dimensions_are_not_shared() -> None:
    x, w = torch.randn(8, 8), torch.randn(8, 8)
    torch._dynamo.mark_static(x, 1)
    torch._dynamo.mark_static(w)
    assert changed((x, w), ("x", "w"), {X0: 64})[1] is w


def test_more_memory_than_there_is_is_rejected_before_allocating() -> None:
    x, w = torch.randn(64, 64), torch.randn(64, 64)
    words = r"sizes 1048576 \(and x\[1\], w\[0\], w\[1\] as if .* bytes on cpu.*mark_static keeps"
    with pytest.raises(NotResizable, match=words):
        changed((x, w), ("x", "w"), {X0: 1 << 20})
    torch._dynamo.mark_static(w)
    torch._dynamo.mark_static(x, 1)
    assert changed((x, w), ("x", "w"), {X0: 1 << 10})[1] is w


def test_integers_in_tensors_stay_below_a_dimension_that_shrinks() -> None:
    x, at = torch.randn(10, 4), torch.tensor([9, -1, 3])
    assert changed((x, at), ("x", "at"), {X0: 4})[1].tolist() == [1, -1, 3]
    assert changed((x, at), ("x", "at"), {X0: 40})[1] is at


@dataclass
class Pair:
    one: torch.Tensor
    other: torch.Tensor


def test_objects_whose_tensors_may_have_to_grow_are_rejected() -> None:
    x, pair = torch.randn(3, 8), Pair(torch.ones(3), torch.ones(4))
    with pytest.raises(NotResizable, match=r"'pair' is a Pair, and holds a tensor of sizes \(3,\)"):
        changed((x, pair), ("x", "pair"), {X0: 16})
    other = Pair(torch.ones(4), torch.ones(4))
    made = changed((x, other), ("x", "pair"), {X0: 16})[1]
    assert made.one is other.one


# -- integers that are not named -------------------------------------------------------------------


def test_an_integer_of_the_old_size_changes_with_it() -> None:
    x, w = torch.randn(3, 8), torch.randn(8, 8)
    names = ("x", "w", "m", "k", "count", "axis", "flag")
    made = changed((x, w, 3, 8, 24, -1, True), names, {X0: 16})
    assert made[2:] == (16, 8, 128, -1, True)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (
            (torch.ones(8, 8), 8),
            "'n' is 8, the size of a dimension that is resized, and of another",
        ),
        ((torch.ones(3, 8), 17), "'n' is 17, which is the size of no tensor"),
        ((torch.ones(3, 8), [3]), "is in a list"),
        ((torch.ones(3, 8), torch.Size([3])), "is in a list"),
    ],
)
def test_an_integer_that_may_be_a_size_or_not_is_rejected(args: Any, words: str) -> None:
    with pytest.raises(NotResizable, match=words):
        changed(args, ("x", "n"), {X0: 16})


def test_a_named_integer_is_what_the_hint_says() -> None:
    x = torch.ones(8, 8)
    made, n = changed((x, 17), ("x", "n"), {X0: 16, Place(1, "n"): 17})
    assert (made.shape, n) == ((16, 8), 17)


# -- without memory --------------------------------------------------------------------------------


def test_specs_have_the_new_sizes() -> None:
    w = torch.randn(8, 8)
    x, kept, m = specified((Spec((3, 8), torch.float16), w, 3), ("x", "w", "m"), {X0: 1 << 40})
    assert x == Spec((1 << 40, 8), torch.float16)
    assert kept is w
    assert m == 1 << 40
