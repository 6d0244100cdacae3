"""Kernels with size hints: each call takes the config of the nearest hint."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

import tzero
from tests.tune.kernels import LARGE, SMALL, X, double, kernel, observed
from tzero import Config
from tzero.errors import InvalidArgument, InvalidKernel, TuningFailed
from tzero.tune.records import Outcome
from tzero.tune.trial import Trial

pytestmark = pytest.mark.usefixtures("own_memory")


def by_size(**options: Any) -> tzero.Kernel[torch.Tensor]:
    return kernel(static_shapes=False, size_hints=[64, 65536], **options)


def test_a_call_uses_the_config_of_the_nearest_hint(tier: int) -> None:
    made = by_size()
    for n in (50, 100, 1500, 100_000, 50, 100_000, 50, 100_000):
        x = torch.arange(float(n))
        torch.testing.assert_close(made(x), x * 2)
    assert made.stats().entries == 1
    assert len(made.tuning.searches) == 2
    words = str(made.explain(torch.ones(100)))
    assert "nearest: tuned for (64,) → (64,), the nearest of 2 tuned shapes" in words
    assert "tuned for (65536,)" in str(made.explain(torch.ones(90_000)))


def test_each_size_keeps_plans_of_its_own(tier: int) -> None:
    made = by_size()
    small, large = torch.ones(64), torch.ones(65536)
    made(small)
    bound = made.bind(small)
    assert bound.by_size is not None
    for hint, config in zip(bound.by_size.selector.hints, (SMALL, LARGE), strict=True):
        object.__setattr__(hint, "variant", config)
    bound.choose_by_size(type(bound.by_size)(bound.by_size.selector.hints, (), ("x",)))
    for _ in range(3):
        assert torch.equal(made(small), small * 2)
        assert torch.equal(made(large), large * 2)
    assert made.explain(small).config == SMALL
    assert made.explain(large).config == LARGE
    if tier:
        assert (
            "256"
            not in str(made.explain(small).plan).split("launch")[1].split("\n")[0].split(")](")[1]
        )
    bound.set_config(LARGE)
    assert torch.equal(made(small), small * 2)
    assert made.explain(small).config == LARGE


def test_of_equally_fast_configs_a_hint_uses_the_best_at_the_other_hints(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    times = {64: {SMALL: 1e-5, LARGE: 2e-5}, 256: {SMALL: 1.04e-3, LARGE: 1e-3}}

    def outcome(trial: Trial, config: Config, **options: Any) -> Outcome:
        seconds = times[trial.spare()[0].numel()][config]
        return Outcome(seconds, seconds, seconds, 10)

    monkeypatch.setattr(Trial, "outcome", outcome)
    said, watching = observed()
    for how in ("tuned", "cached"):
        made = kernel(static_shapes=False, size_hints=[64, 256])
        with watching if how == "tuned" else observed()[1]:
            made(torch.ones(300))
        assert made.explain(torch.ones(300)).config == SMALL
        assert len(made.tuning.searches) == (2 if how == "tuned" else 0)
    [words] = [each for each in said if "better at others" in each]
    assert words == f"for sizes 256 {SMALL!r}, as fast as {LARGE!r}, and better at others"
    made.autotune(torch.ones(70), force=True)
    assert made.explain(torch.ones(300)).config == SMALL
    shipped = tzero.ship(tmp_path / "pretuned.json", [made])
    assert [entry.config for entry in shipped.entries] == [SMALL, SMALL]


@pytest.mark.parametrize("n", [0, 1])
def test_sizes_of_zero_and_one_have_entries_of_their_own(n: int) -> None:
    made = by_size()
    x = torch.ones(n)
    assert torch.equal(made(x), x * 2)
    assert torch.equal(made(torch.ones(70)), torch.ones(70) * 2)
    assert made.stats().entries == 2


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"size_hints": [64]}, "static_shapes=False beside size_hints"),
        ({"size_hints": [1], "static_shapes": False}, "sizes from 2 on"),
        ({"size_hints": 64, "static_shapes": False}, "size_hints= is 64"),
        ({"size_hints": [], "static_shapes": False}, "size_hints= is empty"),
        ({"size_hints": [64], "static_shapes": False, "configs": [SMALL]}, "one config"),
        ({"size_hints": list(range(2, 300)), "static_shapes": False}, "298 size_hints"),
    ],
)
def test_hints_that_cannot_be_used_are_an_error(options: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidKernel, match=words):
        kernel(**{"configs": [SMALL, LARGE], **options})


def test_hints_are_not_used_where_an_integer_may_be_an_unknown_size() -> None:
    def first(x: torch.Tensor, n: int, config: Config) -> torch.Tensor:
        return double(x[:n], config)

    made = tzero.kernel(configs=[SMALL, LARGE], static_shapes=False, size_hints=[64])(first)
    with pytest.warns(UserWarning, match="argument 'n' is 500, which is the size of no tensor"):
        assert torch.equal(made(X, 500), X[:500] * 2)
    assert made.bind(X, 500).choice.how == "tuned"  # type: ignore[union-attr]


def test_an_event_says_that_only_sizes_of_arguments_are_compared() -> None:
    def even(x: torch.Tensor, config: Config) -> torch.Tensor:
        if x.numel() % 2:
            raise ValueError("an even size is wanted")
        return double(x, config)

    made = tzero.kernel(configs=[SMALL, LARGE], static_shapes=False, size_hints=[64, 256])(even)
    said, watching = observed()
    with watching:
        assert torch.equal(made(X), X * 2)
    reasons = [each for each in said if "arguments alone" in each]
    assert len(reasons) == 1 and "ValueError: an even size is wanted" in reasons[0]
    assert "tuned for (256,), the nearest of 2 tuned shapes" in str(made.explain(X))


def test_with_hints_a_host_function_that_keeps_a_tensor_is_an_error() -> None:
    kept: dict[int, torch.Tensor] = {}

    def with_workspace(x: torch.Tensor, config: Config) -> torch.Tensor:
        room = kept.setdefault(x.numel(), torch.empty_like(x))
        return double(x, config) if room is not None else room

    made = tzero.kernel(configs=[SMALL, LARGE], static_shapes=False, size_hints=[64])(
        with_workspace
    )
    with pytest.raises(InvalidArgument, match=r"fake tensors to find the sizes of its results"):
        made(X)


def test_usual_tuning_gives_no_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        kernel()(X)
        by_size()(X)


def test_autotune_of_a_kernel_with_size_hints_tunes_each_of_them() -> None:
    made = by_size()
    found = made.autotune(torch.ones(70))
    assert set(found.outcomes) == {SMALL, LARGE}
    assert len(made.tuning.searches) == 2
    bound = made.bind(torch.ones(70))
    assert bound.by_size is not None
    x = torch.arange(100_000.0)
    torch.testing.assert_close(made(x), x * 2)


def test_autotune_returns_the_search_of_the_nearest_hint(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def outcome(trial: Trial, config: Config, **options: Any) -> Outcome:
        seconds = trial.spare()[0].numel() * (1e-5 if config == SMALL else 2e-5)
        return Outcome(seconds, seconds, seconds, 10)

    monkeypatch.setattr(Trial, "outcome", outcome)
    made = by_size()
    assert made.autotune(torch.ones(60_000)).outcomes[SMALL].median == 65536 * 1e-5
    assert made.autotune(torch.ones(70)).outcomes[SMALL].median == 64 * 1e-5


def test_a_hint_at_which_nothing_works_is_left_out_with_a_warning() -> None:
    def small(x: torch.Tensor, config: Config) -> torch.Tensor:
        if x.numel() > 1000:
            raise ValueError("too large")
        return double(x, config)

    made = tzero.kernel(configs=[SMALL, LARGE], static_shapes=False, size_hints=[64, 65536])(small)
    with pytest.warns(UserWarning, match="size hint 65536 is not used: no config works there"):
        assert torch.equal(made(X), X * 2)
    with pytest.raises(TuningFailed):
        tzero.kernel(configs=[SMALL, LARGE], static_shapes=False, size_hints=[65536])(small)(X)


def test_a_lookup_table_may_name_arguments_without_sizes() -> None:
    words = by_size().arguments(X)
    made = by_size(lookup={words: LARGE})
    made(X)
    assert made.explain(X).config == LARGE
    assert not made.tuning.searches


def test_a_host_function_may_set_the_number_of_threads() -> None:
    def setting(x: torch.Tensor, config: Config) -> torch.Tensor:
        torch.set_num_threads(1)
        return double(x, config)

    threads = torch.get_num_threads()
    try:
        made = tzero.kernel(configs=[SMALL, LARGE], static_shapes=False, size_hints=[64])(setting)
        assert torch.equal(made(X), X * 2)
    finally:
        torch.set_num_threads(threads)
