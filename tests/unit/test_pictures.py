"""The pictures in docs/ are those of committed records, hold their words, and read in the dark."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from bench import chart, parts, searched, watched

DOCS = Path(__file__).parents[2] / "docs"
MADE = {
    "call.svg": chart.call,
    "decode.svg": chart.decode,
    "parts.svg": parts.picture,
    "search.svg": searched.picture,
    "timeline.svg": watched.picture,
}
WIDEST = {"small": 6.4}
"""The most pixels that a letter takes on average, by its class; 7.2 elsewhere."""


@pytest.mark.parametrize("name", MADE)
def test_a_picture_is_that_of_its_record(name: str) -> None:
    assert (DOCS / name).read_text() == MADE[name](), "run `make docs`"


def test_each_part_of_a_call_takes_some_time() -> None:
    for _, each in parts.calls(chart.read(chart.RECORD)):
        assert all(part.launches > 0 for part in each)


@pytest.mark.parametrize("path", sorted(DOCS.glob("*.svg")), ids=lambda path: path.name)
def test_a_picture_reads_in_light_and_in_dark(path: Path) -> None:
    assert "prefers-color-scheme: dark" in path.read_text()


def test_every_picture_is_made_from_a_record() -> None:
    assert {path.name for path in DOCS.glob("*.svg")} == set(MADE)


def test_the_chosen_config_of_the_search_is_the_lowest() -> None:
    _, _, chosen, decided = searched.read()
    assert decided[chosen].median == min(each.median for each in decided.values())


@pytest.mark.parametrize("path", sorted(DOCS.glob("*.svg")), ids=lambda path: path.name)
def test_the_words_of_a_picture_are_inside_of_it(path: Path) -> None:
    root = ElementTree.fromstring(path.read_text())
    wide = float(root.attrib["viewBox"].split()[2])
    for each in root.iter("{http://www.w3.org/2000/svg}text"):
        words, x = "".join(each.itertext()), float(each.attrib.get("x", 0))
        took = len(words) * WIDEST.get(each.attrib.get("class", ""), 7.2)
        anchor = each.attrib.get("text-anchor", "start")
        left = {"start": x, "middle": x - took / 2, "end": x - took}[anchor]
        assert -took / 10 <= left and left + took <= wide, words


@pytest.mark.parametrize("page", sorted(DOCS.glob("*.md")), ids=lambda path: path.name)
def test_pictures_have_words_for_those_who_do_not_see_them(page: Path) -> None:
    for words, name in re.findall(r"!\[([^]]*)\]\(([\w.]+)\)", page.read_text()):
        assert (DOCS / name).exists() and len(words) > 40
