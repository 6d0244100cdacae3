"""The reference pages are those of the source."""

from __future__ import annotations

import pytest

from tests.unit.reference import PAGES, path_of, text_of


@pytest.mark.parametrize("page", PAGES)
def test_a_reference_page_is_up_to_date(page: str) -> None:
    assert path_of(page).read_text() == text_of(page), "run `make docs`"
