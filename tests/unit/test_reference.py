"""The reference pages are those of the source."""

from __future__ import annotations

import re
from types import ModuleType

import pytest

import tzero
from tests.unit.public import PUBLIC
from tests.unit.reference import (
    FALLBACKS,
    PAGES,
    fallbacks_page,
    path_of,
    public_name,
    text_of,
)


@pytest.mark.parametrize("page", PAGES)
def test_a_reference_page_is_up_to_date(page: str) -> None:
    assert path_of(page).read_text() == text_of(page), "run `make docs`"


def test_the_table_of_fallbacks_is_up_to_date() -> None:
    assert FALLBACKS.read_text() == fallbacks_page(), "run `make docs`"


@pytest.mark.parametrize("module", PUBLIC, ids=public_name)
def test_the_api_page_has_every_public_name(module: ModuleType) -> None:
    page = path_of("api").read_text()
    if module is tzero.errors:
        page = path_of("errors").read_text()
        assert [name for name in PUBLIC[module] if f"\n## {name}\n" not in page] == []
        return
    names = {f"{public_name(module)}.{name}" for name in PUBLIC[module] if name[0] != "_"}
    names -= {f"tzero.{name}" for name in PUBLIC[tzero.errors]}
    entries = re.findall(r"^::: (\S+)$|heading: '(.*?)'|^`(\S+)`: \[", page, re.M)
    assert names <= {next(filter(None, each)) for each in entries}
