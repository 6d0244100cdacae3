"""Strategies propose no config twice, the same ones for a seed, and go on after failures."""

from __future__ import annotations

import importlib
import math
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tzero.config import Config
from tzero.errors import InvalidArgument, ToolchainMissing
from tzero.tune.search import FULL, QUICK, Exhaustive, First, Random, Strategy, Tpe, strategy
from tzero.tune.space import Space

try:
    importlib.import_module("optuna")
except ModuleNotFoundError:
    HAS_OPTUNA = False
else:
    HAS_OPTUNA = True

needs_optuna = pytest.mark.skipif(
    not HAS_OPTUNA, reason="optuna is not installed: tzero-runtime[tune]"
)

Make = Callable[..., Strategy]
KINDS = [
    pytest.param(lambda space, **_: Exhaustive(space), id="exhaustive"),
    pytest.param(Random, id="random"),
    pytest.param(Tpe, id="tpe", marks=needs_optuna),
]

POWERS = [2**k for k in range(4, 9)]
WIDE = Space(
    BM=POWERS,
    BN=POWERS,
    warps=[1, 2, 4, 8],
    fast=[True, False],
    order=["row", "column"],
    fixed=[7],
    where=lambda config: config.BM * config.BN <= 16384,
)
MIXED = Space.of(
    [Config(BLOCK=64), Config(BLOCK=128, fast=True), Config(), Config(BLOCK="all", fast=1)]
    + [Config(BLOCK=size, stages=k) for size in POWERS for k in (1, 2, 3)]
)


def cost(config: Config) -> float | None:
    """Least at BM=128, BN=64, 4 warps, not fast, by column; too large tiles fail."""
    if config.BM * config.BN > 8192:
        return None
    apart = abs(math.log2(config.BM) - 7) + abs(math.log2(config.BN) - 6)
    return 1 + apart + abs(math.log2(config.warps) - 2) + config.fast + (config.order == "row")


def run(search: Strategy, batch: int, time: Callable[[Config], float | None]) -> list[Config]:
    asked: list[Config] = []
    while not search.done:
        configs = search.ask(batch)
        assert 0 < len(configs) <= batch
        asked += configs
        for config in reversed(configs):  # results come in any order
            search.tell(config, time(config))
    assert search.ask(batch) == []
    assert len(asked) == len(set(asked))
    return asked


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("space", [Space(a=range(30)), MIXED, Space(a=[1]), Space.of([Config()])])
def test_with_enough_trials_every_config_comes_once(kind: Make, space: Space) -> None:
    asked = run(kind(space, trials=100, seed=3), 7, lambda config: 1.0)
    assert set(asked) == set(space) and asked[0] == space.first


@pytest.mark.parametrize("kind", KINDS)
def test_no_strategy_proposes_configs_outside_the_constraints(kind: Make) -> None:
    asked = run(kind(WIDE, trials=60, seed=1), 8, cost)
    assert all(config in WIDE for config in asked) and asked[0] == WIDE.first
    assert len(asked) == (60 if kind in (Random, Tpe) else WIDE.count())


@pytest.mark.parametrize("kind", KINDS[1:])
def test_the_seed_decides_the_order_and_asking_for_done_does_not_change_it(kind: Make) -> None:
    def search(seed: int, peek: bool) -> list[Config]:
        made, asked = kind(WIDE, seed=seed, trials=40), []
        for _ in range(8):
            configs = made.ask(5)
            asked += configs
            for config in configs:
                assert not (peek and made.done and len(asked) < 40)
                made.tell(config, cost(config))
        return asked

    assert search(5, peek=False) == search(5, peek=True) != search(6, peek=False)


@pytest.mark.parametrize("kind", KINDS)
def test_known_configs_are_not_proposed(kind: Make) -> None:
    space = Space(a=range(20), b=["x", "y"])
    search = kind(space, trials=100)
    known = list(space)[:30]
    assert not search.done
    for config in known:
        search.tell(config, None if config.a % 3 else 0.5)
    assert set(run(search, 4, lambda config: 1.0)) == set(space) - set(known)


@pytest.mark.parametrize("kind", KINDS)
def test_a_search_in_which_everything_fails_ends(kind: Make) -> None:
    assert len(run(kind(WIDE, trials=50), 8, lambda config: None)) >= 50


@needs_optuna
@pytest.mark.parametrize("seed", range(3))
def test_tpe_finds_the_best_of_many_in_few(seed: int) -> None:
    times = [cost(config) for config in run(Tpe(WIDE, seed=seed, trials=90), 6, cost)]
    assert min(time for time in times if time is not None) <= 2


@needs_optuna
@pytest.mark.parametrize("seed", range(3))
def test_tpe_avoids_neighbours_of_failures(seed: int) -> None:
    space = Space(BM=POWERS, BN=POWERS, warps=[1, 2, 4, 8, 16], stages=range(1, 6))
    asked = run(
        Tpe(space, seed=seed, trials=90),
        6,
        lambda config: None if config.warps >= 8 else 1.0 + config.stages,
    )
    late = asked[30:]  # two of five configs fail: 24 of these, if they were random
    assert sum(config.warps >= 8 for config in late) <= 12


@needs_optuna
def test_tpe_searches_a_space_larger_than_memory() -> None:
    space = Space(
        {f"p{k}": [2**n for n in range(12)] for k in range(20)}, where=lambda config: config.p0 > 4
    )
    asked = run(Tpe(space, trials=40), 10, lambda config: float(config.p1))
    assert len(asked) == 40 and all(config in space for config in asked)


@needs_optuna
@settings(max_examples=8)
@given(st.data())
def test_tpe_asks_for_each_member_of_any_small_space_once(data: st.DataObject) -> None:
    values = st.sampled_from([0, 1, 2, 64, 2.5, True, None, "a", (1,), math.nan, math.inf])
    config = st.dictionaries(st.sampled_from("abc"), values).map(Config)
    space = Space.of(data.draw(st.lists(config, min_size=1, max_size=30)))
    asked = run(Tpe(space, trials=50), 5, lambda config: float(len(config)) or None)
    assert sorted(map(repr, asked)) == sorted(map(repr, space))


@needs_optuna
def test_tpe_prints_nothing_and_restores_the_log_level_of_optuna(capfd: Any) -> None:
    import optuna

    before = optuna.logging.get_verbosity()
    run(Tpe(WIDE, trials=20), 4, cost)
    assert optuna.logging.get_verbosity() == before
    assert capfd.readouterr() == ("", "")


def test_without_optuna_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(ToolchainMissing, match=r"optuna.*pip install 'tzero-runtime\[tune\]'"):
        Tpe(WIDE)


def test_the_error_names_an_optuna_that_is_too_old(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", SimpleNamespace(__version__="4.9.1"))  # type: ignore[arg-type]
    with pytest.raises(ToolchainMissing, match=r"optuna>=5, found 4\.9\.1"):
        Tpe(WIDE)


def test_the_error_of_a_broken_optuna_is_raised_as_it_is(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    (tmp_path / "optuna.py").write_text("import nothing_of_that_name\n")
    monkeypatch.syspath_prepend(tmp_path)
    for name in [name for name in sys.modules if name.partition(".")[0] == "optuna"]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(ModuleNotFoundError, match="nothing_of_that_name"):
        Tpe(WIDE)


def test_each_effort_has_its_strategy() -> None:
    small, large = Space(a=range(QUICK)), Space(a=range(QUICK + 1))
    assert isinstance(strategy(large, "none"), First) and strategy(large, "none").most == 1
    assert run(strategy(large, "none"), 9, lambda config: None) == [Config(a=0)]
    assert isinstance(strategy(small, "quick"), Exhaustive)
    assert isinstance(strategy(large, "quick"), Random) and strategy(large, "quick").most == QUICK
    assert isinstance(strategy(Space(a=range(FULL)), "full"), Exhaustive)
    endless = Space({f"p{k}": range(99) for k in range(9)}, where=lambda config: True)
    assert isinstance(strategy(endless, "quick"), Random)
    assert Exhaustive(endless).most is None


@needs_optuna
def test_effort_full_uses_tpe_in_a_large_space() -> None:
    search = strategy(Space(a=range(FULL + 1)), "full", seed=4)
    assert isinstance(search, Tpe) and search.most == FULL


def test_a_strategy_may_be_told_a_result_before_it_proposes_the_config() -> None:
    search = Exhaustive(Space(a=[1, 2, 3]))
    assert not search.done
    search.tell(Config(a=1), 1.0)
    assert not search.done
    search.tell(Config(a=2), None)
    assert search.ask(1) == [Config(a=3)] and search.done


@pytest.mark.parametrize(
    ("act", "words"),
    [
        (lambda: strategy(WIDE, "most"), "'effort' is 'most'"),  # type: ignore[arg-type]
        (lambda: Random(WIDE, trials=0), "'trials' is 0"),
        (lambda: Random(WIDE, seed=0.5), "'seed' is 0.5"),  # type: ignore[arg-type]
        (lambda: Exhaustive([Config()]), "'space' is "),  # type: ignore[arg-type]
        (lambda: Exhaustive(Space(a=[1], where=lambda config: False)), "'where' allows none"),
        (lambda: First(WIDE).ask(0), "'most' is 0"),
        (lambda: First(WIDE).tell(Config(a=1), 1.0), r"Config\(a=1\) is not in the space"),
        (lambda: First(WIDE).tell(WIDE.first, -1.0), "'seconds' is -1.0"),
        (lambda: First(WIDE).tell(WIDE.first, math.nan), "'seconds' is nan"),
        (lambda: First(WIDE).tell(WIDE.first, math.inf), "'seconds' is inf"),
        (lambda: First(WIDE).tell(WIDE.first, True), "'seconds' is True"),
        (lambda: [(s := First(WIDE)).tell(WIDE.first, 1), s.tell(WIDE.first, 1)], "told before"),
    ],
)
def test_bad_input_is_named(act: Any, words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        act()


def test_told_results_count_as_trials() -> None:
    space = Space(a=range(100))
    first = Random(space, trials=8)
    asked = first.ask(8)
    again = Random(space, trials=8)
    for config in asked:
        again.tell(config, 1.0)
    assert again.done
    more = Random(space, trials=12)
    for config in asked:
        more.tell(config, 1.0)
    assert len(more.ask(100)) == 4


def test_the_first_config_is_proposed_even_after_many_results() -> None:
    search = Random(Space(a=range(100)), trials=2)
    for a in (7, 8, 9):
        search.tell(Config(a=a), 1.0)
    assert search.ask(8) == [Config(a=0)]
    assert search.done
