"""The reference pages are those of the source."""

from __future__ import annotations

import pytest

from tests.unit.reference import FALLBACKS, PAGES, fallbacks_page, path_of, text_of


@pytest.mark.parametrize("page", PAGES)
def test_a_reference_page_is_up_to_date(page: str) -> None:
    assert path_of(page).read_text() == text_of(page), "run `make docs`"


def test_the_table_of_fallbacks_is_up_to_date() -> None:
    assert FALLBACKS.read_text() == fallbacks_page(), "run `make docs`"
