"""What gets installed: its name, in every hint; its versions, as tzero.versions has them."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from tzero.versions import SUPPORTED, Supported, order

ROOT = Path(__file__).parents[2]
TOML = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = TOML["project"]
ROWS = {row.package: row for row in SUPPORTED}
PYTHON, TORCH, TRITON, HELION = (ROWS[each] for each in ("python", "torch", "triton", "helion"))
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


def requirements() -> list[str]:
    extras = PROJECT["optional-dependencies"].values()
    return [*PROJECT["dependencies"], *(each for extra in extras for each in extra)]


def pin(constraints: str, package: str) -> str:
    (found,) = re.findall(rf"^{package}==(\S+)$", (ROOT / constraints).read_text(), re.MULTILINE)
    return str(found)


def minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def test_the_requirements_ask_for_the_oldest_supported() -> None:
    assert PROJECT["requires-python"] == f">={PYTHON.oldest}"
    assert {f"torch>={TORCH.oldest}", f"triton>={TRITON.oldest}"} <= set(PROJECT["dependencies"])


@pytest.mark.parametrize("row", SUPPORTED[1:], ids=lambda row: row.package)
def test_no_requirement_asks_for_what_is_not_supported(row: Supported) -> None:
    own = [each for each in requirements() if re.match(rf"{row.package}\W", each)]
    bounds = [each.removeprefix(f"{row.package}>=") for each in own]
    assert bounds and all(
        order(row.oldest) <= order(bound) <= order(row.newest) for bound in bounds
    )


def test_the_classifiers_name_every_supported_python() -> None:
    first, last = (int(version.split(".")[1]) for version in (PYTHON.oldest, PYTHON.newest))
    named = re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["classifiers"]))
    assert named == [f"3.{each}" for each in range(first, last + 1)]


def test_the_tools_check_for_the_oldest_python() -> None:
    assert TOML["tool"]["ruff"]["target-version"] == f"py{PYTHON.oldest.replace('.', '')}"
    assert TOML["tool"]["mypy"]["python_version"] == PYTHON.oldest


def test_ci_pins_the_oldest_and_the_newest_triton_and_the_newest_of_the_rest() -> None:
    assert minor(pin("constraints.txt", "triton")) == TRITON.oldest
    assert minor(pin("constraints-newest.txt", "triton")) == TRITON.newest
    for constraints in ("constraints.txt", "constraints-newest.txt"):
        assert minor(pin(constraints, "torch")) == TORCH.newest
        assert minor(pin(constraints, "helion")) == HELION.newest


def test_make_tests_every_release_of_triton_between_the_oldest_and_the_newest() -> None:
    (releases,) = re.findall(r"^BETWEEN := (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    first, last = (int(version.split(".")[1]) for version in (TRITON.oldest, TRITON.newest))
    assert [minor(each) for each in releases.split()] == [
        f"3.{each}" for each in range(first + 1, last)
    ]


def test_make_asks_for_the_oldest_python_and_tests_the_oldest_helion() -> None:
    makefile = (ROOT / "Makefile").read_text()
    assert set(re.findall(r"helion==(\d+\.\d+)", makefile)) == {HELION.oldest}
    assert set(re.findall(r"version_info < \((.*?)\)", makefile)) == {
        PYTHON.oldest.replace(".", ", ")
    }


def test_the_readme_names_every_supported_version() -> None:
    readme = " ".join((ROOT / "README.md").read_text().split())
    assert f"Supported: {', '.join(map(str, SUPPORTED))}." in readme
