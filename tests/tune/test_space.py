"""Spaces: their configs, their order, and the errors of invalid ones."""

from __future__ import annotations

import random
import zlib
from itertools import islice
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tzero.config import Config
from tzero.errors import InvalidArgument, InvalidConfig
from tzero.tune import space as space_module
from tzero.tune.space import Space

RANGES = st.dictionaries(
    st.sampled_from(["BLOCK", "num_warps", "stages", "where"]),
    st.lists(st.sampled_from([0, 1, True, 2.0, 2, "a", None, (1, 2)]), min_size=1, max_size=4),
    min_size=1,
)


@settings(max_examples=50)
@given(RANGES, st.integers())
def test_walk_sample_count_and_membership_agree(ranges: dict[str, list[Any]], seed: int) -> None:
    space = Space(ranges)
    walked = list(space)
    assert len(walked) == len(set(walked)) == space.count() == space.combinations
    assert all(config in space for config in walked)
    sampled = space.sample(random.Random(seed), len(walked) + 5)
    assert len(sampled) == len(walked) and set(sampled) == set(walked)
    assert space.sample(random.Random(seed), 2) == sampled[:2]
    again = Space.of(walked)
    assert list(again) == walked and again.parameters == space.parameters


@settings(max_examples=50)
@given(RANGES, st.integers())
def test_constraints_hold_for_walks_and_samples_alike(
    ranges: dict[str, list[Any]], seed: int
) -> None:
    keep = [config for config in Space(ranges) if zlib.crc32(config.to_json().encode()) % 2]
    if not keep:
        return
    allowed = set(keep)
    space = Space(ranges, where=lambda config: config in allowed)
    assert list(space) == keep and space.count() == len(keep) and space.first == keep[0]
    assert set(space.shuffled(random.Random(seed))) == allowed
    assert [config for config in Space(ranges) if config in space] == keep


def test_the_first_config_is_found_where_a_walk_would_take_forever() -> None:
    ranges = {f"p{k}": range(12) for k in range(20)}
    first = Space(ranges, where=lambda config: config.p0 > 4).first
    assert first.p0 > 4 and first == Space(ranges, where=lambda config: config.p0 > 4).first


def test_the_order_is_that_of_nested_loops() -> None:
    space = Space(b=[2, 1], a=["x", "y"])
    assert [(c.b, c.a) for c in space] == [(2, "x"), (2, "y"), (1, "x"), (1, "y")]


def test_values_that_differ_in_type_only_are_different() -> None:
    space = Space(a=[1, True, 1.0, 1])
    assert space.count() == 3
    assert Config(a=1.0) in space and Config(a=1.0) not in Space(a=[1, True])


def test_a_space_larger_than_memory_is_sampled_and_iterated() -> None:
    space = Space({f"p{k}": range(1000) for k in range(30)})
    assert space.combinations == space.count() == 10**90
    assert len(set(space.sample(random.Random(1), 100))) == 100
    assert len(list(islice(space, 5))) == 5
    limited = Space({f"p{k}": range(1000) for k in range(30)}, where=lambda c: c.p0 % 2)
    assert limited.count() is None
    assert all(c.p0 % 2 for c in limited.sample(random.Random(1), 20))


def test_a_listed_space_may_mix_parameters_and_drops_duplicates() -> None:
    configs = [Config(a=1), {"b": 2, "a": 3}, Config(a=1), Config()]
    space = Space.of(configs)
    assert space.listed == (Config(a=1), Config(a=3, b=2), Config())
    assert dict(space.parameters) == {"a": (1, 3), "b": (2,)}
    assert Space.of(configs, where=lambda c: "b" in c).first == Config(a=3, b=2)


def test_other_configs_and_values_are_not_members() -> None:
    space = Space(BLOCK=[64], where=lambda config: True)
    for other in (Config(), Config(BLOCK=64, x=1), Config(BLOK=64), Config(BLOCK=63), 64, None):
        assert other not in space


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Space(), "has no parameters"),
        (lambda: Space({}), "has no parameters"),
        (lambda: Space([64]), "does not map names"),  # type: ignore[arg-type]
        (lambda: Space(BLOCK=[]), "'BLOCK' has no values"),
        (lambda: Space(BLOCK=64), "'BLOCK' is 64, not a list"),  # type: ignore[arg-type]
        (lambda: Space(BLOCK="64"), "'BLOCK' is '64', not a list"),
        (lambda: Space(BLOCK={64, 32}), "'BLOCK' is {"),  # type: ignore[arg-type]
        (lambda: Space(BLOCK=range(10**9)), "'BLOCK' has 1000000000 values"),
        (lambda: Space(BLOCK=[64], where=3), "'where' is 3"),  # type: ignore[arg-type]
        (lambda: Space.of([]), "'configs' is empty"),
        (lambda: Space.of({"BLOCK": 64}), "not a list of configs"),
        (lambda: Space.of(7), "not a list of configs"),  # type: ignore[arg-type]
        (lambda: Space.of([Config(a=1), 64]), r"'configs\[1\]' is 64"),  # type: ignore[list-item]
        (lambda: Space.of([Config(a=1)], where=lambda c: False), "none of the 1 configs"),
        (lambda: list(Space(a=[1, 2], where=lambda c: False)), "none of the 2 combinations"),
        (lambda: Space(a=[1], where=lambda c: False).first, "'where' allows none"),
        (lambda: Space(a=[1, 2], where=lambda c: False).count(), "'where' allows none"),
        (lambda: Space(a=[1]).sample(random.Random(0), -1), "'n' is -1"),
        (lambda: Space(a=[1]).sample(3, 1), "'rng' is 3"),  # type: ignore[arg-type]
        (
            lambda: Space(a=[1], where=lambda c: False).sample(random.Random(0), 1),
            "'where' allows none",
        ),
    ],
)
def test_an_invalid_space_is_an_error_with_the_reason(make: Any, words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        make()


def test_the_error_of_an_invalid_value_names_its_parameter() -> None:
    with pytest.raises(InvalidConfig, match="BLOCK=<object"):
        Space(BLOCK=[64, object()])
    with pytest.raises(InvalidConfig, match="keys"):
        Space(keys=[64])
    with pytest.raises(InvalidConfig, match="BLOCK="):
        Space.of([{"BLOCK": object()}])


def test_the_error_of_a_constraint_has_the_config_and_the_unknown_name() -> None:
    space = Space(BLOCK=[64], where=lambda config: config.BLOK > 3)
    with pytest.raises(InvalidArgument, match=r"'where' raised AttributeError.*BLOK.*it has BLOCK"):
        list(space)
    with pytest.raises(InvalidArgument, match="returned None for Config"):
        list(Space(BLOCK=[64], where=lambda config: None))


def test_sampling_ends_where_constraints_reject_almost_everything(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(space_module, "PATIENCE", 50)
    never = Space({f"p{k}": range(1000) for k in range(9)}, where=lambda c: False)
    with pytest.raises(InvalidArgument, match="first 50 combinations"):
        next(iter(never))
    with pytest.raises(InvalidArgument, match="none of 50"):
        never.sample(random.Random(0), 1)
    calls = iter([True] + [False] * 1000)
    thin = Space({f"p{k}": range(1000) for k in range(9)}, where=lambda c: next(calls))
    assert len(thin.sample(random.Random(0), 5)) == 1


def test_the_error_of_an_unknown_parameter_suggests_a_name() -> None:
    space = Space(BLOK=[64])
    with pytest.raises(InvalidArgument, match=r"add: argument 'BLOK'.*Did you mean 'BLOCK'"):
        space.check_names(["BLOCK", "num_warps"], kernel="add")
    with pytest.raises(InvalidArgument, match=r"no parameters to choose.*Leave it out"):
        space.check_names([], kernel="add")
    Space(BLOCK=[64]).check_names(["BLOCK", "num_warps"], kernel="add")


def test_repr_is_the_expression_that_made_it() -> None:
    assert repr(Space(a=(1, 2))) == "Space(a=[1, 2])"
    assert repr(Space(a=[1], where=[bool, bool])) == "Space(a=[1], where=<2 constraints>)"
    assert repr(Space.of([Config(a=1)])) == "Space.of([Config(a=1)])"
