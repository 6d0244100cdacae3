"""Programs in forked processes see what they would see in new ones."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import warm

ROOT = Path(__file__).parents[2]
Run = Callable[..., "subprocess.CompletedProcess[str]"]

SEEN = """
import os, sys
import __main__
print(__name__, __main__.__dict__ is globals(), sys.argv, sys.path[0], os.getcwd())
print({n: repr(globals().get(n)) for n in ("__file__", "__package__")}, bool(__spec__))
print(os.environ.get("GIVEN"), os.environ.get("HOME"), "tests" in sys.modules)
print(sys.stdin.read(), sys.stdout.isatty(), sys.flags.optimize)
print([each for each in sys.path if each == os.environ.get("PYTHONPATH")])
def annotated(x: int): ...
print(annotated.__annotations__, file=sys.stderr)
"""


def fresh(command: list[str], **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, **options)  # type: ignore[call-overload, no-any-return]


@pytest.mark.parametrize("way", ["text", "file", "module"])
def test_a_program_sees_what_it_sees_in_a_new_process(way: str, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(SEEN)
    ways = {
        "text": ["-c", SEEN],
        "file": [str(tmp_path / "program.py")],
        "module": ["-m", "program"],
    }
    command = [sys.executable, *ways[way], "-x", "y"]
    env = {**os.environ, "GIVEN": "1", "PYTHONPATH": str(tmp_path / "none")}
    env.pop("HOME", None)
    ours, theirs = (run(command, cwd=tmp_path, env=env, input="words") for run in (warm.run, fresh))
    assert (ours.stdout, ours.stderr) == (theirs.stdout, theirs.stderr)
    assert ours.args == theirs.args and ours.returncode == theirs.returncode == 0
    assert "__main__ True" in ours.stdout


ENDS = {
    "an exit code": "import sys; sys.exit(3)",
    "words": "import sys; sys.exit('words')",
    "handlers at exit": "import atexit; atexit.register(print, 'last', flush=True)",
    "a thread": "import threading; threading.Timer(0.05, print, ['late']).start()",
    "a signal": "import os; os.kill(os.getpid(), 9)",
    "no flush": "import os; print('lost'); os._exit(4)",
    "a fork": "import os; os.fork() and os.wait(); print('twice')",
}


@pytest.mark.parametrize("text", ENDS.values(), ids=ENDS)
def test_a_program_ends_as_a_new_process_does(text: str) -> None:
    command = [sys.executable, "-c", text]
    ours, theirs = (run(command) for run in (warm.run, fresh))
    assert (ours.returncode, ours.stdout, ours.stderr) == (
        *(theirs.returncode, theirs.stdout, theirs.stderr),
    )


def test_an_exception_is_shown_and_the_next_program_knows_nothing_of_it() -> None:
    done = warm.run([sys.executable, "-c", "import torch; torch.mine = 1; raise ValueError('no')"])
    assert done.returncode == 1 and done.stderr.endswith("ValueError: no\n")
    done = warm.run([sys.executable, "-c", "import torch; print(hasattr(torch, 'mine'))"])
    assert done.stdout == "False\n"


def test_settings_are_read_in_the_program() -> None:
    code = "from tzero import settings; print(settings.current().tier, settings.current().verify)"
    for tier in ("0", "1"):
        env = {**os.environ, "TZERO_TIER": tier, "TZERO_VERIFY": "1"}
        assert warm.run([sys.executable, "-c", code], env=env).stdout == f"{tier} True\n"


def test_a_variable_that_is_read_at_the_start_is_refused() -> None:
    with pytest.raises(AssertionError, match="PYTHONHASHSEED is read at the start"):
        warm.run([sys.executable, "-c", ""], env={**os.environ, "PYTHONHASHSEED": "77"})


def test_a_program_that_hangs_is_killed_and_the_next_one_runs() -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        warm.run([sys.executable, "-c", "import time; time.sleep(1000)"], timeout=0.2)
    assert warm.run([sys.executable, "-c", "print(1)"]).stdout == "1\n"
