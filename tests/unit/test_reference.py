"""The reference pages are those of the source, and the picture is that of its record."""

from __future__ import annotations

import pytest

from bench import chart, parts, watched
from tests.unit.reference import FALLBACKS, PAGES, fallbacks_page, path_of, text_of


@pytest.mark.parametrize("page", PAGES)
def test_a_reference_page_is_up_to_date(page: str) -> None:
    assert path_of(page).read_text() == text_of(page), "run `make docs`"


def test_the_table_of_fallbacks_is_up_to_date() -> None:
    assert FALLBACKS.read_text() == fallbacks_page(), "run `make docs`"


def test_the_picture_of_a_call_is_that_of_its_record() -> None:
    assert chart.PICTURE.read_text() == chart.picture(), "run `make docs`"
    assert [bar.words for bar in chart.bars() if bar.ours]


def test_the_picture_of_the_parts_of_a_call_is_that_of_its_record() -> None:
    assert parts.PICTURE.read_text() == parts.picture(), "run `make docs`"
    for _, each in parts.calls(chart.read(chart.RECORD)):
        assert all(part.launches > 0 for part in each)


def test_the_timeline_is_that_of_its_record() -> None:
    assert watched.PICTURE.read_text() == watched.picture(), "run `make docs`"
