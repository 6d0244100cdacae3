"""`tzero cache`: what it prints, and its exit codes."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from tests.cache.conftest import digest_of
from tests.cache.test_disk import path_of
from tzero.cache.disk import Disk
from tzero.cli import app


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Disk:
    for name in [name for name in os.environ if name.startswith("TZERO_")]:
        monkeypatch.delenv(name)
    root = tmp_path / "cache [red] ü"
    monkeypatch.setenv("TZERO_CACHE_DIR", str(root))
    return Disk(root)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["cache", *arguments])


def facts(*arguments: str, code: int = 0) -> dict[str, object]:
    done = run(*arguments, "--json")
    assert done.exit_code == code, done.output
    found = json.loads(done.stdout)
    assert isinstance(found, dict)
    return found


def test_stats_of_an_empty_cache(store: Disk) -> None:
    found = facts("stats")
    assert found["entries"] == found["bytes"] == 0 and found["oldest"] is None
    text = run("stats").stdout
    assert "never" in text and "never to never" not in text


def test_stats_show_size_and_location(store: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    store.put(digest_of(1), bytes(5000))
    store.put(digest_of(2), bytes(5000))
    monkeypatch.setenv("TZERO_CACHE_LIMIT", "7")
    found = facts("stats")
    assert (found["entries"], found["bytes"]) == (2, 10_232)
    assert (found["limit"], found["location"]) == (7 << 20, store.root)
    text = run("stats").stdout
    assert store.root in text and "10.0 KiB of 7.0 MiB" in text


def test_stats_show_that_the_cache_is_off(store: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZERO_CACHE", "0")
    assert facts("stats")["on"] is False
    assert "TZERO_CACHE=0" in run("stats").stdout


def test_stats_show_the_remote_without_secrets(
    store: Disk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZERO_REMOTE_CACHE", "memory://me:hunter2@there")
    assert "NOT authenticated" in run("stats").stdout
    monkeypatch.setenv("TZERO_CACHE_KEY", "hunter2")
    done = run("stats")
    assert "memory://there (authenticated)" in done.stdout and "hunter2" not in done.stdout
    assert facts("stats")["remote"] == {
        "url": "memory://there",
        "authenticated": True,
        "problem": None,
    }


def test_stats_show_why_a_remote_does_not_reply(
    store: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZERO_REMOTE_CACHE", "what://is/this")
    assert "what" in run("stats").stdout
    remote = facts("stats")["remote"]
    assert isinstance(remote, dict) and "what" in remote["problem"]


def test_clear_removes_all_entries(store: Disk) -> None:
    store.put(digest_of(1), b"code")
    assert facts("clear")["entries"] == 1
    assert store.get(digest_of(1)) is None
    assert "0 entries" in run("clear").stdout


def test_verify_reports_damage_in_its_exit_code(store: Disk) -> None:
    store.put(digest_of(1), b"code")
    store.put(digest_of(2), b"code")
    assert facts("verify")["damaged"] == []
    path = path_of(store, digest_of(2))
    path.write_bytes(path.read_bytes()[:-1])
    (damaged,) = facts("verify", code=1)["damaged"]  # type: ignore[misc]
    assert damaged["digest"] == digest_of(2)
    text = run("verify").stdout
    assert digest_of(2)[:12] in text and "torn" in text
    assert facts("verify", "--remove", code=1)["removed"] is True
    assert facts("verify")["entries"] == 1


@pytest.mark.parametrize("command", ["stats", "clear", "verify"])
def test_a_cache_that_is_not_private_is_rejected_with_a_fix(store: Disk, command: str) -> None:
    store.put(digest_of(1), b"code")
    os.chmod(store.root, 0o777)
    done = run(command)
    assert done.exit_code == 3
    assert "chmod go-w" in done.stderr and done.stdout == ""
    os.chmod(store.root, 0o700)
    assert store.get(digest_of(1)) == b"code"


@pytest.mark.parametrize("command", ["stats", "clear", "verify"])
def test_an_unreadable_cache_has_exit_code_3(store: Disk, command: str) -> None:
    Path(store.root).write_text("a file")
    assert run(command).exit_code == 3


def test_an_invalid_setting_has_exit_code_2(store: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZERO_CACHE_LIMIT", "much")
    done = run("stats")
    assert done.exit_code == 2 and "TZERO_CACHE_LIMIT" in done.stderr


def test_an_unknown_command_has_exit_code_2(store: Disk) -> None:
    assert run("frobnicate").exit_code == 2
