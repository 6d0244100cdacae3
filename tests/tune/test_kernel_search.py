"""One search of a real kernel: configs that fail, what is compared, what is remembered."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
import triton.language as tl

import tzero
from tests.tune.kernels import LARGE, SMALL, WRONG, X, double, kernel, observed, scale_kernel
from tzero import Config, Space, events, settings
from tzero.errors import InvalidArgument, TuningFailed
from tzero.tune import kernel_search
from tzero.tune.kernel_search import KernelSearch
from tzero.tune.records import Outcome
from tzero.tune.trial import Trial

pytestmark = pytest.mark.usefixtures("own_memory")


@triton.jit
def add_into_kernel(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    held = tl.load(out + at, mask=at < n)
    tl.store(out + at, held + tl.load(x + at, mask=at < n), mask=at < n)


def test_a_config_with_other_results_than_the_first_is_out_and_an_event_says_why() -> None:
    found, watching = observed()
    made = kernel([SMALL, WRONG])
    with watching:
        torch.testing.assert_close(made(X), X * 2)
    assert made.bind(X).config == SMALL
    assert any("its results are wrong: result is 3.0 at (1,)" in each for each in found)


def test_a_config_that_raises_does_not_end_the_search() -> None:
    def double_or_not(x: torch.Tensor, config: Config) -> torch.Tensor:
        if config == LARGE:
            raise RuntimeError("out of registers")
        return double(x, config)

    made = tzero.kernel(configs=[LARGE, SMALL])(double_or_not)
    torch.testing.assert_close(made(X), X * 2)
    assert made.bind(X).config == SMALL
    (found,) = made.tuning.searches.values()
    assert "out of registers" in found.outcomes[LARGE].problem


def test_a_config_that_does_not_compile_does_not_end_the_search() -> None:
    bad = Config(BLOCK=100, BY=2)  # tl.arange needs a power of two
    made = kernel([bad, SMALL])
    torch.testing.assert_close(made(X), X * 2)
    (found,) = made.tuning.searches.values()
    assert not found.outcomes[bad].usable
    assert made.bind(X).config == SMALL


def test_where_every_config_fails_the_error_has_the_reason_of_each() -> None:
    made = kernel([Config(BLOCK=100, BY=2), Config(BLOCK=200, BY=2)])
    for _ in range(2):
        with pytest.raises(
            TuningFailed, match=r"none of its configs(?s:.*)BLOCK=100(?s:.*)BLOCK=200"
        ):
            made(X)


def test_a_name_that_the_triton_kernel_does_not_take_is_an_error() -> None:
    made = kernel([SMALL, Config(BLOCK=256, BY=2, num_wraps=4)])
    with pytest.raises(InvalidArgument, match="'num_wraps', which the Triton kernel"):
        made(X)


def test_a_config_that_lacks_a_name_is_an_error_that_says_which() -> None:
    made = kernel([SMALL, Config(BLOK=64, BY=2)])
    with pytest.raises(InvalidArgument, match=r"Config\(BLOK=64, BY=2\) has no 'BLOCK', which"):
        made(X)


def test_a_choice_says_how_many_failed() -> None:
    made = kernel([SMALL, WRONG])
    made(X)
    assert "the only one that was timed" in str(made.explain(X))
    assert "; 1 failed" in str(made.explain(X))


def test_the_last_line_of_a_compiler_error_is_in_the_problem() -> None:
    made = kernel([SMALL, Config(BLOCK=1000, BY=2)])
    found = made.autotune(X)
    assert "power of 2" in found.outcomes[Config(BLOCK=1000, BY=2)].problem


def test_ctrl_c_at_a_first_call_keeps_the_best_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(x: torch.Tensor, config: Config) -> torch.Tensor:
        if config == LARGE and not torch.is_grad_enabled():
            raise KeyboardInterrupt
        return double(x, config)

    made = tzero.kernel(configs=[SMALL, LARGE])(interrupted)
    with torch.no_grad(), settings.override(compile_workers=1):
        monkeypatch.setattr(KernelSearch, "_prepare", lambda *given: {c: [] for c in given[-1]})
        torch.testing.assert_close(made(X), X * 2)
    assert made.bind(X).config == SMALL
    (found,) = made.tuning.searches.values()
    assert found.ended == "interrupted"


@pytest.mark.parametrize(
    "later", [[SMALL, WRONG], [SMALL], [SMALL, LARGE], [Config(BLOCK=32, BY=2), WRONG]]
)
def test_verdicts_by_another_first_config_are_dropped(later: list[Config]) -> None:
    kernel([WRONG, SMALL, LARGE])(X)  # all but the first are out
    made = kernel(later)
    assert torch.equal(made(X), X * 2)
    again = kernel([*later, WRONG])
    assert torch.equal(again(X), X * 2)


def test_a_config_that_raises_is_remembered_with_another_first_config() -> None:
    calls: list[Config] = []

    def picky(x: torch.Tensor, config: Config) -> torch.Tensor:
        calls.append(config)
        if config == LARGE:
            raise RuntimeError("out of registers")
        return double(x, config)

    tzero.kernel(configs=[WRONG, SMALL, LARGE])(picky)(X)
    calls.clear()
    made = tzero.kernel(configs=[SMALL, LARGE])(picky)
    assert torch.equal(made(X), X * 2)
    assert LARGE not in calls


def test_new_outcomes_of_known_configs_are_remembered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    times = {SMALL: 1e-5, LARGE: 5e-5}

    def outcome(trial: Trial, config: Config, **options: Any) -> Outcome:
        seconds = times[config]
        return Outcome(seconds, seconds, seconds, 10) if seconds else Outcome(problem="it is lost")

    monkeypatch.setattr(Trial, "outcome", outcome)
    kernel([LARGE, SMALL])(X)
    third = Config(BLOCK=128, BY=2)
    times |= {SMALL: 0.0, third: 1.05e-5}  # SMALL does not work any more
    kernel([LARGE, SMALL, third])(X)
    again = kernel([LARGE, SMALL, third])
    again(X)
    assert again.bind(X).config == third
    assert again.bind(X).choice.how == "cached"  # type: ignore[union-attr]


def later_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_search, "_timed_here", set())


def test_a_provisional_choice_says_so_and_is_timed_again_by_a_later_process(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    times, busy, tried = {SMALL: 5e-5, LARGE: 1e-5}, [True], []

    def outcome(trial: Trial, config: Config, **options: Any) -> Outcome:
        tried.append(config)
        seconds = times[config]
        return Outcome(seconds, seconds, seconds, 10, disturbed=bool(busy))

    monkeypatch.setattr(Trial, "outcome", outcome)
    first = kernel()
    first(X)
    choice = first.bind(X).choice
    assert choice is not None and choice.provisional
    assert "; provisional: the machine was disturbed" in str(first.explain(X))
    found, watching = observed()
    with watching:
        tzero.ship(tmp_path / "pretuned.json", [first])
    assert any("is provisional: tune it on a quiet machine" in each for each in found)
    tried.clear()
    same = kernel()
    same(X)
    assert tried == []  # this process has timed it
    assert "; provisional: the machine was disturbed" in str(same.explain(X))
    busy.clear()
    times |= {SMALL: 1e-5, LARGE: 3e-5}
    later_process(monkeypatch)
    later = kernel()
    later(X)
    choice = later.bind(X).choice
    assert choice is not None and not choice.provisional
    assert (choice.variant, choice.how) == (SMALL, "cached")
    tried.clear()
    later_process(monkeypatch)
    last = kernel()
    last(X)
    assert last.bind(X).config == SMALL
    assert tried == []


def test_with_effort_none_a_provisional_choice_is_used_as_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def outcome(trial: Trial, config: Config, **options: Any) -> Outcome:
        return Outcome(1e-5, 1e-5, 1e-5, 10, disturbed=True)

    with monkeypatch.context() as patch:
        patch.setattr(Trial, "outcome", outcome)
        kernel()(X)
    later_process(monkeypatch)
    made = kernel()
    with settings.override(tune="none"):
        made(X)
    assert made.bind(X).choice.how == "cached"  # type: ignore[union-attr]
    assert made.tuning.searches == {}


def test_the_first_config_is_kept_where_others_are_as_fast(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    times = {SMALL: 1.0e-5, LARGE: 0.99e-5}

    def outcome(trial: Trial, config: Config, **options: Any) -> Outcome:
        return Outcome(times[config], 0.9 * times[config], 1.1 * times[config], 10)

    monkeypatch.setattr(Trial, "outcome", outcome)
    made = kernel([SMALL, LARGE])
    made(X)
    assert made.bind(X).config == SMALL
    assert "no other is faster by more than the spread" in str(made.explain(X))
    again = kernel([SMALL, LARGE])
    again(X)
    assert again.bind(X).config == SMALL
    other = kernel([LARGE, SMALL])
    other(X)
    assert other.bind(X).config == LARGE


def test_a_large_space_is_not_searched_again_by_each_process() -> None:
    blocks = [2**k for k in range(4, 12)]
    space = Space(BLOCK=blocks, BY=[2], num_warps=[1, 2, 4, 8, 16], num_stages=[1, 2])

    def small(x: torch.Tensor, config: Config) -> torch.Tensor:
        return x * config.BY  # nothing to compile

    tzero.kernel(configs=space)(small)(X)
    made = tzero.kernel(configs=space)(small)
    made(X)
    assert made.bind(X).choice.how == "cached"  # type: ignore[union-attr]


def test_without_memory_for_copies_the_first_config_is_used_with_a_warning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def exhausted(*given: Any) -> None:
        raise torch.OutOfMemoryError("no room")

    monkeypatch.setattr(kernel_search, "Trial", exhausted)
    made = kernel()
    with pytest.warns(UserWarning, match="not timed, for lack of memory"):
        torch.testing.assert_close(made(X), X * 2)
    assert made.bind(X).config == SMALL


def test_a_host_function_that_waits_for_its_launch_is_not_run_without_launching() -> None:
    def until_done(x: torch.Tensor, config: Config) -> torch.Tensor:
        out = torch.zeros_like(x)
        while float(out[-1]) != 2 * float(x[-1]):  # forever, where nothing is launched
            scale_kernel[(triton.cdiv(x.numel(), config.BLOCK),)](x, out, x.numel(), **config)
        return out

    found, watching = observed()
    with watching:
        made = tzero.kernel(configs=[SMALL, LARGE])(until_done)
        torch.testing.assert_close(made(X), X * 2)
    assert any(
        "compiled one by one" in each and "reads the values of a tensor" in each for each in found
    )


def test_tuning_does_not_change_the_random_numbers_of_the_program() -> None:
    def noisy(x: torch.Tensor, config: Config) -> torch.Tensor:
        return double(x + torch.rand(1), config)

    made = tzero.kernel(configs=[SMALL, LARGE])(noisy)
    torch.manual_seed(3)
    first = made(X)
    torch.manual_seed(3)
    assert torch.equal(first, noisy(X, SMALL))


def test_during_a_search_observers_get_no_hits_and_launches() -> None:
    said: list[events.Event] = []
    made = kernel()
    with events.observe(said.append):
        made(X)
        searched = [event.kind for event in said]
        made(X)
    assert "tune" in searched and "miss" in searched
    assert not {"hit", "launch"}.intersection(searched[: searched.index("tune")])
    assert "hit" in [event.kind for event in said[len(searched) :]]


def test_a_host_function_may_keep_a_workspace() -> None:
    kept: dict[tuple[int, int], torch.Tensor] = {}

    def with_workspace(x: torch.Tensor, config: Config) -> torch.Tensor:
        at = (x.numel(), config.BLOCK)
        if at not in kept:
            kept[at] = torch.empty_like(x)
        out = kept[at]
        scale_kernel[(triton.cdiv(x.numel(), config.BLOCK),)](x, out, x.numel(), **config)
        return out.clone()

    made = tzero.kernel(configs=[SMALL, LARGE])(with_workspace)
    for _ in range(3):
        torch.testing.assert_close(made(X), X * 2)


def test_a_kernel_that_modifies_a_tensor_with_gradients_is_tuned() -> None:
    def halved(x: torch.Tensor, config: Config) -> torch.Tensor:
        x.mul_(0.25)
        return double(x.detach(), config)

    made = tzero.kernel(configs=[SMALL, LARGE])(halved)
    x = torch.ones(100, requires_grad=True) * 4
    assert made(x).tolist() == [2.0] * 100
    assert made.bind(x).choice.how == "tuned"  # type: ignore[union-attr]


@dataclass
class Holder:
    x: torch.Tensor
    out: torch.Tensor | None = None


def test_a_tensor_that_a_host_function_stores_in_an_argument_has_memory() -> None:
    def filled(holder: Holder, config: Config) -> torch.Tensor:
        holder.out = double(holder.x, config)
        return holder.out

    given = Holder(X)
    out = tzero.kernel(configs=[SMALL, LARGE])(filled)(given)
    assert given.out is out
    assert torch.equal(out, X * 2)


def test_a_kernel_that_works_in_place_is_tuned_on_copies(tier: int) -> None:
    def accumulate(x: torch.Tensor, out: torch.Tensor, config: Config) -> torch.Tensor:
        add_into_kernel[(triton.cdiv(x.numel(), config.BLOCK),)](x, out, x.numel(), **config)
        return out

    made = tzero.kernel(configs=[Config(BLOCK=16), Config(BLOCK=256)])(accumulate)
    out = torch.ones(1000)
    assert made(X, out) is out
    torch.testing.assert_close(out, X + 1)
    made(X, out)
    torch.testing.assert_close(out, 2 * X + 1)
    assert made.bind(X, out).choice.how == "tuned"  # type: ignore[union-attr]


def test_of_a_changed_list_only_new_configs_are_timed() -> None:
    kernel([SMALL, LARGE])(X)
    third = Config(BLOCK=1024, BY=2)
    made = kernel([SMALL, LARGE, third])
    made(X)
    (found,) = made.tuning.searches.values()
    assert [step.config for step in found.steps] == [third]
    assert set(found.outcomes) == {SMALL, LARGE, third}
    shorter = kernel([LARGE, third])
    shorter(X)
    assert shorter.tuning.searches == {}


def test_a_changed_source_is_timed_again() -> None:
    kernel()(X)

    def other(x: torch.Tensor, config: Config) -> torch.Tensor:
        out = torch.empty_like(x)
        scale_kernel[(triton.cdiv(x.numel(), config.BLOCK), 1)](x, out, x.numel(), **config)
        return out

    made = tzero.kernel(configs=[SMALL, LARGE])(other)
    made(X)
    assert len(made.tuning.searches) == 1


def test_a_damaged_record_is_reported_and_timed_again(tmp_path: Path) -> None:
    kernel()(X)
    files = [each for each in (tmp_path / "tuned").rglob("*") if each.is_file()]
    (file,) = [each for each in files if b"outcomes" in each.read_bytes()]
    data = file.read_bytes()
    file.write_bytes(data[: len(data) // 2])
    found, watching = observed("cache")
    made = kernel()
    with watching:
        made(X)
    assert len(made.tuning.searches) == 1
    assert found
