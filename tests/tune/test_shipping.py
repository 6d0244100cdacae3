"""Configs that are known ahead: lookup tables, shipped files, and the nearest known shape."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import tzero
from tests.tune.kernels import LARGE, SMALL, WRONG, X, double, kernel
from tzero import Config, settings
from tzero.errors import InvalidArgument, InvalidKernel, PretunedDamaged

pytestmark = pytest.mark.usefixtures("own_memory")


def test_effort_none_uses_the_first_config_and_then_the_nearest() -> None:
    made = kernel([LARGE, SMALL])
    with settings.override(tune="none"):
        made(X)
        assert made.bind(X).choice.how == "pinned"  # type: ignore[union-attr]
        assert made.bind(X).config == LARGE
    made.reset()
    near, far = X[:900], X[:2]
    made.autotune(X)
    made.autotune(far)
    with settings.override(tune="none"):
        made(near)
    choice = made.bind(near).choice
    assert choice is not None
    assert choice.how == "nearest"
    assert "tuned for (1000,)" in choice.why
    assert choice.variant == made.bind(X).config


def test_a_lookup_table_comes_first() -> None:
    words = kernel().arguments(X)
    made = kernel([SMALL, LARGE], lookup={words: LARGE})
    made(X)
    assert str(made.bind(X).choice).endswith(
        "(pretuned: the lookup table of double has it for this kind of hardware)"
    )
    assert made.tuning.searches == {}
    made(X[:7])
    assert len(made.tuning.searches) == 1


@pytest.mark.parametrize(
    ("lookup", "words"),
    [
        (5, "lookup= is 5"),
        ({"x": 3}, "lookup= is"),
        ({"x": Config(BLOK=3)}, "Did you mean 'BLOCK'"),
    ],
)
def test_an_invalid_lookup_table_is_an_error(lookup: Any, words: str) -> None:
    with pytest.raises((InvalidKernel, InvalidArgument), match=words):
        kernel(lookup=lookup)


def test_a_shipped_config_is_used_without_timing(tmp_path: Path) -> None:
    made = kernel()
    made(X)
    file = tmp_path / "pretuned.json"
    tzero.ship(file, [made])
    (tmp_path / "tuned").rename(tmp_path / "elsewhere")
    tzero.pretuned(file)
    other = kernel()
    other(X)
    choice = other.bind(X).choice
    assert choice is not None
    assert choice.how == "pretuned"
    assert choice.variant == made.bind(X).config
    assert other.tuning.searches == {}


def test_shipping_again_keeps_earlier_entries(tmp_path: Path) -> None:
    made, file = kernel(), tmp_path / "pretuned.json"
    made(X)
    tzero.ship(file, [made])
    other = kernel()
    other(X[:10])
    assert len(tzero.ship(file, [other])) == 2


def test_other_shapes_use_the_nearest_shipped_config(tmp_path: Path) -> None:
    made, file = kernel(), tmp_path / "pretuned.json"
    made(X)
    made(X[:4])
    tzero.ship(file, [made])
    tzero.pretuned(file)
    other = kernel()
    with settings.override(tune="none"):
        other(X[:700])
    choice = other.bind(X[:700]).choice
    assert choice is not None
    assert choice.how == "nearest"
    assert "(1000,), the nearest of 2" in choice.why


def test_a_file_for_other_hardware_gives_a_warning_and_no_config(tmp_path: Path) -> None:
    made, file = kernel(), tmp_path / "pretuned.json"
    made(X)
    tzero.ship(file, [made])
    hardware = tzero.pretuned(file).entries[0].hardware
    file.write_text(file.read_text().replace(hardware, "cuda:sm_10"))
    with pytest.warns(UserWarning, match=f"is for cuda:sm_10, and this is {hardware}"):
        tzero.pretuned(file)
    other = kernel()
    (tmp_path / "tuned").rename(tmp_path / "elsewhere")
    other(X)
    assert other.bind(X).choice.how == "tuned"  # type: ignore[union-attr]


def test_a_shipped_config_that_the_kernel_does_not_list_is_not_used(tmp_path: Path) -> None:
    made, file = kernel([WRONG]), tmp_path / "pretuned.json"
    made = kernel([WRONG, Config(BLOCK=128, BY=3)])
    made(X)
    tzero.ship(file, [made])
    tzero.pretuned(file)
    other = kernel()
    with pytest.warns(UserWarning, match="which is none of its configs"):
        torch.testing.assert_close(other(X), X * 2)


def test_a_file_for_another_source_gives_a_warning_and_is_not_used(tmp_path: Path) -> None:
    made, file = kernel(), tmp_path / "pretuned.json"
    made(X)
    tzero.ship(file, [made])
    rows = json.loads(file.read_text())
    rows["entries"][0]["source"] = "0" * 16
    file.write_text(json.dumps(rows))
    tzero.pretuned(file)
    other = kernel()
    with pytest.warns(UserWarning, match="with another source; it changed since"):
        other(X)


def test_a_damaged_file_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "pretuned.json"
    file.write_text('{"tzero_pretuned": 1, "entries": [{}]}')
    with pytest.raises(PretunedDamaged, match="entry 1 has no 'kernel'"):
        tzero.pretuned(file)
    with pytest.raises(FileNotFoundError):
        tzero.pretuned(tmp_path / "none.json")


def test_a_kernel_without_a_choice_cannot_be_shipped(tmp_path: Path) -> None:
    with pytest.raises(InvalidKernel, match=r"Call double.autotune\(x, \.\.\.\)"):
        tzero.ship(tmp_path / "none.json", [kernel()])
    with pytest.raises(InvalidKernel, match="not a kernel of tzero"):
        tzero.ship(tmp_path / "none.json", [print])


def test_kernels_of_one_function_share_an_entry(tmp_path: Path) -> None:
    one, other = kernel(), kernel([LARGE])
    one(X)
    other.autotune(X)
    tzero.ship(tmp_path / "pretuned.json", [one, other])
    (entry,) = tzero.pretuned(tmp_path / "pretuned.json").entries
    assert entry.config == LARGE


def test_more_dimensions_than_can_be_compared_use_the_first_config() -> None:
    def first(xs: list[torch.Tensor], config: Config) -> torch.Tensor:
        return double(xs[0], config)

    made = tzero.kernel(configs=[SMALL, LARGE])(first)
    made([torch.ones(2, 2, 2)] * 90)
    with settings.override(tune="none"):
        made([torch.ones(2, 2, 3)] * 90)
    assert made.bind([torch.ones(2, 2, 3)] * 90).choice.how == "pinned"  # type: ignore[union-attr]
