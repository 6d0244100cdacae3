"""`autotune` searches when it is asked to."""

from __future__ import annotations

import os
import time
from typing import Any

import pytest
import torch

import tzero
from tests.tune.kernels import LARGE, SMALL, WRONG, X, double, kernel, observed
from tzero import Config, Space, settings
from tzero.errors import InvalidArgument

pytestmark = pytest.mark.usefixtures("own_memory")


def test_autotune_searches_now_and_returns_the_search() -> None:
    made = kernel()
    found = made.autotune(X)
    assert found.ended == "searched"
    assert set(found.outcomes) == {SMALL, LARGE}
    assert made.bind(X).config == found.best
    assert made.autotune(X).steps == ()
    assert len(made.autotune(X, force=True).steps) == 2


def test_a_bound_kernel_is_tuned_with_tensors_of_the_layout_it_was_bound_with() -> None:
    def gather(x: torch.Tensor, at: torch.Tensor, config: Config) -> torch.Tensor:
        assert x.shape == (40, 5)
        assert x.stride() == (1, 40)
        assert int(at.max()) < 40
        return double(x.t().contiguous(), config)

    made = tzero.kernel(configs=[SMALL, LARGE])(gather)
    bound = made.bind(torch.randn(5, 40).t(), torch.tensor([3, 1]))
    assert bound.autotune().best in (SMALL, LARGE)


def test_a_bound_kernel_is_not_tuned_for_other_arguments() -> None:
    bound = kernel().bind(X)
    with pytest.raises(InvalidArgument, match="has sizes"):
        bound.autotune(X[:5])


@pytest.mark.parametrize("budget", [0, -1.0, "5"])
def test_a_budget_must_be_positive(budget: Any) -> None:
    with pytest.raises(InvalidArgument, match="budget"):
        kernel().autotune(X, budget=budget)


def test_a_budget_ends_a_search() -> None:
    made = kernel([Config(BLOCK=2**k, BY=2) for k in range(4, 12)])
    found = made.autotune(X, budget=1e-6)
    assert found.ended == "budget"
    assert len(found.steps) == 1
    assert len(found.left_out) == 7
    assert "7 left out, for lack of time" in str(made.explain(X))
    torch.testing.assert_close(made(X), X * 2)


def test_a_budget_counts_compiles_without_workers() -> None:
    run: list[Config] = []

    def slow(x: torch.Tensor, config: Config) -> torch.Tensor:
        if config not in run:  # the run that finds what to compile
            time.sleep(0.5)
        run.append(config)
        return double(x, config)

    configs = [Config(BLOCK=2**k, BY=2) for k in range(4, 12)]
    found, watching = observed()
    with settings.override(compile_workers=1), watching:
        search = tzero.kernel(configs=configs)(slow).autotune(X, budget=0.8)
    assert search.left_out
    assert {*search.outcomes, *search.left_out} == {*configs}
    assert not {*search.left_out}.intersection(run)
    assert any("in the budget of 0.8 s, and left out: Config(BLOCK=" in each for each in found)


def hang_elsewhere(x: torch.Tensor, parent: int, config: Config) -> torch.Tensor:
    while config == LARGE and os.getpid() != parent:
        time.sleep(1.0)
    return double(x, config)


def test_an_isolated_config_that_hangs_leaves_time_for_others() -> None:
    made = tzero.kernel(configs=[SMALL, LARGE])(hang_elsewhere)
    found = made.autotune(X, os.getpid(), budget=10.0, isolate=True)
    assert found.best == SMALL
    if LARGE not in found.left_out:  # there was time to start a process
        assert "which is half of what was left of the budget" in found.outcomes[LARGE].problem


def test_a_kernel_without_configs_has_nothing_to_tune() -> None:
    @tzero.kernel
    def plain(x: torch.Tensor) -> torch.Tensor:
        return x

    with pytest.raises(InvalidArgument, match=r"Give it configs: tzero.kernel\(configs="):
        plain.autotune(X)


def test_ranges_are_searched_too() -> None:
    space = Space(BLOCK=[16, 64, 256], BY=[2], where=lambda config: config.BLOCK > 16)
    made = kernel(space)
    torch.testing.assert_close(made(X), X * 2)
    (found,) = made.tuning.searches.values()
    assert {config.BLOCK for config in found.outcomes} == {64, 256}
    assert made.configs == ()


def test_configs_can_be_timed_in_a_process_of_their_own() -> None:
    made = kernel([SMALL, WRONG, LARGE])
    found = made.autotune(X, isolate=True)
    assert found.best in (SMALL, LARGE)
    assert "results are wrong" in found.outcomes[WRONG].problem


def test_each_size_of_dynamic_shapes_is_timed_by_itself() -> None:
    made = kernel(static_shapes=False)
    assert len(made.autotune(X).steps) == 2
    assert len(made.autotune(torch.cat([X] * 9)).steps) == 2
    assert len(made.autotune(X).steps) == 0
