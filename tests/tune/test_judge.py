"""The options `tolerance` and `check`, and what a reference says about which elements count."""

from __future__ import annotations

import copy
import functools
import itertools
from typing import Any

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

import tzero
from tests.tune.kernels import LARGE, SMALL, WRONG, X, double, kernel, observed
from tests.tune.trials import OTHER, RIGHT, tried, trying
from tzero import Config
from tzero.errors import InvalidArgument, InvalidKernel, TuningFailed
from tzero.tune.judge import Judge, Reference

pytestmark = pytest.mark.usefixtures("own_memory")


def slightly_off(x: torch.Tensor, config: Config) -> torch.Tensor:
    return x + 1 if config == RIGHT else x + 1.01


def close(found: torch.Tensor, expected: torch.Tensor) -> bool:
    return torch.allclose(found, expected, rtol=0.1)


class Within:
    def __init__(self, most: float) -> None:
        self.most = most

    def __call__(self, found: torch.Tensor, expected: torch.Tensor) -> bool:
        return float((found - expected).abs().max()) <= self.most


class Slotted:
    __slots__ = ("most",)

    def __init__(self, most: Any) -> None:
        self.most = most

    def __call__(self, found: Any, expected: Any) -> bool:
        return True


def closing(most: Any) -> Any:
    return lambda found, expected: bool(most)


def defaulting(most: Any) -> Any:
    def check(found: Any, expected: Any, most: Any = most) -> bool:
        return bool(most)

    return check


STATES = [1, [1], (1,), {"a": {1}}, torch.ones(3000), np.ones(2), Slotted(1), abs, close]
OTHER_STATES = [
    2,
    [2],
    (2,),
    {"a": {2}},
    torch.ones(3000),
    np.zeros(2),
    Slotted(2),
    len,
    Slotted(1),
]
OTHER_STATES[4][1500] = 2  # type: ignore[index]


@pytest.mark.parametrize("at", range(len(STATES)))
def test_a_check_with_another_state_is_another_check(at: int) -> None:
    makes = [Slotted, closing, lambda most: Slotted(most).__call__, lambda most: Slotted([most])]
    makes += [lambda most: functools.partial(Slotted.__call__, expected=most)]
    makes += [defaulting] if at in (0, 2) else []
    for make in makes:
        one, again, other = map(make, (STATES[at], copy.deepcopy(STATES[at]), OTHER_STATES[at]))
        assert Judge(check=one).text == Judge(check=again).text
        assert Judge(check=one).text != Judge(check=other).text


# -- tolerance and check --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("judge", "passes"),
    [
        (Judge(), False),
        (Judge(tolerance=0.1), True),
        (Judge(tolerance=0.001), False),
        (Judge(check=close), True),
        (Judge(check=torch.testing.assert_close), False),
        (Judge(check=functools.partial(torch.testing.assert_close, rtol=0.1, atol=0)), True),
        (Judge(check=lambda found, expected: (found == expected).all()), False),
        (Judge(check=lambda found, expected: None), True),
        (Judge(check=Within(0.1)), True),
        (Judge(check=Within(0.001)), False),
        (
            Judge(check=lambda found, expected: "" if torch.equal(found, expected) else "other"),
            False,
        ),
    ],
)
def test_tolerance_and_check_decide_what_is_right(judge: Judge, passes: bool) -> None:
    assert tried(trying(slightly_off, torch.ones(3), judge=judge), OTHER).usable == passes


def test_the_problem_says_what_a_check_says() -> None:
    def problem(check: Any) -> str:
        made = trying(lambda x, config: x * config.BLOCK, torch.ones(3), judge=Judge(check=check))
        assert made.reference_problem() == ""
        return tried(made, OTHER).problem

    def strict(found: torch.Tensor, expected: torch.Tensor) -> None:
        assert torch.equal(found, expected), f"{found[0]} is not {expected[0]}"

    def broken(found: torch.Tensor, expected: torch.Tensor) -> None:
        if not torch.equal(found, expected):
            raise KeyError("nothing")

    assert problem(strict).startswith("its results are wrong: check says: 128.0 is not 64.0")
    assert problem(broken) == "its results are wrong: check raised KeyError: 'nothing'"
    assert problem(torch.equal) == "its results are wrong: check returned False"


def test_a_check_gets_the_arguments_of_a_function_that_returns_nothing() -> None:
    def fill(x: torch.Tensor, config: Config) -> None:
        x.fill_(1 if config == RIGHT else 1.05)

    def check(found: Any, expected: Any) -> bool:
        seen.append((type(found), len(found)))
        return torch.allclose(found[0], expected[0], rtol=0.1)

    seen: list[Any] = []
    assert tried(trying(fill, torch.zeros(3), judge=Judge(check=check)), OTHER).usable
    assert set(seen) == {(tuple, 1)}


def test_arguments_are_compared_beside_a_check_of_the_results() -> None:
    def spoil(x: torch.Tensor, config: Config) -> torch.Tensor:
        out = x + 1
        x.fill_(config.BLOCK)
        return out

    found = tried(trying(spoil, torch.zeros(3), judge=Judge(check=close)), OTHER)
    assert found.problem.startswith("its results are wrong: after the call args[0] is 128.0")


def test_an_argument_that_is_a_result_is_left_to_the_check() -> None:
    def fill(x: torch.Tensor, y: torch.Tensor, config: Config) -> list[torch.Tensor]:
        return [x.fill_(1 if config == RIGHT else 1.05)]

    def check(found: list[torch.Tensor], expected: list[torch.Tensor]) -> bool:
        return close(found[0], expected[0])

    made = trying(fill, torch.zeros(3), torch.zeros(3), judge=Judge(check=check))
    assert tried(made, OTHER).usable


@pytest.mark.parametrize("dtype", [torch.float32, torch.int32, torch.bool, torch.float8_e5m2])
def test_a_check_sees_zeros_where_the_reference_leaves_memory_unwritten(dtype: Any) -> None:
    def pad(x: torch.Tensor, config: Config) -> torch.Tensor:
        out = x.new_empty(8)
        out[:3] = x
        return out

    def check(found: torch.Tensor, expected: torch.Tensor) -> None:
        seen.append(expected.float().tolist())
        torch.testing.assert_close(found.float(), expected.float())
        expected.zero_()  # it may do what it likes with its copies

    seen: list[Any] = []
    made = trying(pad, torch.ones(3).to(dtype), judge=Judge(check=check))
    assert tried(made, OTHER).usable and tried(made, RIGHT).usable
    assert seen[-1] == [1.0] * 3 + [0.0] * 5


def test_a_check_accepts_results_that_vary_by_much() -> None:
    def noisy(x: torch.Tensor, config: Config) -> torch.Tensor:
        return x + torch.rand(3, generator=source)

    source = torch.Generator().manual_seed(0)
    bounded = Judge(check=lambda found, expected: bool((found < 2).all()))
    assert tried(trying(noisy, torch.ones(3), judge=bounded), OTHER).usable
    assert tried(trying(noisy, torch.ones(3)), RIGHT).problem.startswith("it is nondeterministic")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"tolerance": -0.1}, r"tolerance.* is -0\.1.* Pass a number from 0 on"),
        ({"tolerance": float("nan")}, "tolerance.* is nan"),
        ({"tolerance": float("inf")}, "tolerance.* is inf"),
        ({"tolerance": True}, "tolerance.* is True"),
        ({"tolerance": "1e-3"}, "tolerance.* is '1e-3'"),
        ({"check": 3}, "check.* is 3.* Pass a function of two results"),
        ({"check": False}, "check.* is False"),
    ],
)
def test_bad_values_are_errors_that_say_what_to_pass(options: Any, words: str) -> None:
    with pytest.raises(InvalidKernel, match=words):
        kernel(**options)
    with pytest.raises(InvalidArgument, match=words):
        kernel().autotune(X, **options)


def test_the_options_of_a_kernel_are_used_by_its_first_call_and_by_autotune() -> None:
    made = kernel([SMALL, WRONG], tolerance=0.6)
    made(X)
    assert made.bind(X).autotune(X, force=True).outcomes[WRONG].usable
    strict = made.autotune(X, tolerance=0.0, force=True)
    assert "is 3.0 at (1,), and the reference 2.0" in strict.outcomes[WRONG].problem
    loose = kernel([SMALL, WRONG]).autotune(X, check=lambda *both: True)
    assert loose.outcomes[WRONG].usable


def test_outcomes_are_remembered_for_the_options_they_were_judged_by() -> None:
    assert kernel([SMALL, WRONG], tolerance=0.6).autotune(X).outcomes[WRONG].usable
    assert not kernel([SMALL, WRONG]).autotune(X).outcomes[WRONG].usable
    again = kernel([SMALL, WRONG], tolerance=0.6)
    again(X)
    assert again.bind(X).choice.how == "cached"
    texts = [
        Judge(),
        Judge(tolerance=0.0),
        Judge(check=close),
        Judge(check=torch.equal),
        Judge(check=torch.allclose),
        Judge(check=Within(0.1)),
        Judge(check=Within(0.2)),
        Judge(check=functools.partial(torch.testing.assert_close, rtol=0.1, atol=0)),
        Judge(check=functools.partial(torch.testing.assert_close, rtol=0.2, atol=0)),
    ]
    assert len({judge.text for judge in texts}) == len(texts)


def test_variants_are_compared_by_the_options_too() -> None:
    made = tzero.multi_kernel([lambda x: x * 2, lambda x: x * 2.1], name="double", tolerance=0.1)
    assert all(each.usable for each in made.autotune(X).outcomes.values())


# -- real kernels ---------------------------------------------------------------------------------


@triton.jit
def tail_kernel(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < n) * 2, mask=at < n)


FULL, SHORT, LONG = Config(BLOCK=64), Config(BLOCK=128), Config(BLOCK=256)


def write(x: torch.Tensor, out: torch.Tensor, config: Config) -> torch.Tensor:
    blocks = x.numel() // 128 if config == SHORT else triton.cdiv(x.numel(), config.BLOCK)
    tail_kernel[(blocks,)](x, out, x.numel(), **config)
    return out


def tail(x: torch.Tensor, config: Config) -> torch.Tensor:
    return write(x, torch.empty_like(x), config)


def padded(x: torch.Tensor, config: Config) -> torch.Tensor:
    return write(x, x.new_empty(1024), config)


LEFT = "its results are wrong: result is nan, like unwritten memory, at (896,), and the reference "


def test_a_kernel_that_leaves_a_tail_unwritten_is_out(tier: int) -> None:
    found = tzero.kernel(configs=[FULL, SHORT])(tail).autotune(X)
    assert found.outcomes[FULL].usable
    assert found.outcomes[SHORT].problem == LEFT + "1792.0; 104 of 1000 elements differ"


def test_a_kernel_that_returns_a_padded_buffer_is_tuned(tier: int) -> None:
    found = tzero.kernel(configs=[FULL, SHORT, LONG])(padded).autotune(X)
    assert found.outcomes[FULL].usable and found.outcomes[LONG].usable
    assert found.outcomes[SHORT].problem == LEFT + "1792.0; 104 of 1024 elements differ"


def test_memory_is_filled_in_another_process_too() -> None:
    found = tzero.kernel(configs=[FULL, SHORT, LONG])(padded).autotune(X, isolate=True)
    assert found.outcomes[FULL].usable and found.outcomes[LONG].usable
    assert found.outcomes[SHORT].problem == LEFT + "1792.0; 104 of 1024 elements differ"


def test_the_options_are_sent_to_another_process() -> None:
    threshold = 0.6

    def changed(x, config):  # type: ignore[no-untyped-def]
        return x.mul_(config.BY) * config.BY

    def accepted(found, expected):  # type: ignore[no-untyped-def]
        return bool((found > -threshold).all())

    # The check accepts the results, the tolerance what is left in the argument.
    made = tzero.kernel(configs=[SMALL, WRONG], check=accepted, tolerance=threshold)(changed)
    assert made.autotune(X, isolate=True).outcomes[WRONG].usable


def test_the_checks_cause_no_events_about_replays(tier: int) -> None:
    found, observing = observed("fallback")
    inner = tzero.kernel(config=SMALL)(double)

    def outer(x: torch.Tensor, config: Config) -> torch.Tensor:
        return inner(x) + double(x, config)

    with observing:
        tzero.kernel(configs=[SMALL, LARGE])(outer).autotune(X)
    assert [reason for reason in found if "mode" in reason] == []


def test_a_reference_that_varies_too_much_fails_with_both_values() -> None:
    counted = itertools.count(step=1000)
    made = tzero.kernel(configs=[SMALL, LARGE])(lambda x, config: x + next(counted))
    with pytest.raises(TuningFailed, match=r"it is nondeterministic: result is .* and the ref"):
        made.autotune(X)


# -- the reference --------------------------------------------------------------------------------


def test_elements_that_change_with_the_pattern_do_not_count() -> None:
    first = Reference(torch.tensor([1.0, 2.0, 3.0]), (), Judge())
    found, problem = first.refilled(torch.tensor([1.0, 2.0, -224.0]), ())
    assert problem == ""
    assert found.verdict(torch.tensor([1.0, 2.0, 99.0]), ()) == ""
    assert "at (1,)" in found.verdict(torch.tensor([1.0, 99.0, 3.0]), ())


def test_a_form_that_changes_with_the_pattern_is_a_problem() -> None:
    _, problem = Reference(torch.ones(3), (), Judge()).refilled(torch.ones(2), ())
    assert problem.startswith("it depends on unwritten memory: result has shape (2,)")


def test_candidates_may_vary_as_the_reference_does_and_no_more() -> None:
    x = torch.linspace(1, 2, 100)
    found, problem = Reference(x, (), Judge()).repeated(x * 1.001, ())
    assert problem == ""
    assert found.verdict(x * 0.998, ()) == ""
    assert found.verdict(x * 0.99, ()) != ""


def test_one_element_that_varies_gives_no_leeway_to_others() -> None:
    x = torch.linspace(1, 2, 100)
    other = x.clone()
    other[7] += 0.01
    found, problem = Reference(x, (), Judge()).repeated(other, ())
    assert problem == ""
    assert found.verdict(other, ()) == ""
    other[8] += 0.01
    assert "at (8,)" in found.verdict(other, ())


def test_integers_that_vary_are_a_problem() -> None:
    _, problem = Reference(torch.tensor([1, 2]), (), Judge()).repeated(torch.tensor([1, 3]), ())
    assert problem == (
        "it is nondeterministic: result is 3 at (1,), and the reference 2; 1 of 2 elements differ"
    )
