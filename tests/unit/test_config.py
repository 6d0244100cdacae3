"""A Config is a frozen mapping: equal by content and type, prints as code, converts to JSON."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tzero import Config, InvalidConfig

LEAVES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5, alphabet="ab\"\\'é")
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.sampled_from("xyz"), inner, max_size=2)
    ),
    max_leaves=6,
)
CONFIGS = st.dictionaries(st.sampled_from(["BLOCK", "num_warps", "order", "_hint"]), VALUES)


def remade(config: Config) -> Config:
    """The config that evaluating the repr gives."""
    made = eval(repr(config), {"Config": Config})
    assert isinstance(made, Config)
    return made


@given(CONFIGS)
def test_every_conversion_and_copy_gives_an_equal_config(values: dict[str, Any]) -> None:
    config = Config(values)
    for other in (
        Config(config),
        Config(**config),
        remade(config),
        Config.from_json(config.to_json()),
        pickle.loads(pickle.dumps(config)),
        copy.copy(config),
        copy.deepcopy(config),
    ):
        assert other == config and hash(other) == hash(config)


@pytest.mark.parametrize(
    ("one", "other"), [(1, True), (1, 1.0), (0.0, -0.0), (0, False), ("1", 1), ((1,), ((1,),))]
)
def test_equal_values_of_different_types_make_different_configs(one: Any, other: Any) -> None:
    assert Config(a=one) != Config(a=other)
    assert Config(a=[one]) != Config(a=[other])
    assert len({Config(a=one), Config(a=other)}) == 2


def test_nan_is_equal_to_itself() -> None:
    assert Config(a=float("nan")) == Config(a=-float("nan"))


def test_the_order_of_names_does_not_matter() -> None:
    assert Config(a=1, b=2) == Config(b=2, a=1)
    assert hash(Config(a=1, b=2)) == hash(Config(b=2, a=1))
    assert Config(a=1, b=2).to_json() == Config(b=2, a=1).to_json()


def test_a_config_unpacks_into_a_call() -> None:
    def launch(**options: Any) -> dict[str, Any]:
        return options

    assert launch(n=1, **Config(BLOCK=128, num_warps=4)) == {"n": 1, "BLOCK": 128, "num_warps": 4}


def test_lists_and_mappings_inside_are_frozen_too() -> None:
    source = {"order": [1, 0], "inner": {"k": [1]}}
    config = Config(source)
    source["order"] = []
    assert config.order == (1, 0) and config.inner == Config(k=(1,))


def test_a_config_is_immutable() -> None:
    config = Config(BLOCK=1)
    with pytest.raises(AttributeError, match=r"Config\(config, BLOCK=2\)"):
        config.BLOCK = 2
    with pytest.raises(TypeError):
        config["BLOCK"] = 2  # type: ignore[index]
    for name in ("BLOCK", "_values", "_hash"):
        with pytest.raises(AttributeError, match=f"'{name}' stays"):
            delattr(config, name)
    assert config == Config(BLOCK=1)


def test_a_later_name_wins_over_an_earlier_config() -> None:
    assert Config(Config(BLOCK=1, k=2), BLOCK=3) == Config(BLOCK=3, k=2)


def test_an_unknown_name_says_what_there_is() -> None:
    with pytest.raises(AttributeError, match="BLOCK, num_warps"):
        _ = Config(BLOCK=1, num_warps=4).block


@pytest.mark.parametrize("value", [{1, 2}, b"x", object(), 1j, [object()]])
def test_an_error_names_the_parameter_whose_value_json_cannot_represent(value: object) -> None:
    with pytest.raises(InvalidConfig, match="BLOCK"):
        Config(BLOCK=value)


@pytest.mark.parametrize("name", ["", "a b", "1a", 3, "lambda", "None", "class"])
def test_a_name_must_be_an_identifier(name: Any) -> None:
    with pytest.raises(InvalidConfig):
        Config({name: 1})


@pytest.mark.parametrize("text", ["", "[1]", "{", "3", '{"a b": 1}'])
def test_json_that_is_not_a_config_is_an_error(text: str) -> None:
    with pytest.raises(InvalidConfig):
        Config.from_json(text)


@pytest.mark.parametrize("name", ["keys", "items", "get", "values", "to_json", "_values", "__a"])
def test_a_name_must_not_hide_an_attribute_of_config(name: str) -> None:
    with pytest.raises(InvalidConfig, match=f"{name}=1; allowed: a name that Config does not use"):
        Config({name: 1})


@pytest.mark.parametrize("values", [5, [("a", 1)], "a", {1}])
def test_only_a_mapping_makes_a_config(values: Any) -> None:
    with pytest.raises(InvalidConfig, match="a mapping of names to values"):
        Config(values)


@pytest.mark.parametrize("text", [5, None, {"a": 1}, b"\xff"])
def test_only_text_is_read_as_json(text: Any) -> None:
    with pytest.raises(InvalidConfig, match="JSON"):
        Config.from_json(text)


def test_a_value_that_contains_itself_is_an_error() -> None:
    endless: list[Any] = []
    endless.append(endless)
    mapping: dict[str, Any] = {}
    mapping["a"] = mapping
    for value in (endless, mapping, [mapping]):
        with pytest.raises(InvalidConfig, match="that does not contain itself"):
            Config(x=value)
