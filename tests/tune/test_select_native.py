"""The extension's `Nearest` chooses as Python does, and raises the same errors.

test_select.py tests each of them; this compares them, and tests what only native code has.
"""

from __future__ import annotations

import enum
import sys
from collections import namedtuple
from types import ModuleType
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.tune.test_select import RANKS, shapes_of
from tzero.tune.select import MOST_DIMS, MOST_HINTS, Hint, Selector, _log2

native = pytest.importorskip("tzero._native", reason="the native extension is not built")

SHAPES = RANKS.flatmap(shapes_of)
L = 2**63 - 1


def both(tuned: Any) -> tuple[Selector[int], Selector[int]]:
    """A selector that chooses in Python, and one that chooses natively."""
    hints = [Hint(k, shapes) for k, shapes in enumerate(tuned)]
    return Selector(hints, native=False), Selector(hints)


@given(tuned=st.lists(SHAPES, min_size=1, max_size=20), asked=st.lists(SHAPES, max_size=8))
@example(tuned=[((2,), ()), ((L, L),)], asked=[((), (L,), (L, L)), ((L, L, 0),), ((L,), (L,))])
@example(tuned=[((2, 1),), ((L, L),)], asked=[((L,), (L,), (), (), ())])  # 1, in 64 bits
@example(tuned=[((None, None),), ((None, 1),), ((0,), ())], asked=[((None,),), ()])
def test_the_twins_choose_the_same(tuned: Any, asked: Any) -> None:
    python, natively = both(tuned)
    for shapes in [*asked, *tuned]:
        number = natively._number(shapes)  # type: ignore[misc]
        assert number is not None, "native code left plain shapes to Python"
        assert number == python.nearest(shapes).variant
        assert natively.select(shapes) == python.select(shapes)


@given(data=st.data())
def test_the_twins_choose_the_same_among_hints_of_equal_ranks(data: st.DataObject) -> None:
    ranks = data.draw(RANKS)
    tuned = data.draw(st.lists(shapes_of(ranks), min_size=1, max_size=40))
    python, natively = both(tuned)
    for asked in data.draw(st.lists(shapes_of(ranks), max_size=5)):
        assert natively._number(asked) == python.nearest(asked).variant  # type: ignore[misc]


def test_python_and_native_round_sizes_to_the_same_step() -> None:
    # Sizes where one step ends and the next begins. A size between two hints that are one step away
    # is equally near to both, so the first wins. If native code rounded the size up or down by a
    # step, the hint on that side would win in the order in which it comes second.
    checked = 0
    for step in range(13 << 10, 62 << 10, 61):
        for size in [round(2 ** ((step + 0.5) / 1024)) + k for k in (-1, 0, 1)]:
            at = _log2(size)
            below, above = (round(2 ** ((at + k) / 1024)) for k in (-1, 1))
            assert (_log2(below), _log2(above)) == (at - 1, at + 1)
            for pair in [(below, above), (above, below)]:
                hints = tuple(((each,),) for each in pair)
                assert native.Nearest(hints).number(((size,),)) == 0, size
                checked += 1
    assert checked > 4000


class Counted(tuple[int, ...]):
    """A tuple whose length is not the number of its items."""

    def __len__(self) -> int:
        return 1


class Doubled(tuple[int, ...]):
    """A tuple that iterates over other values than its items."""

    def __iter__(self) -> Any:
        return iter([2 * each for each in tuple.__iter__(self)])


class Plain(tuple[int, ...]):
    """A plain subclass of tuple."""


class Number(int):
    pass


class Fixed(enum.IntEnum):
    EIGHT = 8


Pair = namedtuple("Pair", "rows columns")

LEFT_TO_PYTHON = [
    [(8, 8)],
    ([8, 8],),
    ((8, -1),),
    ((8, 2**63),),
    ((8, -(2**70)),),
    ((8, True),),
    ((8, 2.5),),
    ((8, 8.0),),
    ((8, "8"),),
    ((8, Number(8)),),
    ((8, Fixed.EIGHT),),
    ((8, 8, -3),),  # of another rank: elements are counted
    ((8, 8, "8"),),
    ((8, 8, True),),
    (Counted((8, 8)),),
    (Doubled((8, 8)),),
    Doubled(((8, 8),)),  # type: ignore[arg-type]
    (8, 8),
    8,
    None,
    "ab",
]


@pytest.mark.parametrize("shapes", LEFT_TO_PYTHON, ids=repr)
def test_python_chooses_for_shapes_that_native_code_does_not_take(shapes: Any) -> None:
    python, natively = both([((8, 8),), ((16, 16),), ((8, 4096),)])
    assert natively._number is not None and natively._number(shapes) is None
    expected = outcome(python, shapes)
    assert outcome(natively, shapes) == expected


def outcome(selector: Selector[int], shapes: Any) -> tuple[str, object]:
    try:
        return "chosen", selector.nearest(shapes).variant
    except Exception as error:  # compared by its type and message
        return type(error).__name__, str(error)


@pytest.mark.parametrize(
    "made", [Plain, lambda sizes: Pair(*sizes)], ids=["subclass", "namedtuple"]
)
def test_subclasses_of_tuple_are_native(made: Any) -> None:
    nearest = native.Nearest((((8, 8),), ((512, 8),)))
    assert nearest.number((made((600, 8)),)) == 1
    assert nearest.number(Plain((made((9, 8)),))) == 0


def test_the_shape_of_a_tensor_is_native() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    nearest = native.Nearest((((8, 8),), ((512, 8),)))
    assert nearest.number((torch.empty(600, 8, device="meta").shape,)) == 1


@pytest.mark.parametrize(
    ("hints", "error", "words"),
    [
        ((), ValueError, f"0 hints; it takes 1 to {MOST_HINTS}"),
        ((((8,),),) * (MOST_HINTS + 1), ValueError, f"{MOST_HINTS + 1} hints"),
        (
            (((8,),), ((8,) * MOST_DIMS, (8,))),
            ValueError,
            f"hint 1 has {MOST_DIMS + 1} dimensions; Nearest takes at most {MOST_DIMS}",
        ),
        ([((8,),)], TypeError, "must be tuple, not list"),
        ((((8,),), 3), TypeError, "hint 1 is 3;"),
        (((8,),), TypeError, r"hint 0 is \(8,\);"),
        ((([8],),), TypeError, r"hint 0 is \(\[8\],\);"),
        ((((-1,),),), TypeError, r"hint 0 is \(\(-1,\),\);"),
        ((((2**63,),),), TypeError, "below 2\\*\\*63"),
        ((((True,),),), TypeError, "True"),
    ],
)
def test_errors_name_invalid_hints(hints: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        native.Nearest(hints)


def test_invalid_arguments_are_rejected() -> None:
    hints = (((8,),),)
    for wrong in [lambda: native.Nearest(), lambda: native.Nearest(hints, 3),
                  lambda: native.Nearest(sizes=hints), lambda: native.Nearest(hints).number(),
                  lambda: native.Nearest(hints).number(hints[0], 3)]:  # fmt: skip
        with pytest.raises(TypeError):
            wrong()
    with pytest.raises(TypeError, match="immutable type"):
        native.Nearest.number = None


def test_where_the_extension_is_not_built_python_chooses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tzero._native", None)
    _, selector = both([((8, 8),), ((512, 8),)])
    assert selector._number is None
    assert selector.select(((500, 8),)).variant == 1


def test_an_extension_without_the_class_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tzero._native", ModuleType("tzero._native"))
    with pytest.raises(ImportError, match="Nearest"):
        both([((8, 8),)])
