"""CONTRIBUTING.md has the tree as it is, and the files and names that pages mention exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.unit.map import PAGE, ROOT, first_sentence, page

PAGES = ["CONTRIBUTING.md", "docs/how-a-call-works.md"]
PLACES = (ROOT, ROOT / "src" / "tzero")
FILE = re.compile(r"`([\w./-]+\.(?:py|pyi|cpp|c|h|md|txt|toml)|[\w.-]+(?:/[\w.-]+)*/)`")
NAMES = re.compile(FILE.pattern + r" \((`[\w.]+`(?:, `[\w.]+`)*)")


def found(name: str) -> Path | None:
    return next((place / name for place in PLACES if (place / name).exists()), None)


def test_the_map_and_the_layers_are_those_of_the_tree() -> None:
    text = PAGE.read_text()
    assert page(text) == text, "run `python -m tests.unit.map`"
    assert all(len(line) <= 100 for line in page(text).splitlines() if line.startswith("    "))


@pytest.mark.parametrize("name", PAGES)
def test_files_that_a_page_names_exist(name: str) -> None:
    files = FILE.findall((ROOT / name).read_text())
    assert len(files) > 5
    assert [each for each in files if found(each) is None] == []


@pytest.mark.parametrize("name", PAGES)
def test_names_that_a_page_gives_with_a_file_are_in_it(name: str) -> None:
    for file, names in NAMES.findall((ROOT / name).read_text()):
        path = found(file)
        assert path is not None and path.is_file(), file
        words = set(re.findall(r"\w+", path.read_text()))
        missing = [each for each in re.findall(r"\w+", names) if each not in words]
        assert not missing, f"{file} has no {missing}"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("One thing. Another thing.", "One thing"),
        (
            "Launched with `k[grid](...)`, in\nTriton 3.9.",
            "Launched with `k[grid](...)`, in Triton 3.9",
        ),
        ("Short: this is whole.", "Short: this is whole"),
        (
            f"A sentence of at least thirty letters: {'more ' * 20}.",
            "A sentence of at least thirty letters",
        ),
        (f"Too short: {'more ' * 20}end.", f"Too short: {'more ' * 20}end"),
    ],
)
def test_first_sentences_are_whole_or_cut_at_a_colon(text: str, sentence: str) -> None:
    assert first_sentence(text, 60) == sentence
