"""A config that raises or is wrong has a problem; the arguments of the caller are not modified."""

from __future__ import annotations

import itertools
import random

import pytest
import torch
import triton
import triton.language as tl

from tests.tune.trials import CPU, OTHER, RIGHT, SetClock, tried, trying
from tzero import Config
from tzero.tune import trial
from tzero.tune.copying import Copies
from tzero.tune.trial import ReferenceFailed, Trial, device_of, problem_of


@triton.jit
def added(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < n
    total = tl.load(x_ptr + at, mask=mask) + tl.load(y_ptr + at, mask=mask)
    tl.store(out_ptr + at, total, mask=mask)


@triton.jit
def doubled(x_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x_ptr + at, 2 * tl.load(x_ptr + at, mask=at < n), mask=at < n)


def test_a_kernel_that_is_right_is_timed() -> None:
    def add(x: torch.Tensor, y: torch.Tensor, *, config: Config) -> torch.Tensor:
        out = torch.empty_like(x)
        added[(triton.cdiv(x.numel(), config.BLOCK),)](x, y, out, x.numel(), **config)
        return out

    x = torch.rand(1000)
    made = Trial(
        lambda config: lambda *args: add(*args, config=config), (x, x + 1), CPU, RIGHT, None
    )
    for config in (OTHER, RIGHT):
        found = made.outcome(config, budget=0.05, best=None)
        assert found.usable and found.median > 0 and found.samples > 0


def test_an_in_place_kernel_leaves_the_arguments_alone_and_is_restored_each_sample() -> None:
    def double(x: torch.Tensor, *, config: Config) -> None:
        doubled[(triton.cdiv(x.numel(), config.BLOCK),)](x, x.numel(), **config)

    x = torch.ones(200)
    clock = SetClock()
    made = trying(double, x, clock=clock)
    clock.watched = lambda: made._copies.taken()[0].sum().item()
    assert tried(made, RIGHT).median == 1.0
    assert tried(made, OTHER).median == 1.0
    assert set(clock.restored) == {200.0}
    assert torch.equal(x, torch.ones(200))


def test_a_kernel_that_writes_to_no_argument_is_timed_without_restoring() -> None:
    clock = SetClock()
    assert tried(trying(lambda x, config: x + 1, torch.ones(3), clock=clock), OTHER).usable
    assert clock.restored == []


def test_wrong_results_are_a_problem_that_says_where() -> None:
    made = trying(lambda x, config: x * config.BLOCK, torch.ones(3))
    found = tried(made, OTHER)
    assert found.problem == (
        "its results are wrong: result is 128.0 at (0,), and the reference 64.0; "
        "3 of 3 elements differ"
    )


def test_arguments_that_differ_from_the_references_after_a_call_are_a_problem() -> None:
    def spoil(x: torch.Tensor, y: torch.Tensor, *, config: Config) -> torch.Tensor:
        out = x + y
        if config == OTHER:
            y[1] = 5
        return out

    found = tried(trying(spoil, torch.ones(3), torch.ones(3)), OTHER)
    assert found.problem.startswith("its results are wrong: after the call args[1] is 5.0 at (1,)")


def test_a_result_that_is_an_argument_is_compared_as_the_reference_left_it() -> None:
    def fill(x: torch.Tensor, *, config: Config) -> torch.Tensor:
        return x.fill_(config.BLOCK)

    assert "128.0" in tried(trying(fill, torch.ones(3)), OTHER).problem


def test_a_result_that_every_call_writes_to_is_compared_as_the_reference_left_it() -> None:
    buffer = torch.zeros(3)

    def fill(x: torch.Tensor, *, config: Config) -> torch.Tensor:
        return buffer.fill_(config.BLOCK)

    assert "128.0" in tried(trying(fill, torch.ones(3)), OTHER).problem


def test_every_config_gets_the_original_contents_and_lists() -> None:
    def grow(xs: list[torch.Tensor], *, config: Config) -> float:
        [x] = xs
        xs.append(x.add_(1))
        return float(x.sum())

    given = [torch.ones(3)]
    made = trying(grow, given)
    # The first call of each config is right; the next ones find two tensors in the list and raise.
    for config in (RIGHT, OTHER, OTHER):
        assert tried(made, config).problem.startswith("ValueError: too many values")
    assert len(given) == 1


def test_an_exception_is_a_problem_and_the_next_config_is_tried() -> None:
    def picky(x: torch.Tensor, *, config: Config) -> torch.Tensor:
        if config == OTHER:
            raise RuntimeError("n" * 1000)
        return x + 1

    made = trying(picky, torch.ones(3))
    found = tried(made, OTHER)
    assert found.problem == ("RuntimeError: " + "n" * 1000)[:500]
    assert tried(made, RIGHT).usable


def test_ctrl_c_is_not_a_problem_of_a_config() -> None:
    def stopped(x: torch.Tensor, *, config: Config) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tried(trying(stopped, torch.ones(3)), RIGHT)


def test_a_reference_that_fails_has_a_problem_and_can_be_replaced() -> None:
    ran = []

    def picky(x: torch.Tensor, *, config: Config) -> torch.Tensor:
        ran.append(config)
        if config == RIGHT:
            raise ValueError("no")
        return x + 1

    made = trying(picky, torch.ones(3))
    assert tried(made, RIGHT).problem == made.reference_problem() == "ValueError: no"
    with pytest.raises(
        ReferenceFailed, match="Config\\(BLOCK=64\\) does not run \\(ValueError: no"
    ):
        tried(made, OTHER)
    assert ran == [RIGHT]
    made.set_reference(OTHER)
    assert made.reference_problem() == ""
    assert tried(made, OTHER).usable
    assert tried(made, RIGHT).problem == "ValueError: no"


def test_a_config_that_is_slower_than_the_best_is_given_up() -> None:
    made = trying(lambda x, config: x + 1, torch.ones(3))
    assert tried(made, RIGHT, best=0.1).samples < tried(made, RIGHT).samples


def test_torch_random_numbers_are_the_same_for_each_config_and_then_restored() -> None:
    def noisy(x: torch.Tensor, *, config: Config) -> torch.Tensor:
        return x + torch.rand(3)

    before = torch.get_rng_state()
    made = trying(noisy, torch.ones(3))
    assert tried(made, OTHER).usable
    assert torch.equal(before, torch.get_rng_state())


def test_the_arguments_are_copied_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made_of = []
    monkeypatch.setattr(trial, "Copies", lambda args: made_of.append(args) or Copies(args))
    places = set()

    def placed(x: torch.Tensor, *, config: Config) -> torch.Tensor:
        places.add(x.data_ptr())
        return x + 1

    x = torch.ones(3)
    made = trying(placed, x)
    for config in (RIGHT, OTHER):
        assert tried(made, config).usable
    assert len(made_of) == 1 and len(places) == 1 and x.data_ptr() not in places


def test_arguments_that_the_reference_did_not_modify_are_not_copied_again() -> None:
    x, y = torch.ones(3), torch.ones(3)
    held = Copies((x, y))
    one, two = held.taken()
    two.add_(1)
    kept = held.kept((one, two))
    assert kept[0].data_ptr() == x.data_ptr()
    assert kept[1].data_ptr() not in (y.data_ptr(), two.data_ptr())
    held.restore()
    assert kept[1].tolist() == [2.0] * 3 and two.tolist() == [1.0] * 3


def test_a_failed_allocation_is_a_problem_of_one_config() -> None:
    def greedy(x: torch.Tensor, *, config: Config) -> torch.Tensor:
        if config == OTHER:
            torch.empty(1 << 60, dtype=torch.uint8)
        return x + 1

    made = trying(greedy, torch.ones(3))
    assert tried(made, OTHER).problem.startswith("RuntimeError: ")
    assert tried(made, RIGHT).usable
    assert problem_of(torch.OutOfMemoryError("all of it")) == "OutOfMemoryError: all of it"


def test_the_device_is_that_of_the_first_tensor_in_any_nest() -> None:
    meta = torch.ones(2, device="meta")
    assert device_of(({"a": [1, meta]}, torch.ones(2))) == torch.device("meta")
    assert device_of((1, "a")) == CPU


@pytest.mark.gpu
def test_a_kernel_on_a_gpu_is_timed_and_its_arguments_are_left_alone() -> None:
    def double(x: torch.Tensor, *, config: Config) -> None:
        doubled[(triton.cdiv(x.numel(), config.BLOCK),)](x, x.numel(), **config)

    x = torch.ones(1 << 20, device="cuda")
    made = Trial(
        lambda config: lambda x: double(x, config=config), (x,), device_of((x,)), RIGHT, None
    )
    assert made.outcome(OTHER, budget=0.1, best=None).usable
    assert bool((x == 1).all()) and not made.device_lost()


def test_a_nondeterministic_config_is_not_called_wrong() -> None:
    calls = itertools.count()
    made = trying(lambda x, config: x + next(calls), torch.zeros(2))
    assert tried(made, RIGHT).problem.startswith("it is nondeterministic: result is")


def test_a_nondeterministic_reference_fails_for_good_whatever_the_one_before_failed_by() -> None:
    calls = itertools.count()

    def host(x: torch.Tensor, *, config: Config) -> torch.Tensor:
        if config == RIGHT:
            raise OSError(28, "No space left on device")
        return x + next(calls)

    made = trying(host, torch.ones(3))
    assert tried(made, RIGHT).passing
    made.set_reference(OTHER)
    found = tried(made, OTHER)
    assert "nondeterministic" in found.problem and not found.passing


def test_python_random_numbers_are_the_same_for_each_config_and_then_restored() -> None:
    def noisy(x: torch.Tensor, config: Config) -> torch.Tensor:
        return x + random.random()

    made = trying(noisy, torch.zeros(2))
    before = random.getstate()
    assert tried(made, RIGHT).usable
    assert tried(made, OTHER).usable
    assert random.getstate() == before
