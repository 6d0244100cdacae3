"""One search, with a bench and a clock that the tests control: what is tried, in which order."""

from __future__ import annotations

import copy
import dataclasses
import io
import math
import pickle
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from tzero.config import Config
from tzero.tune import tuner
from tzero.tune.progress import Bar
from tzero.tune.records import Outcome
from tzero.tune.rounds import MOST, WITHIN
from tzero.tune.search import Exhaustive, First, Strategy
from tzero.tune.space import Space
from tzero.tune.trial import ReferenceFailed
from tzero.tune.tuner import Search, Step, search

CONFIGS = [Config(B=size) for size in (8, 16, 32, 64)]
FAST = {8: 4e-5, 16: 3e-5, 32: 1e-5, 64: 2e-5}


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Table:
    """A bench that knows how long each config takes."""

    def __init__(
        self, seconds: dict[int, Any], clock: Clock | None = None, each: float = 1.0
    ) -> None:
        self.seconds, self.clock, self.each = seconds, clock, each
        self.tried: list[int] = []
        self.references: list[int] = []
        self.bests: list[float | None] = []

    def set_reference(self, config: Config) -> None:
        self.references.append(config.B)

    def spare(self) -> tuple[()]:
        return ()

    def outcome(self, config: Config, *, budget: float, best: float | None) -> Outcome:
        self.tried.append(config.B)
        self.bests.append(best)
        if self.clock is not None:
            self.clock.now += self.each
        found = self.seconds[config.B]
        if isinstance(found, BaseException):
            raise found
        return Outcome(problem=found) if isinstance(found, str) else Outcome(found, 0.0, found)


def done(value: Any = None, error: BaseException | None = None) -> Future[Any]:
    future: Future[Any] = Future()
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(value)
    return future


def compiled(configs: Sequence[Config]) -> dict[Config, list[Future[Any]]]:
    return {config: [done()] for config in configs}


def searched(bench: Table, strategy: Strategy | None = None, **options: Any) -> Search:
    prepare: Callable[..., Any] = options.pop("prepare", compiled)
    return search(strategy or Exhaustive(Space.of(CONFIGS)), prepare, bench, **options)


def test_the_fastest_of_all_is_found_and_the_first_is_the_reference() -> None:
    bench = Table(FAST)
    found = searched(bench)
    assert found.best == Config(B=32)
    assert found.ended == "searched"
    assert bench.tried[0] == 8
    assert sorted(bench.tried[:4]) == [8, 16, 32, 64]
    assert bench.references == [8]
    seen = [FAST[size] for size in bench.tried[:3]]
    assert bench.bests[:4] == [None, *(min(seen[:k]) for k in (1, 2, 3))]


def test_candidates_are_timed_in_random_order() -> None:
    configs = [Config(B=size) for size in range(1, 33)]
    bench = Table({config.B: 1 / config.B for config in configs})
    searched(bench, Exhaustive(Space.of(configs)))
    tried = bench.tried[:32]
    best = [max(tried[: k + 1]) for k in range(32)]
    assert sorted(tried) == list(range(1, 33))
    assert len(set(best)) < 10  # how many were the fastest so far; in list order all would be


def test_a_candidate_that_fails_does_not_end_the_search() -> None:
    found = searched(Table({**FAST, 32: "its results are wrong"}))
    assert found.best == Config(B=64)
    assert found.outcomes[Config(B=32)].problem == "its results are wrong"


def test_if_the_first_fails_the_next_that_works_is_the_reference() -> None:
    bench = Table({**FAST, 8: "no", 16: "no"})
    assert searched(bench).best == Config(B=32)
    assert bench.references == [8, 16, 32]


def test_a_candidate_that_does_not_compile_is_not_tried() -> None:
    def prepare(configs: Sequence[Config]) -> dict[Config, list[Future[Any]]]:
        bad = done(error=ValueError("no such register\nmore lines"))
        return {config: [bad if config.B == 32 else done()] for config in configs}

    bench = Table(FAST)
    found = searched(bench, prepare=prepare)
    assert 32 not in bench.tried
    assert found.outcomes[Config(B=32)].problem == "ValueError: no such register … more lines"


def test_where_none_works_there_is_no_best() -> None:
    found = searched(Table(dict.fromkeys(FAST, "no")))
    assert found.best is None
    assert len(found.outcomes) == 4


def test_a_known_config_is_not_tried_again_and_is_the_reference() -> None:
    known = {Config(B=8): Outcome(4e-5), Config(B=32): Outcome(1e-5)}
    strategy = Exhaustive(Space.of(CONFIGS))
    for config, outcome in known.items():
        strategy.tell(config, outcome.median)
    bench = Table({**FAST, 64: 2.1e-5})
    found = searched(bench, strategy, known=known)
    assert set(bench.tried) == {16, 64}  # neither is close to the known ones
    assert bench.references == [8]
    assert found.best == Config(B=32)
    assert {step.config.B for step in found.steps} == {16, 64}


def test_the_time_is_up_after_the_budget_but_one_is_always_tried() -> None:
    clock = Clock()
    found = searched(Table(FAST, clock, each=2.0), budget=3.0, clock=clock)
    assert found.ended == "budget"
    assert found.steps[0].config == Config(B=8)
    assert len(found.steps) == 2
    clock = Clock()
    found = searched(Table(FAST, clock, each=2.0), budget=1e-9, clock=clock)
    assert [step.config.B for step in found.steps] == [8]
    assert found.best == Config(B=8)


def test_compiles_that_do_not_end_are_not_waited_for_beyond_the_budget() -> None:
    never: Future[Any] = Future()

    def prepare(configs: Sequence[Config]) -> dict[Config, list[Future[Any]]]:
        return {config: [never if config.B == 64 else done()] for config in configs}

    found = searched(Table(FAST), prepare=prepare, budget=0.2, clock=Clock())
    assert found.ended == "budget"
    assert found.best == Config(B=32)
    assert Config(B=64) not in found.outcomes


def test_the_budget_counts_compiles_that_end_before_prepare_returns() -> None:
    clock = Clock()

    def prepare(configs: Sequence[Config]) -> dict[Config, list[Future[Any]]]:
        clock.now += 10.0 * len(configs)
        return compiled(configs)

    bench = Table(FAST, clock, each=0.01)
    found = searched(bench, prepare=prepare, budget=26.0, together=True, clock=clock)
    assert sorted(step.config.B for step in found.steps) == [8, 16]
    assert found.left_out == (Config(B=32), Config(B=64))
    assert found.ended == "budget"
    assert clock.now <= 1.2 * 26.0 + 10.0


@pytest.mark.parametrize("together", [True, False])
def test_compiles_that_take_too_long_are_stopped_and_left_out(
    together: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuner, "EACH", 0.01)
    late: Future[Any] = Future()
    stopped: list[Future[Any]] = []

    def prepare(configs: Sequence[Config]) -> dict[Config, list[Future[Any]]]:
        return {config: [late if config.B == 32 else done()] for config in configs}

    def stop(futures: Sequence[Future[Any]]) -> None:
        stopped.extend(futures)

    bench = Table(FAST)
    found = searched(bench, prepare=prepare, budget=0.5, together=together, stop=stop)
    assert set(stopped) == {late}
    assert found.left_out == (Config(B=32),)
    assert found.best == Config(B=64)
    assert str(found).splitlines()[0].count("(1 left out)") == 1
    assert str(found).splitlines()[-1].split() == ["left", "out", "Config(B=32)"]
    assert pickle.loads(pickle.dumps(found)) == found


@pytest.mark.parametrize("together", [True, False])
def test_the_budget_does_not_end_the_search_before_a_config_works(together: bool) -> None:
    clock = Clock()

    def prepare(configs: Sequence[Config]) -> dict[Config, list[Future[Any]]]:
        clock.now += 10.0 * len(configs)
        return compiled(configs)

    bench = Table({**FAST, 8: "no", 16: "no"}, clock)
    found = searched(bench, prepare=prepare, budget=5.0, together=together, clock=clock)
    assert bench.tried == [8, 16, 32]
    assert found.best == Config(B=32)
    assert found.left_out == (Config(B=64),)


@pytest.mark.parametrize("together", [True, False])
def test_a_first_config_that_is_not_compiled_in_time_does_not_hold_up_the_others(
    together: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuner, "EACH", 0.01)
    never: Future[Any] = Future()

    def prepare(configs: Sequence[Config]) -> dict[Config, list[Future[Any]]]:
        return {config: [never if config.B == 8 else done()] for config in configs}

    bench = Table(FAST)
    found = searched(bench, prepare=prepare, budget=0.5, together=together)
    assert bench.references == [16]
    assert found.best == Config(B=32)
    assert found.left_out == (Config(B=8),)


def test_time_is_kept_for_timing_the_fastest_again() -> None:
    clock = Clock()
    configs = [Config(B=size) for size in range(1, 101)]
    bench = Table({config.B: 1e-5 for config in configs}, clock, each=1.0)
    found = searched(bench, Exhaustive(Space.of(configs)), budget=50.0, clock=clock)
    assert len(found.steps) == 40
    assert len(bench.tried) > len(found.steps)
    assert clock.now <= 50.0


def test_candidates_are_timed_as_they_are_compiled_but_the_first_is_waited_for() -> None:
    late: Future[Any] = Future()

    class Finishing(Table):
        def outcome(self, config: Config, *, budget: float, best: float | None) -> Outcome:
            if len(self.tried) == 2:
                late.set_result(None)
            return super().outcome(config, budget=budget, best=best)

    def prepare(configs: Sequence[Config]) -> dict[Config, list[Future[Any]]]:
        return {config: [late if config.B == 16 else done()] for config in configs}

    bench = Finishing(FAST)
    searched(bench, prepare=prepare)
    assert (bench.tried[0], set(bench.tried[1:3]), bench.tried[3]) == (8, {32, 64}, 16)


def test_ctrl_c_keeps_the_best_so_far() -> None:
    class Stopped(Table):
        def outcome(self, config: Config, *, budget: float, best: float | None) -> Outcome:
            if len(self.tried) == 2:
                raise KeyboardInterrupt
            return super().outcome(config, budget=budget, best=best)

    bench = Stopped(FAST)
    found = searched(bench)
    assert found.ended == "interrupted"
    assert found.best == Config(B=min(bench.tried, key=FAST.__getitem__))


def test_ctrl_c_before_anything_is_known_is_raised() -> None:
    with pytest.raises(KeyboardInterrupt):
        searched(Table({**FAST, 8: KeyboardInterrupt()}))


def test_close_candidates_are_timed_again_and_the_median_decides() -> None:
    class Moody(Table):
        def outcome(self, config: Config, *, budget: float, best: float | None) -> Outcome:
            first = config.B not in self.tried
            super().outcome(config, budget=budget, best=best)
            # 64 is fast only the first time.
            seconds = {32: 1.0e-5, 64: 0.98e-5 if first else 1.2e-5}.get(config.B, 1e-3)
            return Outcome(seconds, 0.0, seconds)

    bench = Moody(FAST)
    found = searched(bench, clock=Clock())  # rounds end by the time that they take
    assert found.best == Config(B=32)
    assert found.outcomes[Config(B=64)].median == 1.2e-5
    assert bench.tried[4:] == [64, 32, *[32, 64] * 2]  # after that 64 is not close any more


def test_known_configs_are_timed_again_only_as_rivals_of_new_ones() -> None:
    configs = [Config(B=size) for size in (8, 16, 32, 64)]
    known = {c: Outcome(t) for c, t in zip(configs[:3], (1e-5, 1.3e-5, 1.05e-5), strict=True)}
    strategy = Exhaustive(Space.of(configs))
    for config, outcome in known.items():
        strategy.tell(config, outcome.median)
    bench = Table({8: 1e-5, 16: 1.3e-5, 32: 1.05e-5, 64: 1.02e-5})
    found = searched(bench, strategy, known=known)
    assert set(bench.tried) == {8, 32, 64}  # 16 is not close
    assert found.best == Config(B=8)


def test_rounds_include_a_candidate_that_was_slow_once() -> None:
    class Phases(Table):
        def outcome(self, config: Config, *, budget: float, best: float | None) -> Outcome:
            slow = 1.4 if config.B == 32 and 32 not in self.tried else 1.0
            seconds = slow * super().outcome(config, budget=budget, best=best).median
            return Outcome(seconds, 0.0, seconds)

    found = searched(Phases({**FAST, 64: 1.1e-5}))
    assert found.best == Config(B=32)
    assert found.outcomes[Config(B=32)].median == 1e-5


def test_a_candidate_that_is_wrong_when_timed_again_is_out() -> None:
    class Flaky(Table):
        def outcome(self, config: Config, *, budget: float, best: float | None) -> Outcome:
            again = config.B in self.tried
            outcome = super().outcome(config, budget=budget, best=best)
            return Outcome(problem="wrong now") if again and config.B == 32 else outcome

    found = searched(Flaky({**FAST, 64: 1.01e-5}))
    assert found.best == Config(B=64)
    assert found.outcomes[Config(B=32)].problem == "wrong now"


def test_candidates_that_cannot_be_compared_any_more_have_a_problem() -> None:
    class Lost(Table):
        def __init__(self, after: int) -> None:
            super().__init__({**FAST, 64: 1.01e-5})
            self.after = after

        def outcome(self, config: Config, *, budget: float, best: float | None) -> Outcome:
            if len(self.tried) >= self.after:
                raise ReferenceFailed(Config(B=8), "it crashed")
            return super().outcome(config, budget=budget, best=best)

    bench = Lost(after=3)
    found = searched(bench)
    [lost] = [c.B for c, o in found.outcomes.items() if not o.usable]
    assert lost not in bench.tried and "does not run" in found.outcomes[Config(B=lost)].problem
    found = searched(Lost(after=5))  # in the first round
    assert all(outcome.usable for outcome in found.outcomes.values())
    assert found.best == Config(B=32)


def test_rounds_end_when_they_take_half_of_the_search() -> None:
    clock = Clock()
    bench = Table({8: 1e-5, 16: 1e-5, 32: 1e-5, 64: 1e-5}, clock, each=1.0)
    searched(bench, clock=clock)
    assert len(bench.tried) == 4 + 4  # the first round takes as long as all before it


# -- noise ----------------------------------------------------------------------------------------


class Noisy(Table):
    """A bench whose timings are disturbed, as long as `noisy`."""

    noisy = True

    def outcome(self, config: Config, *, budget: float, best: float | None) -> Outcome:
        found = super().outcome(config, budget=budget, best=best)
        return dataclasses.replace(found, low=found.median, disturbed=self.noisy)


def test_a_disturbed_search_is_provisional_and_says_so() -> None:
    found = searched(Noisy(FAST), clock=Clock())
    assert found.provisional
    assert (
        str(found)
        .splitlines()[0]
        .endswith("provisional; the fastest is 4.00 times as fast as the first")
    )
    assert found.outcomes[Config(B=32)].retries == tuner.RETRIES
    assert not searched(Table(FAST), clock=Clock()).provisional


def test_a_disturbed_search_that_has_no_time_for_rounds_is_provisional() -> None:
    clock = Clock()
    found = searched(Noisy(FAST, clock, each=2.0), budget=1.0, clock=clock)
    assert len(found.steps) == 1
    assert found.provisional


def test_rounds_take_longer_where_the_machine_is_disturbed() -> None:
    class Unsteady(Table):
        """Every second timing of 32 takes longer."""

        def outcome(self, config: Config, *, budget: float, best: float | None) -> Outcome:
            found = super().outcome(config, budget=budget, best=best)
            slow = 1.3 if config.B == 32 and self.tried.count(32) % 2 else 1.0
            return Outcome(found.median * slow, samples=6)

    times = {**FAST, 64: 1.1e-5}
    quiet, noisy = Table({**times, 64: 1.02e-5}), Unsteady(times)
    searched(quiet, clock=Clock())
    found = searched(noisy, clock=Clock())
    assert quiet.tried.count(32) == 1 + len(WITHIN)
    assert noisy.tried.count(32) == 1 + MOST
    assert found.provisional


def again(outcomes: Mapping[Config, Outcome], bench: Table) -> Search:
    """A search in a later process."""
    strategy = Exhaustive(Space.of(CONFIGS))
    for config, outcome in outcomes.items():
        strategy.tell(config, outcome.median)
    return searched(bench, strategy, known=outcomes, first=CONFIGS[0], clock=Clock())


def test_a_later_process_times_the_close_ones_of_a_provisional_search_again() -> None:
    times = {**FAST, 16: 9e-5, 64: 1.05e-5}
    first = searched(Noisy(times), first=CONFIGS[0], clock=Clock())
    bench = Table({**times, 32: 0.9e-5})
    found = again(first.outcomes, bench)
    assert set(bench.tried) == {8, 32, 64}  # the default config, too
    assert found.best == Config(B=32)
    assert found.steps == ()
    assert not found.provisional
    bench = Table(FAST)
    assert again(found.outcomes, bench).best == Config(B=32)
    assert bench.tried == []


def test_a_provisional_search_is_repeated_only_a_few_times() -> None:
    outcomes = searched(Noisy(FAST), first=CONFIGS[0], clock=Clock()).outcomes
    for _ in range(tuner.RETRIES):
        assert any(each.retries for each in outcomes.values())
        bench = Noisy(FAST)
        outcomes = again(outcomes, bench).outcomes
        assert bench.tried
    bench = Noisy(FAST)
    assert not again(outcomes, bench).provisional
    assert bench.tried == []


def test_compiles_of_what_is_timed_again_are_not_waited_for_beyond_the_budget() -> None:
    outcomes = searched(Noisy({**FAST, 64: 1.05e-5}), first=CONFIGS[0], clock=Clock()).outcomes
    never: Future[Any] = Future()
    strategy = Exhaustive(Space.of(CONFIGS))
    for config, outcome in outcomes.items():
        strategy.tell(config, outcome.median)
    bench = Table(FAST)
    found = searched(
        bench,
        strategy,
        known=outcomes,
        budget=0.2,
        prepare=lambda configs: {c: [never if c.B == 32 else done()] for c in configs},
    )
    assert 32 not in bench.tried
    assert found.best is not None


def test_a_passing_failure_in_a_round_takes_nobody_out() -> None:
    class Killed(Table):
        def outcome(self, config: Config, *, budget: float, best: float | None) -> Outcome:
            known = config.B in self.tried
            found = super().outcome(config, budget=budget, best=best)
            return Outcome(problem="killed", passing=True) if known else found

    found = searched(Killed({**FAST, 64: 1.05e-5}))
    assert found.best == Config(B=32)
    assert all(outcome.usable for outcome in found.outcomes.values())


def test_the_default_config_is_beaten_only_by_more_than_the_spread() -> None:
    class Spread(Table):
        """The timings of each config vary by ten percent, in turn."""

        def outcome(self, config: Config, *, budget: float, best: float | None) -> Outcome:
            found = super().outcome(config, budget=budget, best=best)
            by = (0.95, 1.0, 1.05)[(self.tried.count(config.B) + config.B // 8) % 3]
            return Outcome(found.median * by, samples=6)

    near = {8: 1.0e-5, 16: 0.97e-5, 32: 0.98e-5, 64: 0.96e-5}
    assert searched(Spread(near), first=Config(B=8), clock=Clock()).best == Config(B=8)
    assert searched(Spread(near), clock=Clock()).best != Config(B=8)
    far = {**near, 32: 0.7e-5}
    assert searched(Spread(far), first=Config(B=8), clock=Clock()).best == Config(B=32)


# -- what is shown --------------------------------------------------------------------------------


def test_a_search_prints_as_a_table_with_reasons() -> None:
    lines = str(searched(Table({**FAST, 8: "no"}))).splitlines()
    assert lines[0].startswith("4 configs in ")
    assert lines[1].split() == ["10", "µs", "Config(B=32)"]
    assert lines[-1].strip() == "failed  Config(B=8): no"


def test_a_search_can_be_pickled_and_copied() -> None:
    found = searched(Table(FAST))
    assert pickle.loads(pickle.dumps(found)) == found
    assert copy.deepcopy(found) == found


def test_effort_none_tries_one() -> None:
    assert searched(Table(FAST), First(Space.of(CONFIGS))).best == Config(B=8)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_shows_how_many_are_done_the_best_and_the_time_left() -> None:
    stream = Terminal()
    with Bar("matmul", 24, stream) as bar:
        bar.show(7, Config(B=32), 1.25e-5, left=12.4)
    text = stream.getvalue()
    assert "tuning matmul" in text
    assert "7/24" in text
    assert "best 12.5 µs Config(B=32), 12 s left" in text


def test_names_on_a_terminal_are_one_line_without_escapes_and_markup() -> None:
    stream = Terminal()
    with Bar("[red]mat\nmul\x1b[5m[/]", 24, stream) as bar:
        bar.show(7, Config(B="\x1b]0;title\x07"), 1.25e-5, left=None)
    text = stream.getvalue()
    assert r"tuning [red]mat\nmul\x1b[5m[/]" in text
    assert all(each not in text for each in ("\x1b[5m", "\x1b]0;", "\x07"))


def test_nothing_is_shown_without_a_terminal() -> None:
    stream = io.StringIO()
    with Bar("matmul", 24, stream) as bar:
        bar.show(7, Config(B=32), 1.25e-5, left=math.inf)
    assert stream.getvalue() == ""


class Writer:
    """Some programs replace stderr by such an object."""

    def write(self, text: str) -> None:
        raise AssertionError(text)


def test_an_incomplete_or_closed_stream_is_not_a_terminal() -> None:
    closed = Terminal()
    closed.close()
    for stream in (Writer(), closed):
        with Bar("matmul", 24, stream) as bar:  # type: ignore[arg-type]
            bar.show(7, Config(B=32), 1.25e-5, left=None)


def test_a_search_is_drawn_with_its_failures_and_what_was_chosen(tmp_path: Path) -> None:
    file = tmp_path / "search.svg"
    searched(Table({**FAST, 8: "a < b & c"})).plot(file, "x < y")
    page = ElementTree.fromstring(file.read_text(encoding="utf-8"))
    kinds = [each.get("class") for each in page.iter() if each.get("class")]
    assert kinds.count("candidate") == 2
    assert kinds.count("chosen") == 1
    assert kinds.count("failed") == 1
    titles = [each.text for each in page.iter() if each.tag.endswith("title")]
    assert "Config(B=8): a < b & c" in titles
    assert "10 µs Config(B=32)" in titles


def test_candidates_are_drawn_at_the_times_that_decided(tmp_path: Path) -> None:
    slow, quick = Config(B=1), Config(B=2)
    steps = (Step(0.1, slow, Outcome(1e-5)), Step(0.2, quick, Outcome(3e-5)))
    decided = {slow: Outcome(4e-5), quick: Outcome(2e-5)}
    found = Search(decided, steps, 0.5, "searched")
    found.plot(tmp_path / "search.svg")
    page = ElementTree.fromstring((tmp_path / "search.svg").read_text(encoding="utf-8"))
    dots = [each for each in page.iter() if each.get("cy")]
    heights = {each.get("class"): float(each.get("cy", "0")) for each in dots}
    assert heights["chosen"] > heights["candidate"], "the fastest is the lowest"
    first = [each.get("d", "") for each in page.iter() if each.get("class") == "first"]
    assert len(first) == 2 and all("V" in each for each in first)


def test_intervals_are_drawn_where_they_are_known(tmp_path: Path) -> None:
    one, other = Config(B=1), Config(B=2)
    decided = {one: Outcome(2e-5, 1e-5, 3e-5), other: Outcome(4e-5)}
    steps = tuple(Step(0.1, config, each) for config, each in decided.items())
    Search(decided, steps, 0.5, "searched").plot(tmp_path / "search.svg")
    text = (tmp_path / "search.svg").read_text()
    assert text.count('class="spread"') == 1 and "prefers-color-scheme: dark" in text


def test_an_empty_search_is_drawn_too(tmp_path: Path) -> None:
    Search({}, (), 0.0, "searched").plot(tmp_path / "search.svg")
    ElementTree.fromstring((tmp_path / "search.svg").read_text(encoding="utf-8"))
