"""The store on disk: entries are returned, damage is a miss, and eviction is by last use."""

from __future__ import annotations

import errno
import os
import stat
import time
from pathlib import Path

import pytest

from tests.cache.conftest import digest_of
from tzero.cache.disk import FRESH, Disk
from tzero.cache.entry import HEADER, derived, seal
from tzero.events import Event

MINE, OTHER = digest_of("mine"), digest_of("other")


@pytest.fixture
def store(tmp_path: Path) -> Disk:
    return Disk(tmp_path / "cache")


def path_of(store: Disk, digest: str) -> Path:
    return Path(store.root, digest[:2], digest)


def temporary_files(store: Disk) -> list[Path]:
    return [path for path in Path(store.root).rglob(".*") if path.suffix == ".tmp"]


def test_get_returns_what_was_put(store: Disk, events: list[Event]) -> None:
    assert store.get(MINE) is None
    store.put(MINE, b"code")
    store.put(OTHER, b"")
    assert store.get(MINE) == b"code"
    assert Disk(store.root).get(OTHER) == b""
    assert events == []
    assert temporary_files(store) == []


def test_a_miss_makes_no_directory(store: Disk) -> None:
    store.get(MINE)
    assert not os.path.exists(store.root)


def test_a_second_put_replaces_the_first(store: Disk) -> None:
    store.put(MINE, b"one")
    store.put(MINE, b"two")
    assert store.get(MINE) == b"two"
    assert store.usage().entries == 1


def test_all_files_and_directories_are_created_private(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        store = Disk(tmp_path / "a" / "b" / "cache")
        store.put(MINE, b"code")
    finally:
        os.umask(before)
    for path in (tmp_path / "a").rglob("*"):
        mode = stat.S_IMODE(path.stat().st_mode)
        assert mode == (0o700 if path.is_dir() else 0o600), path
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o700


@pytest.mark.parametrize("name", ["with spaces", "ünïcödé 核", "new\nline", "a" * 200, "-rf"])
def test_any_path_works(tmp_path: Path, name: str, events: list[Event]) -> None:
    store = Disk(tmp_path / name / "cache")
    store.put(MINE, b"code")
    assert store.get(MINE) == b"code"
    assert events == []


def test_a_relative_path_is_resolved_when_the_store_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    store = Disk("cache")
    monkeypatch.chdir("/")
    store.put(MINE, b"code")
    assert (tmp_path / "cache" / MINE[:2] / MINE).exists()


DAMAGES = {
    "magic": lambda data: b"X" + data[1:],
    "older schema": lambda data: data[:8] + b"\0\0" + data[10:],
    "newer schema": lambda data: data[:8] + b"\xff\xff" + data[10:],
    "flags": lambda data: data[:10] + b"\xff\xff" + data[12:],
    "request": lambda data: seal(b"code", OTHER),
    "length": lambda data: data[:44] + b"\xff" * 8 + data[52:],
    "sha256": lambda data: data[:52] + bytes(32) + data[84:],
    "mac": lambda data: data[:84] + b"\1" * 32 + data[116:],
    "sealed with a key": lambda data: seal(b"code", MINE, derived("key")),
    "payload start": lambda data: data[:116] + b"X" + data[117:],
    "payload end": lambda data: data[:-1] + b"X",
    "empty": lambda data: b"",
    "cut in the header": lambda data: data[:50],
    "cut after the header": lambda data: data[: HEADER.size],
    "cut in the payload": lambda data: data[:-1],
    "extended": lambda data: data + b"\0",
    "zeros, as after a power failure": lambda data: bytes(len(data)),
    "something else": lambda data: b"\x7fELF" * 100,
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_entry_is_a_miss_with_an_event_and_is_replaced(
    store: Disk, damage: str, events: list[Event]
) -> None:
    store.put(MINE, b"code")
    path = path_of(store, MINE)
    path.write_bytes(DAMAGES[damage](path.read_bytes()))
    assert store.get(MINE) is None
    (event,) = events
    assert event.kind == "cache" and "is not used" in event.reason
    assert event.facts["path"] == str(path) and event.facts["digest"] == MINE
    assert not path.exists()
    store.put(MINE, b"code")
    assert store.get(MINE) == b"code"
    assert len(events) == 1


def test_a_small_entry_cut_at_any_length_is_a_miss(store: Disk) -> None:
    store.put(MINE, b"code")
    path = path_of(store, MINE)
    whole = path.read_bytes()
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        assert store.get(MINE) is None
    path.write_bytes(whole)
    path.chmod(0o600)
    assert store.get(MINE) == b"code"


@pytest.mark.parametrize("what", ["link", "directory", "pipe"])
def test_only_regular_files_are_read(store: Disk, what: str, events: list[Event]) -> None:
    store.put(MINE, b"code")
    path = path_of(store, MINE)
    elsewhere = path.rename(path.parent / "elsewhere")
    if what == "link":
        path.symlink_to(elsewhere)
    elif what == "directory":
        path.mkdir(0o700)
    else:
        os.mkfifo(path, 0o600)
    assert store.get(MINE) is None
    assert events[0].facts["damage"] == "foreign"
    if what == "directory":
        assert "could not be removed" in events[0].reason
    else:
        store.put(MINE, b"code")
        assert store.get(MINE) == b"code"


# Eviction.


def fill(store: Disk, count: int, size: int = 100_000) -> list[str]:
    """Put entries, the first of which was used least recently."""
    digests = [digest_of(("fill", each)) for each in range(count)]
    for age, digest in enumerate(reversed(digests)):
        store.put(digest, os.urandom(size))
        when = time.time() - 10 * FRESH - age
        os.utime(path_of(store, digest), (when, when))
    return digests


def kept(store: Disk, digests: list[str]) -> list[bool]:
    return [path_of(store, digest).exists() for digest in digests]


def test_the_least_recently_used_is_evicted_first(tmp_path: Path) -> None:
    store = Disk(tmp_path, limit=1_000_000)
    digests = fill(store, 9)
    store.put(MINE, bytes(100_000))
    assert kept(store, digests) == [False, False, *[True] * 7]
    assert store.get(MINE) is not None
    assert store.usage().bytes <= 1_000_000


def test_get_counts_as_a_use(tmp_path: Path) -> None:
    store = Disk(tmp_path, limit=1_000_000)
    digests = fill(store, 9)
    assert store.get(digests[0]) is not None
    store.put(MINE, bytes(100_000))
    assert kept(store, digests) == [True, False, False, *[True] * 6]


def test_use_is_recorded_once_an_hour(store: Disk) -> None:
    store.put(MINE, b"code")
    path = path_of(store, MINE)
    for age, recorded in ((FRESH / 2, False), (FRESH * 2, True), (-FRESH * 2, True)):
        when = time.time() - age
        os.utime(path, (when, when))
        before = path.stat().st_mtime
        store.get(MINE)
        assert (path.stat().st_mtime != before) == recorded
    assert abs(path.stat().st_mtime - time.time()) < FRESH


def test_the_store_is_not_counted_for_each_put(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = []
    real = Disk.evict
    monkeypatch.setattr(Disk, "evict", lambda self: counted.append(1) or real(self))
    store = Disk(tmp_path, limit=1_000_000)
    for each in range(100):
        store.put(digest_of(each), bytes(1000))
    assert len(counted) == 1  # the first put finds no ledger
    for each in range(100):
        Disk(tmp_path, limit=1_000_000).put(digest_of(each), bytes(20_000))
    assert 2 <= len(counted) <= 30


def test_a_hit_lists_no_directory(store: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    store.put(MINE, b"code")

    def listing(*_: object) -> None:
        raise AssertionError("a directory was listed")

    monkeypatch.setattr(os, "scandir", listing)
    monkeypatch.setattr(os, "listdir", listing)
    assert store.get(MINE) == b"code"
    assert store.get(OTHER) is None


@pytest.mark.parametrize("text", [b"", b"what?" * 50, b"tzero ledger 1 5 0".ljust(63) + b"\n"])
def test_an_invalid_ledger_is_replaced(tmp_path: Path, text: bytes) -> None:
    store = Disk(tmp_path, limit=1_000_000)
    fill(store, 9)
    (tmp_path / "ledger").write_bytes(text)
    store.put(MINE, bytes(200_000))
    assert store.usage().bytes <= 1_000_000
    assert (tmp_path / "ledger").read_bytes().startswith(b"tzero ledger 1 ")


def test_eviction_goes_on_past_what_cannot_be_removed(tmp_path: Path, events: list[Event]) -> None:
    store = Disk(tmp_path, limit=1_000_000)
    digests = fill(store, 9)
    stuck, temporary = path_of(store, digests[0]), tmp_path / f".ledger.{'a' * 32}.tmp"
    stuck.unlink()
    for path in (stuck, temporary):  # directories, which cannot be unlinked
        path.mkdir()
        os.utime(path, (1, 1))
    store.put(digests[-1], bytes(200_000))
    store.put(MINE, bytes(100_000))
    assert kept(store, digests) == [True, False, False, *[True] * 6]
    assert stuck.is_dir() and temporary.is_dir()
    assert store.get(MINE) is not None
    named = [path for path in (stuck, temporary) if any(str(path) in e.reason for e in events)]
    assert named == [stuck, temporary]


def test_verify_goes_on_past_what_cannot_be_removed(tmp_path: Path) -> None:
    store = Disk(tmp_path)
    digests = fill(store, 2)
    for digest in digests:
        path_of(store, digest).unlink()
    path_of(store, digests[0]).mkdir()
    path_of(store, digests[1]).write_bytes(b"damaged")
    found = {each.digest: each.problem or "" for each in store.verify(remove=True)}
    assert "could not be removed" in found[digests[0]]
    assert not path_of(store, digests[1]).exists()


def test_only_one_evicts_at_a_time(tmp_path: Path) -> None:
    store = Disk(tmp_path, limit=1_000_000)
    digests = fill(store, 9)
    with store._evict_lock() as ours:
        assert ours
        store.put(MINE, bytes(200_000))
        assert all(kept(store, digests))
    store.put(MINE, bytes(200_000))
    assert not all(kept(store, digests))


def test_an_entry_that_fills_the_cache_stays(tmp_path: Path, events: list[Event]) -> None:
    store = Disk(tmp_path, limit=1_000_000)
    digests = fill(store, 5)
    store.put(MINE, bytes(990_000))
    assert store.get(MINE) is not None
    assert not any(kept(store, digests))
    assert events == []


def test_an_entry_larger_than_the_cache_is_not_kept(tmp_path: Path, events: list[Event]) -> None:
    store = Disk(tmp_path, limit=1_000_000)
    digests = fill(store, 5)
    store.put(MINE, bytes(1_000_000))
    assert store.get(MINE) is None
    assert all(kept(store, digests))
    assert "TZERO_CACHE_LIMIT" in events[0].reason


def test_files_of_dead_writers_are_removed_and_foreign_files_are_not(tmp_path: Path) -> None:
    store = Disk(tmp_path)
    store.put(MINE, b"code")
    shard = path_of(store, MINE).parent
    dead, alive = (shard / f".{MINE}.{each * 32}.tmp" for each in "ab")
    ledger = tmp_path / f".ledger.{'c' * 32}.tmp"
    others = [shard / "notes.txt", tmp_path / "README", shard / ".hidden.tmp"]
    for path in (dead, alive, ledger, *others):
        path.write_bytes(b"half")
        if path is not alive:
            os.utime(path, (1, 1))
    assert store.usage().temporary == 3
    store.evict()
    assert not dead.exists() and not ledger.exists()
    assert alive.exists() and all(path.exists() for path in others)
    store.clear()
    assert not alive.exists() and all(path.exists() for path in others)


# Maintenance.


def test_usage_counts_entries(store: Disk) -> None:
    assert store.usage().oldest is None
    store.put(MINE, b"code")
    store.put(OTHER, b"more code")
    os.utime(path_of(store, MINE), (1000, 1000))
    usage = store.usage()
    assert (usage.entries, usage.bytes) == (2, 2 * HEADER.size + 13)
    assert usage.oldest == 1000 and usage.newest is not None and usage.newest > 1000


def test_clear_removes_everything(store: Disk) -> None:
    for each in range(20):
        store.put(digest_of(each), b"code")
    assert store.clear().entries == 20
    assert os.listdir(store.root) == []
    store.put(MINE, b"code")
    assert store.get(MINE) == b"code"


def test_verify_lists_damaged_entries_and_does_not_count_as_use(store: Disk) -> None:
    store.put(MINE, b"code")
    store.put(OTHER, b"code")
    path = path_of(store, MINE)
    path.write_bytes(path.read_bytes()[:-1])
    os.utime(path_of(store, OTHER), (1000, 1000))
    found = {each.digest: each.problem for each in store.verify()}
    assert found[OTHER] is None and str(found[MINE]).startswith("torn")
    assert path.exists()
    assert store.usage().oldest == 1000
    list(store.verify(remove=True))
    assert [each.digest for each in store.verify()] == [OTHER]


def test_of_two_that_keep_a_payload_the_first_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, digest = Disk(tmp_path / "cache"), "5f" * 32
    assert store.keep(digest, b"first") == b"first"
    assert Disk(tmp_path / "cache").keep(digest, b"second") == b"first" == store.get(digest)
    path = tmp_path / "cache" / digest[:2] / digest
    path.write_bytes(b"damaged")
    assert store.keep(digest, b"third") == b"third" == store.get(digest)
    assert store.put(digest, b"replaced") and store.get(digest) == b"replaced"
    assert Disk(tmp_path / "small", limit=10).keep(digest, bytes(100)) is None

    def no_links(source: str, target: str) -> None:
        raise OSError(errno.EPERM, "no links here")

    monkeypatch.setattr(os, "link", no_links)
    assert store.keep(digest, b"fourth") == b"replaced"
    assert store.keep("6e" * 32, b"other") == b"other"
    assert store.usage().temporary == 0
