"""Errors of operators in a replay are raised unchanged, and leak nothing.

Each fault occurs in a replayed call, after successful calls. Afterwards the references to the
arguments, the tensors in the process and the counts of the rings must be what they were, and the
next call must succeed. Operators read `FAULTS`: their code is not part of a plan.
"""

from __future__ import annotations

import contextlib
import gc
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from tests.plans.faults import outcome, tensors
from tests.plans.hosts import added, scaled
from tests.plans.tiers import counted, of_tier
from tzero.plans import outputs

pytestmark = pytest.mark.usefixtures("replaying")

FAULTS: dict[str, Callable[[], Any]] = {}
"""For each operator, by name: a function that raises in its next calls."""


def meet(name: str) -> None:
    if name in FAULTS:
        raise FAULTS[name]()


@torch.library.custom_op("tzero_faults::first", mutates_args=())
def first(x: torch.Tensor) -> torch.Tensor:
    meet("first")
    return x + 1


@torch.library.custom_op("tzero_faults::middle", mutates_args=("x",))
def middle(x: torch.Tensor) -> None:
    x.add_(1)
    meet("middle")


@torch.library.custom_op("tzero_faults::pair", mutates_args=())
def pair_of(x: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
    meet("pair")
    return x + 1, [x + 2, x + 3]


@torch.library.custom_op("tzero_faults::last", mutates_args=())
def last(x: torch.Tensor) -> torch.Tensor:
    out = x + 1
    meet("last")
    return out


first.register_fake(torch.empty_like)
last.register_fake(torch.empty_like)


@pair_of.register_fake
def _(x):
    return torch.empty_like(x), [torch.empty_like(x), torch.empty_like(x)]


OPERATORS = ("first", "middle", "pair", "last")


def host(x, y, by):
    one = torch.ops.tzero_faults.first(x)
    two = scaled(one, 2.0)
    torch.ops.tzero_faults.middle(y)
    three = added(two, y)
    four, (five, six) = torch.ops.tzero_faults.pair(three[1:])
    seven = scaled(three, by)
    return torch.ops.tzero_faults.last(seven), [two, four.view(-1), (five, six)], x.view(-1)


class Odd(Exception):
    """An error whose constructor takes more than a message."""

    def __init__(self, one: int, *, two: str) -> None:
        super().__init__(one, two)
        self.two = two


class Grave(BaseException):
    """A `BaseException` that is not an `Exception`."""


ERRORS: dict[str, Callable[[], BaseException]] = {
    "RuntimeError": lambda: RuntimeError("words"),
    "TypeError": lambda: TypeError("words"),
    "an error of its own kind": lambda: Odd(1, two="words"),
    "StopIteration": lambda: StopIteration(3),
    "MemoryError": lambda: MemoryError(),
    "NotImplementedError": lambda: NotImplementedError("words"),
    "KeyboardInterrupt": lambda: KeyboardInterrupt("words"),
    "SystemExit": lambda: SystemExit(3),
    "a BaseException": lambda: Grave("words"),
}


@pytest.fixture(autouse=True)
def frozen() -> None:
    """Freeze the garbage collector, so that `tensors` counts only what a test creates."""
    gc.collect()
    gc.freeze()


@contextlib.contextmanager
def fault(name: str, error: Callable[[], Any]) -> Iterator[None]:
    FAULTS[name] = error
    try:
        yield
    finally:
        FAULTS.clear()


def raised(call: Callable[[], Any]) -> BaseException:
    try:
        call()
    except BaseException as error:
        return error.with_traceback(None)
    raise AssertionError("nothing was raised")


def arguments() -> tuple[torch.Tensor, torch.Tensor, float]:
    return torch.arange(6.0), torch.ones(6), float("2.5")  # a float object of its own


def flat(result: Any) -> list[torch.Tensor]:
    out, (two, four, (five, six)), view = result
    return [out, two, four, five, six, view]


def values(result: Any) -> list[list[float]]:
    return [each.tolist() for each in flat(result)]


class Ready:
    """A kernel whose calls are replayed, and what they should return."""

    def __init__(self, tier: int, pooled: bool, function: Callable[..., Any] = host) -> None:
        before = set(outputs._all())
        self.function = function
        self.kernel = of_tier(tier, function, pool=pooled)
        self.plain = of_tier(0, function)
        for _ in range(3):
            self.kernel(*arguments())
        self.rings = [ring for ring in outputs._all() if ring not in before]

    def works(self) -> None:
        """Demand that a call is replayed and correct."""
        assert not sys.exc_info()[0]
        with counted(self.function) as runs:
            found = self.kernel(*arguments())
        assert runs[0] == 0, "it is not replayed"
        assert values(found) == values(self.plain(*arguments()))

    def made(self) -> int:
        return sum(ring.made for ring in self.rings)

    def reused(self) -> int:
        return sum(ring.reused for ring in self.rings)


def assert_nothing_stays(ready: Ready, fail: Callable[[tuple[Any, ...]], None]) -> None:
    """Demand that many failing calls leak no reference and no tensor, and return the rings'
    tensors."""
    args = arguments()
    for _ in range(2):
        fail(args)
    counts = [sys.getrefcount(each) for each in args]
    uses = [each._use_count() for each in args[:2]]  # type: ignore[union-attr]
    made, there = ready.made(), tensors()
    for _ in range(20):
        fail(args)
    assert tensors() == there
    assert [sys.getrefcount(each) for each in args] == counts
    assert [each._use_count() for each in args[:2]] == uses  # type: ignore[union-attr]
    assert ready.made() == made, "a ring has not its tensors back"


# -- operators -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("operator", "error"),
    [*(("pair", error) for error in ERRORS), *((each, "KeyboardInterrupt") for each in OPERATORS)],
)
def test_the_error_of_an_operator_comes_out_as_it_is(operator: str, error: str, tier: int) -> None:
    ready = Ready(tier, True)
    with fault(operator, ERRORS[error]):
        expected = outcome(lambda: ready.plain(*arguments()))
        assert outcome(lambda: ready.kernel(*arguments())) == expected
        assert expected[0] is type(ERRORS[error]())
    one = ERRORS[error]()
    with fault(operator, lambda: one):
        assert raised(lambda: ready.kernel(*arguments())) is one
    ready.works()


@pytest.mark.parametrize("pooled", [False, True])
@pytest.mark.parametrize("operator", OPERATORS)
def test_an_operator_that_fails_leaves_nothing_behind(
    operator: str, pooled: bool, tier: int
) -> None:
    ready = Ready(tier, pooled)
    with fault(operator, lambda: Grave(operator)):

        def fail(args: tuple[Any, ...]) -> None:
            assert outcome(lambda: ready.kernel(*args))[1] == (operator,)

        assert_nothing_stays(ready, fail)
    made, reused = ready.made(), ready.reused()
    ready.works()
    assert ready.made() == made, "a ring has not its tensors back"
    assert not pooled or ready.reused() > reused


@pytest.mark.parametrize("operator", OPERATORS)
def test_what_was_done_before_an_error_stays_done(operator: str, tier: int) -> None:
    ready = Ready(tier, True)
    with fault(operator, lambda: RuntimeError("words")):
        ours, theirs = arguments(), arguments()
        outcome(lambda: ready.kernel(*ours))
        outcome(lambda: ready.plain(*theirs))
    assert [each.tolist() for each in ours[:2]] == [each.tolist() for each in theirs[:2]]


@pytest.mark.parametrize("operator", OPERATORS)
def test_a_first_call_that_fails_is_recorded_when_it_does_not(operator: str, tier: int) -> None:
    kernel, plain = of_tier(tier, host, pool=True), of_tier(0, host)
    with fault(operator, lambda: Grave("first")):
        for _ in range(2):
            assert outcome(lambda: kernel(*arguments()))[1] == ("first",)
    expected = values(plain(*arguments()))
    for k in range(3):
        with counted(host) as runs:
            assert values(kernel(*arguments())) == expected
        assert runs[0] == (k == 0)


def interrupting() -> BaseException:
    signal.raise_signal(signal.SIGINT)  # its handler raises before this returns, or soon after
    return Grave("not interrupted")


@pytest.mark.skipif(
    threading.current_thread() is not threading.main_thread(), reason="signals go to the first"
)
@pytest.mark.parametrize("operator", OPERATORS)
def test_an_interrupt_during_a_replay_is_raised(operator: str, tier: int) -> None:
    ready = Ready(tier, True)
    with fault(operator, interrupting):
        assert outcome(lambda: ready.kernel(*arguments()))[0] is KeyboardInterrupt
    ready.works()


def test_threads_have_each_their_own_errors(tier: int) -> None:
    ready, wrong = Ready(tier, True), []
    mine = threading.local()

    def error() -> BaseException:
        return Odd(mine.number, two="words")

    def work(number: int) -> None:
        mine.number = number
        for _ in range(40):
            found = outcome(lambda: ready.kernel(*arguments()))
            if found[:2] != (Odd, (number, "words")):
                wrong.append(found)

    with fault("pair", error):
        threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
    assert wrong == []
    ready.works()
