"""Choosing by shape: the nearest by L1 distance in log2 space, and what that is at the edges."""

from __future__ import annotations

import copy
import math
import pickle
import threading
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


def shapes_of(ranks: list[int]) -> st.SearchStrategy[tuple[tuple[int | None, ...], ...]]:
    return st.tuples(*(st.tuples(*[SIZES] * rank) for rank in ranks))


def log2(size: int) -> float:
    return math.log2(size) if size else -1.0


def distance(one: Any, other: Any) -> float:
    pairs = [(a, b) for s, t in zip(one, other, strict=True) for a, b in zip(s, t, strict=True)]
    return sum(abs(log2(a) - log2(b)) for a, b in pairs if a is not None and b is not None)


@given(st.data())
def test_the_nearest_is_that_of_the_definition(data: st.DataObject) -> None:
    ranks = data.draw(RANKS)
    tuned = data.draw(st.lists(shapes_of(ranks), min_size=1, max_size=20))
    selector = Selector([Hint(k, shapes) for k, shapes in enumerate(tuned)])
    for asked in data.draw(st.lists(shapes_of(ranks), max_size=5)):
        distances = [distance(asked, each) for each in tuned]
        chosen = selector.select(asked)
        # Each size is rounded to half a step of 1/1024, on both sides.
        assert distances[chosen.variant] <= min(distances) + 2 * sum(ranks) / 1024
        assert chosen == selector.nearest(asked) == selector.select(asked)


@given(st.lists(st.lists(st.integers(0, 40), min_size=3, max_size=3), min_size=1, max_size=16))
def test_among_powers_of_two_it_is_exact_and_ties_go_to_the_earlier(exponents: Any) -> None:
    tuned = [((2**a, 2**b), (2**c,)) for a, b, c in exponents]
    selector = Selector([Hint(k, shapes[:1], shapes[1:]) for k, shapes in enumerate(tuned)])
    for asked in [*tuned, ((1, 0), (1,)), ((2**20, 2**10), (2**5,))]:
        distances = [distance(asked, each) for each in tuned]
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
def test_the_edges_are_as_documented(tuned: Any, asked: Any, expected: int) -> None:
    assert (
        Selector([Hint(k, each) for k, each in enumerate(tuned)]).select(asked).variant == expected
    )


def test_outputs_count_as_inputs_do() -> None:
    small, large = Hint("small", [(8,)], [(1,)]), Hint("large", [(8,)], [(512,)])
    assert Selector([small, large]).select(((8,), (400,))).variant == "large"


def test_sizes_and_shapes_as_torch_has_them_will_do() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    x = torch.empty(100, 64, device="meta")
    selector = Selector([Hint("small", [x.shape]), Hint("large", [(4096, 4096)])])
    assert selector.select((x.shape,)).variant == "small"
    assert selector.select(((100, 64),)) is selector.select((x.shape,))


def test_a_choice_that_was_made_is_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    selector = Selector([Hint("small", [(64,)])])
    first = selector.select(((80,),))
    monkeypatch.setattr(Selector, "nearest", None)
    assert selector.select(((80,),)) is first


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KEPT", 10)
    monkeypatch.setattr(module, "SIZES", 10)
    selector = Selector([Hint("small", [(64,)]), Hint("large", [(4096,)])])
    for size in range(10000):
        assert selector.select(((size,),)).variant == ("small" if size <= 512 else "large")
    assert len(selector._kept) <= 10
    assert all(len(each) <= 11 for each in [selector._likely.fields.__globals__["c0"]])


def test_the_most_hints_and_dimensions_do_not_overflow() -> None:
    ends = [tuple([0] * 255), tuple([2**63 - 1] * 255)]
    selector = Selector([Hint(k, [ends[k == 255]]) for k in range(256)])
    assert selector.select((ends[1],)).variant == 255
    assert selector.select((ends[0],)).variant == 0


def test_threads_choose_alike() -> None:
    selector = Selector([Hint(2**k, [(2**k, 7)]) for k in range(16)])
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
    ("make", "words"),
    [
        (lambda: Selector([], kernel="add"), "add: has 0 hints"),
        (lambda: Selector([Hint(0, [()])] * 257), "has 257 hints"),
        (lambda: Selector([Hint(0, [(1,) * 256])]), "256 dimensions"),
        (lambda: Selector([3]), "was given 3 as a hint"),  # type: ignore[list-item]
        (lambda: Hint(0, [(-1,)]), "'inputs' has a size of -1"),
        (lambda: Hint(0, [(2.0,)]), "'inputs' has a size of 2.0"),  # type: ignore[list-item]
        (lambda: Hint(0, [(True,)]), "'inputs' has a size of True"),
        (lambda: Hint(0, [], [(2**63,)]), "'outputs' has a size of 9223372036854775808"),
        (lambda: Hint(0, (64, 64)), "'inputs' has 64, which is no shape"),  # type: ignore[arg-type]
        (lambda: Hint(0, ["ab"]), "'inputs' has 'ab', which is no shape"),  # type: ignore[list-item]
        (lambda: Selector([Hint(0, [(1,)])], kernel="add").select(((-1,),)), "add: .* size of -1"),
        (lambda: Selector([Hint(0, [(1,)])]).select(((2**63,),)), "size of 9223372036854775808"),
        (lambda: Selector([Hint(0, [(1,)])]).select(((2.5,),)), "size of 2.5"),  # type: ignore[arg-type]
        (lambda: Choice(0, "guessed", "so"), "'how' is 'guessed'"),  # type: ignore[arg-type]
    ],
)
def test_bad_input_is_named(make: Any, words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        make()


def test_a_choice_explains_itself_and_does_not_change() -> None:
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


def test_a_selector_shows_all_distances_nearest_first() -> None:
    selector = Selector([Hint("small", [(64,)], [(64,)]), Hint("large", [(4096,)], [(4096,)])])
    assert selector.explain(((2048,), (2048,))).splitlines() == [
        "'large': 2.00, tuned for (4096,) → (4096,)",
        "'small': 10.00, tuned for (64,) → (64,)",
    ]
    assert "in elements" in selector.explain(((2048,),))
