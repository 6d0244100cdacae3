"""Rounds in which the fastest are timed again: noise of the machine does not decide."""

from __future__ import annotations

import random

import pytest

from tzero.config import Config
from tzero.tune.outcome import Outcome, best_of
from tzero.tune.rounds import MOST, SEVERAL, WITHIN, Rounds, finalists

A, B, C, D = (Config(B=size) for size in (1, 2, 3, 4))


def outcomes(*seconds: float, disturbed: bool = False) -> dict[Config, Outcome]:
    return {
        config: Outcome(each, 0.9 * each, 1.1 * each, 10, disturbed=disturbed)
        for config, each in zip((A, B, C, D), seconds, strict=False)
    }


def played(*rounds: tuple[float, ...], first: Config | None = None) -> Rounds:
    """Rounds in which A, B, ... took these times."""
    configs = list(outcomes(*rounds[0]))
    made = Rounds(configs, outcomes(*rounds[0]), first)
    for times in rounds:
        found = outcomes(*times)
        made.add({config: found[config] for config in made.configs})
    return made


# -- who takes part -------------------------------------------------------------------------------


def test_the_default_config_takes_part_however_slow_it_was() -> None:
    found = outcomes(50.0, 1.0, 1.5)
    assert finalists(found, set(found), first=None) == [B, C]
    assert finalists(found, set(found), first=A) == [B, C, A]


def test_a_disturbed_timing_excludes_only_what_is_far_slower() -> None:
    found = {**outcomes(1.0), B: Outcome(3.0, disturbed=True), C: Outcome(3.0)}
    assert finalists(found, set(found), first=None) == [A, B]


def test_without_rivals_there_are_no_rounds() -> None:
    found = outcomes(1.0, 9.0)
    assert finalists(found, set(found), first=None) == []
    assert finalists(outcomes(1.0, 1.0), set(), first=A) == []


def test_one_slow_round_excludes_nobody() -> None:
    rounds = played((1.0, 1.0, 1.0), (1.0, 1.9, 1.0), (1.0, 1.0, 1.0))
    assert set(rounds.configs) == {A, B, C}


def test_what_is_slower_in_all_rounds_drops_out() -> None:
    assert played((1.0, 1.3), (1.0, 1.3)).configs == [A]
    assert played((1.0, 1.3)).configs == [A, B]


def test_the_default_config_drops_out_only_after_several_rounds() -> None:
    rows = [(1.0, 1.9)] * SEVERAL
    assert played(*rows[:-1], first=B).configs == [A, B]
    assert played(*rows, first=B).configs == [A]


# -- what they show -------------------------------------------------------------------------------


def test_a_round_that_is_slow_as_a_whole_changes_nothing() -> None:
    rounds = played((1.0, 1.04), (3.0, 3.12), (1.0, 1.04), (1.0, 1.04))
    found = rounds.estimates()
    assert found[A][:3] == pytest.approx((1.0, 1.0, 1.0))
    assert found[B][:3] == pytest.approx((1.04, 1.04, 1.04))


def test_rounds_that_disagree_are_disturbed() -> None:
    assert not played(*[(1.0, 1.04)] * 4).disturbed()
    assert played((1.0, 1.04), (1.3, 1.35), (1.0, 1.04)).disturbed()


def test_a_spread_of_the_fastest_or_of_the_default_is_a_disturbance() -> None:
    rows = [(1.0, 1.1, 1.09), (1.0, 1.1, 1.09), (1.0, 1.1, 1.3), (1.0, 1.1, 1.09)]
    assert not played(*rows).disturbed()  # C is neither
    assert played(*rows, first=C).disturbed()


def test_disturbed_timings_disturb_the_rounds() -> None:
    rounds = Rounds([A, B], outcomes(1.0, 1.0), None)
    for _ in WITHIN:
        rounds.add(outcomes(1.0, 1.0, disturbed=True))
    assert rounds.disturbed()


def test_equal_and_clearly_different_candidates_are_decided() -> None:
    assert played(*[(1.0, 1.02)] * 4).decided()
    assert played(*[(1.0, 1.09)] * 4).decided()
    assert not played((1.0, 1.05), (1.0, 0.98), (1.0, 1.09), (1.0, 1.0)).decided()


def test_who_took_no_part_does_not_win_because_the_machine_got_slower() -> None:
    before = outcomes(1.0, 1.1, 2.5)
    rounds = Rounds([A, B], before, None)
    for _ in WITHIN:
        rounds.add(outcomes(3.0, 3.6))
    made = rounds.concluded(retries=0)
    assert best_of(made) == A
    assert made[C].median == pytest.approx(7.5)


def test_if_all_who_were_left_fail_the_others_count() -> None:
    rounds = played((1.0, 1.0, 1.3), (1.0, 1.0, 1.3))
    assert rounds.configs == [A, B]
    rounds.drop(A)
    rounds.drop(B)
    assert rounds.concluded(retries=0)[C].median == pytest.approx(1.3)


def test_calls_that_take_no_time_are_compared() -> None:
    rounds = played((0.0, 0.0), (0.0, 1e-9), (0.0, 0.0))
    assert best_of(rounds.concluded(retries=0)) == A


def test_disturbed_rounds_are_to_be_repeated() -> None:
    rounds = played((1.0, 1.04), (1.3, 1.35), (1.0, 1.04))
    assert [each.retries for each in rounds.concluded(retries=2).values()] == [2, 2]
    rounds = played(*[(1.0, 1.04)] * 4)
    assert [each.retries for each in rounds.concluded(retries=2).values()] == [0, 0]


# -- the choice -----------------------------------------------------------------------------------


def test_the_default_gives_way_only_to_what_is_faster_by_more_than_the_spread() -> None:
    assert best_of(outcomes(1.0, 0.95), first=A) == A
    assert best_of(outcomes(1.0, 0.8), first=A) == B
    assert best_of(outcomes(1.0, 0.95)) == B
    assert best_of({A: Outcome(problem="no"), B: Outcome(5.0)}, first=A) == B
    assert best_of({A: Outcome(problem="no")}, first=A) is None


def test_where_the_spread_is_unknown_a_wide_one_is_assumed() -> None:
    assert best_of({A: Outcome(1.0), B: Outcome(0.7)}, first=A) == A
    assert best_of({A: Outcome(1.0), B: Outcome(0.6)}, first=A) == B


def noisy(times: dict[Config, float], seed: int, first: Config) -> tuple[Config | None, bool]:
    """The choice on a machine that is slower for some rounds, and where other programs slow down
    every fourth timing by up to 70 percent."""
    chance = random.Random(seed)
    slow = 1.0

    def timed(config: Config) -> Outcome:
        taken = times[config] * slow * chance.uniform(0.98, 1.02)
        hit = chance.random() < 0.25
        return Outcome(taken * (chance.uniform(1.0, 1.7) if hit else 1.0), samples=6)

    before = {config: timed(config) for config in times}
    rounds = Rounds(finalists(before, set(before), first), before, first)
    while len(rounds.configs) > 1 and rounds.count < MOST:
        slow = chance.choice([1.0, 1.0, 1.5])
        rounds.add({config: timed(config) for config in rounds.configs})
    return best_of(rounds.concluded(retries=0), first), rounds.disturbed()


def test_noise_beats_no_default_that_is_as_fast_as_the_others() -> None:
    times = dict.fromkeys((A, B, C, D), 1.0)
    beaten = [seed for seed in range(300) if noisy(times, seed, first=A)[0] != A]
    assert beaten == []


def test_noise_hides_no_config_that_is_far_faster() -> None:
    times = {A: 1.0, B: 0.5, C: 0.8, D: 0.9}
    missed = [seed for seed in range(300) if noisy(times, seed, first=A)[0] != B]
    assert missed == []


def test_noise_is_noticed() -> None:
    times = {A: 1.0, B: 0.9, C: 0.95, D: 1.0}
    assert sum(noisy(times, seed, first=A)[1] for seed in range(300)) > 290
