"""`tzero cache ls` and `prune`, and the version."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.cache.conftest import digest_of
from tests.cache.test_disk import path_of
from tests.commands.conftest import Command, facts
from tzero import versions
from tzero.cache.disk import Disk
from tzero.compile.request import Artifact

DAY = 86400


@pytest.fixture
def store(tmp_path: Path) -> Disk:
    store = Disk(tmp_path / "cache")
    kernel = {"kernel": "add\nroot", "metadata": {"target": {"backend": "cuda", "arch": 90}}}
    store.put(digest_of(1), Artifact({"add.so": bytes(2 << 20)}, kernel).encode())
    store.put(digest_of(2), b"{}")
    store.put(digest_of(3), b"torn")
    path_of(store, digest_of(3)).write_bytes(b"torn")
    for number, days in ((1, 1), (2, 5), (3, 40)):
        then = time.time() - days * DAY
        os.utime(path_of(store, digest_of(number)), (then, then))
    return store


def test_entries_are_listed_with_name_and_target_the_latest_first(
    tzero_command: Command, store: Disk
) -> None:
    found = facts(tzero_command("cache", "ls", "--json"))
    assert [each["kernel"] for each in found] == ["add\\nroot", "(a tuned result)", "(damaged)"]
    assert found[0]["target"] == "cuda:90" and found[0]["digest"] == digest_of(1)
    assert "add\\nroot" in tzero_command("cache", "ls").stdout
    assert next(store.kept()).used < time.time() - DAY / 2, "looking at an entry is no use of it"


def test_entries_that_were_not_used_for_long_are_pruned(
    tzero_command: Command, store: Disk
) -> None:
    assert facts(tzero_command("cache", "prune", "--days", "30", "--json"))["entries"] == 1
    assert [each.digest for each in store.kept()] == [digest_of(1), digest_of(2)]


def test_the_least_recently_used_entries_are_pruned_down_to_a_size(
    tzero_command: Command, store: Disk
) -> None:
    assert facts(tzero_command("cache", "prune", "--size", "3", "--json"))["entries"] == 0
    assert facts(tzero_command("cache", "prune", "--size", "1", "--json"))["entries"] == 3
    assert list(store.kept()) == []


def test_prune_wants_to_be_told_what(tzero_command: Command, store: Disk) -> None:
    assert "--days" in tzero_command("cache", "prune", code=2).stderr
    assert len(list(store.kept())) == 3


def test_the_version_is_printed(tzero_command: Command) -> None:
    assert tzero_command("--version").stdout == f"tzero {versions.TZERO}\n"
    assert "doctor" in tzero_command("-h").stdout
