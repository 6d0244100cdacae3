"""What gets installed: the distribution is tzero-runtime, and every hint names it."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import tzero

ROOT = Path(tzero.__file__).parent.parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
SEARCHED = ("src", "docs", "bench", "tests", "native")
SUFFIXES = {".py", ".md", ".cpp", ".h", ".pyi"}


def texts() -> dict[Path, str]:
    """Every text that can hold an install hint."""
    found = [path for name in SEARCHED for path in (ROOT / name).rglob("*")]
    found = [path for path in found if path.suffix in SUFFIXES and path != Path(__file__)]
    found += [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "Makefile", "setup.py")]
    return {path.relative_to(ROOT): path.read_text() for path in found}


def test_the_distribution_is_not_called_like_the_import() -> None:
    assert PROJECT["name"] == "tzero-runtime"


def test_no_hint_installs_the_unrelated_package_of_the_same_name() -> None:
    extras = "|".join(PROJECT["optional-dependencies"])
    command = r"(pip install[^\n]*|install|reinstall) ['\"]?tzero(?![-\w])(?! into)"
    other = re.compile(rf"{command}|\btzero\\?\[({extras})\b")
    assert [(path, m[0]) for path, text in texts().items() for m in other.finditer(text)] == []


def test_every_extra_named_in_a_hint_exists() -> None:
    named = re.compile(r"tzero-runtime\\?\[(\w+)")
    hints = {extra for text in texts().values() for extra in named.findall(text)}
    assert hints and hints <= set(PROJECT["optional-dependencies"])
