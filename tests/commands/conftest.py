"""Runs commands in this process, with an environment that has no settings but the CPU's."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Protocol

import pytest
from typer.testing import CliRunner, Result

from tzero.cli import app


class Command(Protocol):
    """Runs a command; its result must have the exit code that is expected."""

    def __call__(self, *arguments: str, code: int = 0) -> Result: ...


@pytest.fixture
def tzero_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    for name in [name for name in os.environ if name.startswith("TZERO_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("TZERO_CPU", "1")
    monkeypatch.setenv("TZERO_CACHE_DIR", str(tmp_path / "cache"))

    def run(*arguments: str, code: int = 0) -> Result:
        done = CliRunner().invoke(app, list(arguments))
        assert done.exit_code == code, f"{done.output}\n{done.exception!r}"
        return done

    return run


def facts(done: Result) -> Any:
    return json.loads(done.stdout)
