"""`tzero explain`: which function is found, and what is told of its calls."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.commands.conftest import Command, facts

PROGRAM = """
import torch, triton, triton.language as tl

@triton.jit
def double_kernel(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < n) * 2, mask=at < n)

def double(x):
    out = torch.empty_like(x)
    double_kernel[(triton.cdiv(x.numel(), 128),)](x, out, x.numel(), BLOCK=128)
    return out

def sign(x):
    return double(x) if double(x).sum() > 0 else x

def constant():
    return double(torch.ones(SIZE))

def refuse(x):
    raise ValueError(x)

class Layer:
    @staticmethod
    def forward(x):
        return double(x)

SIZE = 300
if __name__ == "__main__":
    raise SystemExit("run as a program")
"""


@pytest.fixture
def program(tmp_path: Path) -> str:
    path = tmp_path / "explained_program.py"
    path.write_text(PROGRAM)
    return str(path)


def test_a_function_of_a_file_is_called_and_explained(tzero_command: Command, program: str) -> None:
    text = tzero_command("explain", f"{program}:double", "--call", "torch.ones(SIZE)").stdout
    assert text.startswith("double: hit, replayed natively (tier 2)")
    assert "launch double_kernel[(3, 1, 1)]" in text


def test_a_function_of_a_module_is_found(
    tzero_command: Command, program: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(Path(program).parent)
    place = "explained_program:Layer.forward"
    found = facts(tzero_command("explain", place, "--call", "torch.ones(8)", "--json"))
    assert found["replayed"] == "natively" and found["why"] == ""


def test_a_fallback_is_told_with_its_reason(tzero_command: Command, program: str) -> None:
    found = facts(tzero_command("explain", f"{program}:sign", "--call", "torch.ones(8)", "--json"))
    assert found["replayed"] == "" and "reads the value of a tensor" in found["why"]


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("double", "module:function"),
        ("{program}:treble", "no 'treble'"),
        ("{program}:double_kernel", "JITFunction"),
        ("{program}:SIZE", "of type int"),
        ("{program}:Layer.backward", "no 'Layer.backward'"),
        ("no_such_module_of_anybody:f", "no module 'no_such_module_of_anybody'"),
        ("no_such_file.py:f", "no file 'no_such_file.py'"),
    ],
)
def test_what_is_no_function_is_refused(
    tzero_command: Command, program: str, place: str, words: str
) -> None:
    done = tzero_command("explain", place.format(program=program), "--call", "1", code=2)
    assert words in done.stderr


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ((), "needs arguments: it takes x. Give those of a call, such as --call"),
        (("--call", "torch.ones(8"), "is no Python: '(' was never closed"),
        (("--call", "sizes"), "raises NameError: name 'sizes' is not defined"),
    ],
)
def test_arguments_that_are_missing_or_wrong_are_told(
    tzero_command: Command, program: str, given: tuple[str, ...], words: str
) -> None:
    assert words in tzero_command("explain", f"{program}:double", *given, code=2).stderr


def test_a_function_without_arguments_needs_no_call(tzero_command: Command, program: str) -> None:
    found = facts(tzero_command("explain", f"{program}:constant", "--json"))
    assert found["kernel"] == "constant" and found["replayed"] == "natively"


def test_what_a_function_raises_is_shown_from_its_own_line_on(
    tzero_command: Command, program: str
) -> None:
    text = tzero_command("explain", f"{program}:refuse", "--call", "3", code=1).stderr
    assert text.startswith("Traceback") and text.endswith("ValueError: 3\n")
    assert text.count("File ") == 1 and "in refuse" in text


NEEDS = """
from pathlib import Path
Path("was_run").touch()

def double(x, by=2, *, size):
    return x

def free(by=2):
    return by

def replaced(x):
    return x

replaced = free
"""


@pytest.mark.parametrize("place", ["needs.py:double", "needs:double"])
def test_a_function_that_needs_arguments_is_refused_before_anything_runs(
    tzero_command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "needs.py").write_text(NEEDS)
    done = tzero_command("explain", place, code=2)
    assert f"{place} needs arguments: it takes x, size. Give those of a call" in done.stderr
    assert not (tmp_path / "was_run").exists()


@pytest.mark.parametrize("name", ["free", "replaced"])
def test_a_function_that_needs_none_is_not_refused(
    tzero_command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "needs.py").write_text(NEEDS)
    tzero_command("explain", f"needs.py:{name}")
    assert (tmp_path / "was_run").exists()


def test_the_help_says_that_the_file_runs_and_what_a_call_sees(tzero_command: Command) -> None:
    words = " ".join(tzero_command("explain", "-h").stdout.replace("│", " ").split())
    assert "called three times" in words and "The file is run" in words and "device" in words
