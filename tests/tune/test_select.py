"""Choosing by shape: the nearest by L1 distance in log2 space, and the edge cases.

Both implementations are tested: Python's, and the extension's where it is built."""

from __future__ import annotations

import copy
import functools
import math
import pickle
import threading
from collections.abc import Callable
from dataclasses import FrozenInstanceError
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tzero.errors import InvalidArgument
from tzero.tune import select as module
from tzero.tune.select import Choice, Hint, Selector

SIZES = st.one_of(st.integers(0, 5), st.integers(0, 2**63 - 1), st.none())
RANKS = st.lists(st.integers(0, 3), max_size=3)

Make = Callable[..., Selector[Any]]


@pytest.fixture(params=[False, True], ids=["python", "native"], scope="module")
def make(request: pytest.FixtureRequest) -> Make:
    """Makes selectors that choose in Python or natively."""
    if request.param:
        pytest.importorskip("tzero._native", reason="the native extension is not built")
    return functools.partial(Selector, native=request.param)


def shapes_of(ranks: list[int]) -> st.SearchStrategy[tuple[tuple[int | None, ...], ...]]:
    return st.tuples(*(st.tuples(*[SIZES] * rank) for rank in ranks))


def log2(size: int) -> float:
    return math.log2(size) if size else -1.0


def distance(one: Any, other: Any) -> float:
    pairs = [(a, b) for s, t in zip(one, other, strict=True) for a, b in zip(s, t, strict=True)]
    return sum(abs(log2(a) - log2(b)) for a, b in pairs if a is not None and b is not None)


def off(one: Any, other: Any) -> float:
    """The distance of the products of all sizes, in doublings."""
    logs = [
        [math.log2(size) if size else -1.0 for shape in shapes for size in shape]
        for shapes in (one, other)
    ]
    return abs(sum(logs[0]) - sum(logs[1]))


def test_a_long_shape_is_nearest_to_the_square_with_as_many_elements(make: Make) -> None:
    selector = make([Hint(n, [(n, n)]) for n in (64, 256, 1024, 4096)])
    assert selector.nearest(((64, 4096),)).variant == 256  # all are equally far by L1
    assert selector.nearest(((4096, 200),)).variant == 1024
    assert selector.explain(((64, 4096),)).splitlines()[0] == "256: 6.00, tuned for (256, 256)"


def test_native_is_used_where_it_is_asked_for(make: Make) -> None:
    natively = make.keywords["native"]  # type: ignore[attr-defined]
    assert (make([Hint(0, [(8,)])])._number is not None) == natively


@given(data=st.data())
def test_the_choice_is_nearest_by_the_definition(make: Make, data: st.DataObject) -> None:
    ranks = data.draw(RANKS)
    tuned = data.draw(st.lists(shapes_of(ranks), min_size=1, max_size=20))
    selector = make([Hint(k, shapes) for k, shapes in enumerate(tuned)])
    for asked in data.draw(st.lists(shapes_of(ranks), max_size=5)):
        distances = [distance(asked, each) for each in tuned]
        chosen = selector.select(asked)
        # Each size is rounded to a step of 1/1024, on both sides.
        assert distances[chosen.variant] <= min(distances) + 2 * sum(ranks) / 1024
        assert chosen == selector.nearest(asked) == selector.select(asked)


@given(
    exponents=st.lists(
        st.lists(st.integers(0, 40), min_size=3, max_size=3), min_size=1, max_size=16
    )
)
def test_ties_among_powers_of_two_go_to_the_nearest_product_then_the_earlier(
    make: Make, exponents: Any
) -> None:
    tuned = [((2**a, 2**b), (2**c,)) for a, b, c in exponents]
    selector = make([Hint(k, shapes[:1], shapes[1:]) for k, shapes in enumerate(tuned)])
    for asked in [*tuned, ((1, 0), (1,)), ((2**20, 2**10), (2**5,))]:
        distances = [(distance(asked, each), off(asked, each)) for each in tuned]
        assert selector.nearest(asked).variant == distances.index(min(distances))


@pytest.mark.parametrize(
    ("tuned", "asked", "expected"),
    [
        ([[(64,)], [(4096,)]], ((511,),), 0),
        ([[(64,)], [(4096,)]], ((512,),), 0),  # a tie: the earlier
        ([[(4096,)], [(64,)]], ((512,),), 0),
        ([[(64,)], [(4096,)]], ((513,),), 1),
        ([[(2,)], [(0,)]], ((1,),), 0),  # 0 is as far from 1 as 2 is
        ([[(4,)], [(0,)]], ((1,),), 1),
        ([[(1,)], [(0,)]], ((0,),), 1),
        ([[(2,)], [(1,)]], ((0,),), 1),
        ([[(1, 64)], [(64, 1)]], ((1, 48),), 0),
        ([[(1, 64)], [(64, 1)]], ((48, 1),), 1),
        ([[()], [()]], ((),), 0),  # nothing to compare
        ([[], []], (), 0),
        ([[(None, 64)], [(8, 4096)]], ((10**6, 64),), 0),  # dynamic at tuning
        ([[(8, 64)], [(8, 4096)]], ((None, 4000),), 1),  # dynamic now
        ([[(8,)], [(8, 8)]], ((8, 9),), 1),  # the same rank first, however far
        ([[(8, 8)], [(2**40,)]], ((64,),), 1),
        ([[(8, 8)], [(64, 64)]], ((4000,),), 1),  # no such rank: by elements
        ([[(8, 8)], [(64, 64)]], ((8,), (56,)), 0),  # another number of tensors
        ([[(8, 8)], [(4, 16)]], ((64,),), 0),  # equal elements: the earlier
        ([[(8, 8)], [(0, 8)]], ((0,),), 1),
        ([[(8, 8)], [(None, 8)]], ((7,),), 1),
        ([[(8, 8)], [(8, None)]], ((None, 2, 3),), 1),
        ([[(8, 8)], [(2**62, 2**62)]], ((2**62, 2**62, 2**62),), 1),
    ],
)
def test_the_edges_are_as_documented(make: Make, tuned: Any, asked: Any, expected: int) -> None:
    selector = make([Hint(k, each) for k, each in enumerate(tuned)])
    assert selector.select(asked).variant == expected


def test_outputs_count_as_inputs_do(make: Make) -> None:
    small, large = Hint("small", [(8,)], [(1,)]), Hint("large", [(8,)], [(512,)])
    assert make([small, large]).select(((8,), (400,))).variant == "large"


def test_shapes_of_torch_are_accepted(make: Make) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    x = torch.empty(100, 64, device="meta")
    selector = make([Hint("small", [x.shape]), Hint("large", [(4096, 4096)])])
    assert selector.select((x.shape,)).variant == "small"
    assert selector.select(((100, 64),)) is selector.select((x.shape,))


def test_shapes_may_be_lists(make: Make) -> None:
    selector = make([Hint("small", [[64, 2], [3]]), Hint("large", [[4096, 2], [3]])])
    assert selector.nearest([[1000, 2], [3]]).variant == "large"  # type: ignore[arg-type]


def test_choices_are_cached(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    selector = make([Hint("small", [(64,)])])
    first = selector.select(((80,),))
    monkeypatch.setattr(Selector, "nearest", None)
    assert selector.select(((80,),)) is first


def test_the_caches_are_bounded(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KEPT", 10)
    monkeypatch.setattr(module, "SIZES", 10)
    selector = make([Hint("small", [(64,)]), Hint("large", [(4096,)])])
    for size in range(10000):
        assert selector.select(((size,),)).variant == ("small" if size <= 512 else "large")
    assert len(selector._kept) <= 10
    assert all(len(each) <= 11 for each in [selector._likely.fields.__globals__["c0"]])


def test_the_most_hints_and_dimensions_do_not_overflow(make: Make) -> None:
    ends = [tuple([0] * 255), tuple([2**63 - 1] * 255)]
    selector = make([Hint(k, [ends[k == 255]]) for k in range(256)])
    assert selector.select((ends[1],)).variant == 255
    assert selector.select((ends[0],)).variant == 0


def test_threads_choose_the_same(make: Make) -> None:
    selector = make([Hint(2**k, [(2**k, 7)]) for k in range(16)])
    wrong: list[int] = []

    def choose() -> None:
        for size in range(1, 3000):
            chosen = selector.select(((size, 7),)).variant
            if abs(math.log2(chosen) - math.log2(size)) > 0.51 and size < 2**15:
                wrong.append(size)

    threads = [threading.Thread(target=choose) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda make: make([], kernel="add"), "add: has 0 hints"),
        (lambda make: make([Hint(0, [()])] * 257), "has 257 hints"),
        (lambda make: make([Hint(0, [(1,) * 256])]), "256 dimensions"),
        (lambda make: make([3]), "was given 3 as a hint"),
        (lambda make: Hint(0, [(-1,)]), "'inputs' has a size of -1"),
        (lambda make: Hint(0, [(2.0,)]), "'inputs' has a size of 2.0"),  # type: ignore[list-item]
        (lambda make: Hint(0, [(True,)]), "'inputs' has a size of True"),
        (lambda make: Hint(0, [], [(2**63,)]), "'outputs' has a size of 9223372036854775808"),
        (lambda make: Hint(0, (64, 64)), "'inputs' has 64, which is not a shape"),  # type: ignore[arg-type]
        (lambda make: Hint(0, ["ab"]), "'inputs' has 'ab', which is not a shape"),  # type: ignore[list-item]
        (lambda make: make([Hint(0, [(1,)])], kernel="add").select(((-1,),)), "add: .* size of -1"),
        (lambda make: make([Hint(0, [(1,)])]).select(((2**63,),)), "size of 9223372036854775808"),
        (lambda make: make([Hint(0, [(1,)])]).select(((2.5,),)), "size of 2.5"),  # type: ignore[arg-type]
        (lambda make: Choice(0, "guessed", "so"), "'how' is 'guessed'"),  # type: ignore[arg-type]
    ],
)
def test_bad_input_is_named(make: Make, wrong: Callable[[Make], object], words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        wrong(make)


def test_a_choice_has_a_reason_and_is_frozen() -> None:
    choices: list[Choice[str]] = [
        Choice.pinned("a"),
        Choice.cached("a", "the local cache", 0.5),
        Choice.pretuned("a", "h200.json", 2.0),
        Choice.nearest("a", "(64,)", 3),
        Choice.tuned("a", tried=7, seconds=3e-6),
    ]
    hows = ["pinned", "cached", "pretuned", "nearest", "tuned"]
    assert [choice.how for choice in choices] == hows
    for choice in choices:
        assert choice.why and f"{choice.how}: {choice.why}" in str(choice)
        assert pickle.loads(pickle.dumps(choice)) == copy.deepcopy(choice) == choice
        with pytest.raises(FrozenInstanceError):
            choice.how = "tuned"  # type: ignore[misc]
    assert "with 3.000 µs" in choices[-1].why


def test_explain_lists_all_distances_nearest_first(make: Make) -> None:
    selector = make([Hint("small", [(64,)], [(64,)]), Hint("large", [(4096,)], [(4096,)])])
    assert selector.explain(((2048,), (2048,))).splitlines() == [
        "'large': 2.00, tuned for (4096,) → (4096,)",
        "'small': 10.00, tuned for (64,) → (64,)",
    ]
    assert "in elements" in selector.explain(((2048,),))
