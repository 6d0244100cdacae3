"""Modules can be imported under the names that they had, with a warning that says the new one."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import warnings

import pytest

from tzero.moved import MOVED, PUBLIC


@pytest.mark.parametrize("old", sorted(MOVED))
def test_an_old_name_imports_the_module_and_warns(old: str) -> None:
    sys.modules.pop(f"tzero.{old}", None)
    with pytest.warns(DeprecationWarning, match=f"tzero.{old} is now tzero.{MOVED[old]}"):
        found = importlib.import_module(f"tzero.{old}")
    assert found is importlib.import_module(f"tzero.{MOVED[old]}")
    assert found.__name__ == f"tzero.{MOVED[old]}"


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_a_public_module_imports_under_its_short_name(name: str) -> None:
    sys.modules.pop(f"tzero.{name}", None)
    with warnings.catch_warnings():
        warnings.simplefilter("error", DeprecationWarning)
        found = importlib.import_module(f"tzero.{name}")
    assert found is importlib.import_module(f"tzero.{PUBLIC[name]}")


def test_a_warning_names_the_line_that_imports() -> None:
    sys.modules.pop("tzero.words", None)
    with pytest.warns(DeprecationWarning) as caught:
        import tzero.words  # noqa: F401
    assert caught[0].filename == __file__


def test_a_name_that_never_was_is_missing() -> None:
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("tzero.wrods")
    assert importlib.util.find_spec("tzero.wrods") is None
