"""Generated host functions over sizes, against the plain function: every construct by itself, and
random programs of them.

A failure has a short program in its message; ``python -m tests.sizes.search SEED`` repeats a seed.
"""

from __future__ import annotations

import itertools
import math
import random

import pytest

from tests.plans.tiers import available, verifying
from tests.sizes import grammar
from tests.sizes.programs import Call, Program, Tensor
from tests.sizes.search import KINDS, Counts, Wrong, run, script, search, shortened
from tzero.symbolic.formulas import Formulas


@pytest.fixture(autouse=True)
def replaying() -> None:
    available(2)
    if verifying():
        pytest.skip("verify mode replays nothing")


# -- every construct -------------------------------------------------------------------------------

PLACES = {
    "{i}": ("i1", "t0.shape[0]", "t0.size(1)", "t0.numel()"),
    "{s}": ("clamp(i1)", "t0.shape[0] % 7", "min(abs(i1), 9)"),
    "{x}": ("t0",),
    "{c}": ("i1 > 3", "t0.shape[0] < t0.shape[1]"),
    "{g}": ("(clamp(i1) + 1,)",),
    "{b}": ("triton.next_power_of_2(clamp(i1, 1))",),
}
"""What stands in the places of a template: each in turn."""

SIZES = ((3, 5), (4, 5), (7, 6), (16, 6), (1, 6), (5, 1), (0, 4), (8, 17), (8, 8))
NUMBERS = (3, 16, 1, 0, -7, 2**31, 2**63 - 1, 2**63, 4)
LAYOUTS = ("turned", "wide", "spread")


def filled(template: str, turn: int) -> str:
    """A template with its places taken."""
    for mark, choices in PLACES.items():
        for k in itertools.count(turn):
            if mark not in template:
                break
            template = template.replace(mark, choices[k % len(choices)], 1)
    return template.replace("{{", "{").replace("}}", "}")


def calls() -> tuple[Call, ...]:
    """Each size with small numbers; then one size with each number; then layouts and modes."""
    by_size = [Call((Tensor(sizes, "plain"), 2 + k % 7)) for k, sizes in enumerate(SIZES)]
    by_number = [Call((Tensor((6, 7), "plain"), number)) for number in NUMBERS]
    laid_out = [Call((Tensor((size, 4), each), 4)) for each in LAYOUTS for size in (3, 5)]
    with_grad = [Call((Tensor((size, 4), "plain", grad=True), 4), "grad") for size in (3, 5)]
    return (*by_size, *by_number, *laid_out, *with_grad)


LOG = "log = torch.zeros(8, dtype=torch.int64)"


def of_integer(expression: str) -> Program:
    statements = ((f"n = {expression}",), (LOG,), ("note[(1,)](log, n, 0, 0)",))
    return Program(("t0", "i1"), statements, "log, n", calls())


def of_condition(expression: str) -> Program:
    branch = (f"if {expression}:", "    note[(1,)](log, 1, t0.shape[0], 0)", "else:")
    branch += ("    note[(1,)](log, 2, t0.shape[1], 0)",)
    return Program(("t0", "i1"), ((LOG,), branch), "log", calls())


def of_tensor(expression: str) -> Program:
    statements = ((f"v = {expression}",), ("w = copied(v)",))
    return Program(("t0", "i1"), statements, "v, w, v.shape", calls())


def of_launch(statement: str) -> Program:
    return Program(("t0", "i1"), ((LOG,), (statement,)), "log", calls())


PROGRAMS = {
    **dict.fromkeys((*grammar.GEOMETRY, *grammar.INTEGERS, *grammar.SMALL), of_integer),
    **dict.fromkeys(grammar.CONDITIONS, of_condition),
    **{f"stamped({each})": of_tensor for each in grammar.ALLOCATED},
    **dict.fromkeys((*grammar.VALUES, *grammar.VIEWS, *grammar.OPS), of_tensor),
    **dict.fromkeys(grammar.LAUNCHES, of_launch),
    **{f"note[{each}](log, 1, 2, 3)": of_launch for each in grammar.GRIDS},
    **{f"given[(1,)](log, VALUE={each})": of_launch for each in grammar.BLOCKS},
}


EXACT = frozenset(
    ["{i} is {i}", "{x}.permute(*reversed(range({x}.dim())))", "{x}.storage_offset()"]
)
"""Constructs whose plans are for one size each, or that are not replayed."""

DEFAULT = {"default": KINDS["default"]}


@pytest.mark.parametrize("template", PROGRAMS)
def test_a_construct_gives_the_plain_result_at_every_size(template: str) -> None:
    program, counts = PROGRAMS[template](filled(template, len(template))), Counts()
    try:
        run(program, counts, DEFAULT)
    except Wrong as error:
        short, last = shortened(program, error, DEFAULT)
        raise Wrong(last.kind, last.call, script(short, last)) from None
    assert counts.sized or template in EXACT, "no call with a new size was replayed"


# -- these tests can fail --------------------------------------------------------------------------


def no_conditions(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Formulas, "compare", lambda self, comparison, left, right: True)


def no_pins(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Formulas, "pin", lambda self, formula: self.value(formula))


@pytest.mark.parametrize(
    ("mutate", "template"),
    [(no_conditions, "{i} > 5"), (no_pins, "TABLE.get({i}, 2)"), (no_pins, "int(str({i}))")],
)
def test_a_condition_that_is_missing_is_found(
    mutate, template: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutate(monkeypatch)
    with pytest.raises(Wrong):
        run(PROGRAMS[template](filled(template, 0)), Counts(), DEFAULT)


# -- random programs -------------------------------------------------------------------------------


def test_random_programs_give_the_plain_result_at_every_size() -> None:
    counts = search(iter(range(40)), math.inf)
    print(counts)
    assert counts.calls > 500 and counts.sized > counts.programs, counts


@pytest.mark.soak
def test_random_programs_give_the_plain_result_for_an_hour() -> None:
    first = random.SystemRandom().randrange(10**9)
    print("the first seed is", first)
    print(search(itertools.count(first), 3600.0))
