"""Failures of the environment: each is an event and a miss, and afterwards the store works again.

==============================  =========================================  ====================
failure                         what the caller sees                       works again when
==============================  =========================================  ====================
directory of another user       one event with the command to fix; misses  it is fixed
others may write                the same                                   the same
read-only                       hits; put is an event                      it is writable
full                            put is an event, no partial file is left   there is space
deleted while in use            a miss                                     the next put
a file at the directory's path  an event                                   the file is gone
I/O error                       an event, a miss                           the error is gone
==============================  =========================================  ====================
"""

from __future__ import annotations

import errno
import logging
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cache.conftest import digest_of
from tests.cache.test_disk import path_of, temporary_files
from tzero.cache.disk import Disk
from tzero.errors import CacheRefused
from tzero.events import Event

MINE, OTHER = digest_of("mine"), digest_of("other")
NOBODY = 65534

as_root = pytest.mark.skipif(
    os.geteuid() != 0, reason="only root can change the owner of a file, or mount"
)


@pytest.fixture
def store(tmp_path: Path) -> Disk:
    store = Disk(tmp_path / "cache")
    store.put(MINE, b"code")
    return store


# Permissions.


def _others(path: Path) -> None:
    path.chmod(0o777)


def _group(path: Path) -> None:
    path.chmod(0o770)


def _other_owner(path: Path) -> None:
    os.chown(path, NOBODY, NOBODY)


def _fix(path: Path) -> None:
    path.chmod(0o700)
    if os.geteuid() == 0:
        os.chown(path, 0, 0)


NOT_PRIVATE = [
    pytest.param(_others, "others may write to it (its mode is 0777)", "chmod go-w", id="others"),
    pytest.param(_group, "others may write to it (its mode is 0770)", "chmod go-w", id="group"),
    pytest.param(_other_owner, "it belongs to user 65534", "chown -R", id="owner", marks=as_root),
]


@pytest.mark.parametrize(("spoil", "problem", "fix"), NOT_PRIVATE)
@pytest.mark.parametrize("where", ["root", "shard"])
def test_a_directory_that_is_not_private_is_not_used_until_fixed(
    store: Disk,
    where: str,
    spoil: Callable[[Path], None],
    problem: str,
    fix: str,
    events: list[Event],
) -> None:
    path = Path(store.root) if where == "root" else path_of(store, MINE).parent
    spoil(path)
    for _ in range(3):
        assert store.get(MINE) is None
        store.put(MINE, b"new")
    (event,) = events
    assert problem in event.reason and f"{fix} " in event.reason and str(path) in event.reason
    for direct in (store.check, store.usage, store.clear, lambda: list(store.verify())):
        with pytest.raises(CacheRefused, match="is not used"):
            direct()
    _fix(path)
    assert store.get(MINE) == b"code"  # the put above wrote nothing
    spoil(path)
    assert store.get(MINE) is None
    assert len(events) == 2
    _fix(path)


@pytest.mark.parametrize(("spoil", "problem", "fix"), NOT_PRIVATE)
def test_an_entry_that_is_not_private_is_a_miss(
    store: Disk, spoil: Callable[[Path], None], problem: str, fix: str, events: list[Event]
) -> None:
    spoil(path_of(store, MINE))
    assert store.get(MINE) is None
    assert problem in events[0].reason
    store.put(MINE, b"code")
    assert store.get(MINE) == b"code"


def test_a_directory_that_others_may_read_is_used(store: Disk, events: list[Event]) -> None:
    os.chmod(store.root, 0o755)
    assert store.get(MINE) == b"code"
    assert events == []


def test_the_target_of_a_link_is_checked(tmp_path: Path, events: list[Event]) -> None:
    real, link = tmp_path / "real", tmp_path / "link"
    real.mkdir(0o700)
    link.symlink_to(real)
    store = Disk(link)
    store.put(MINE, b"code")
    assert store.get(MINE) == b"code"
    assert events == []
    real.chmod(0o777)
    assert store.get(MINE) is None
    assert len(events) == 1


def test_temporary_names_are_unique_and_private(
    store: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[tuple[str, int, int]] = []
    real = os.open

    def opening(path: str, flags: int, mode: int = 0o777, **more: int) -> int:
        if str(path).endswith(".tmp"):
            made.append((path, flags, mode))
        return real(path, flags, mode, **more)

    monkeypatch.setattr(os, "open", opening)
    for _ in range(10):
        store.put(MINE, b"code")
    assert len({path for path, _, _ in made}) == len(made) >= 10
    assert all(flags & os.O_EXCL and mode == 0o600 for _, flags, mode in made)
    assert {os.path.dirname(path) for path, _, _ in made} == {str(path_of(store, MINE).parent)}


# Disks.


def fails_with(number: int) -> Callable[..., int]:
    def failing(*_: object, **__: object) -> int:
        raise OSError(number, os.strerror(number))

    return failing


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS])
@pytest.mark.parametrize("call", ["write", "rename", "open"])
def test_a_failed_write_is_an_event_and_leaves_no_file(
    store: Disk, call: str, number: int, events: list[Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as broken:
        broken.setattr(os, call, fails_with(number))
        store.put(MINE, b"new")
        store.put(OTHER, b"new")
    assert [event.facts["errno"] for event in events] == [number, number]
    assert os.strerror(number) in events[0].reason and "goes on" in events[0].reason
    assert temporary_files(store) == []
    assert store.get(MINE) == b"code"
    assert store.get(OTHER) is None
    store.put(OTHER, b"new")
    assert store.get(OTHER) == b"new"


def test_a_repeated_failure_is_one_warning_in_the_log(
    store: Disk, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with caplog.at_level(logging.DEBUG, "tzero"), monkeypatch.context() as broken:
        broken.setattr(os, "write", fails_with(errno.ENOSPC))
        for each in range(5):
            store.put(digest_of(each), b"new")
    levels = [record.levelno for record in caplog.records]
    assert levels == [logging.WARNING, *[logging.DEBUG] * 4]


def test_partial_writes_are_continued(store: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write
    monkeypatch.setattr(os, "write", lambda file, data: real(file, bytes(data)[:7]))
    store.put(MINE, b"some longer code")
    assert store.get(MINE) == b"some longer code"


def test_partial_reads_are_continued(store: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.read
    monkeypatch.setattr(os, "read", lambda file, size: real(file, min(size, 7)))
    assert store.get(MINE) == b"code"


@pytest.mark.parametrize("call", ["read", "fstat", "open"])
def test_a_failed_read_is_an_event_and_a_miss(
    store: Disk, call: str, events: list[Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as broken:
        broken.setattr(os, call, fails_with(errno.EIO))
        assert store.get(MINE) is None
    assert events[0].facts["errno"] == errno.EIO
    assert store.get(MINE) == b"code"


def test_an_entry_replaced_by_another_machine_is_a_miss_without_event(
    store: Disk, events: list[Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as broken:
        broken.setattr(os, "read", fails_with(errno.ESTALE))
        assert store.get(MINE) is None
    assert events == []


def test_an_interrupted_write_leaves_no_file(store: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> int:
        raise KeyboardInterrupt

    with monkeypatch.context() as broken:
        broken.setattr(os, "write", interrupted)
        with pytest.raises(KeyboardInterrupt):
            store.put(OTHER, b"new")
    assert temporary_files(store) == []


def test_eviction_works_without_file_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Disk(tmp_path, limit=100_000)
    monkeypatch.setattr("fcntl.flock", fails_with(errno.ENOLCK))
    for each in range(20):
        store.put(digest_of(each), bytes(20_000))
    assert store.usage().bytes <= 100_000


@pytest.mark.parametrize("name", ["ledger", "lock"])
def test_eviction_works_if_a_directory_is_in_the_place_of_a_file(tmp_path: Path, name: str) -> None:
    store = Disk(tmp_path, limit=100_000)
    (tmp_path / name).mkdir()
    for each in range(20):
        store.put(digest_of(each), bytes(20_000))
    assert store.usage().bytes <= 100_000


def test_an_entry_that_does_not_fit_into_memory_is_a_miss(store: Disk, events: list[Event]) -> None:
    os.truncate(path_of(store, MINE), 1 << 40)  # no space is used: the file is sparse
    assert store.get(MINE) is None
    (event,) = events
    assert event.facts["damage"] == "extended"
    store.put(MINE, b"code")
    assert store.get(MINE) == b"code"
    events.clear()
    os.truncate(path_of(store, MINE), 1 << 40)
    store.limit = 1 << 50
    assert store.get(MINE) is None
    (event,) = events
    assert event.facts["errno"] == errno.ENOMEM


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB."""
    path = tmp_path / "small disk"
    path.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=256k,mode=700", "tmpfs", str(path)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("mount is not installed")
    if done.returncode:
        pytest.skip(f"a file system cannot be mounted here: {done.stderr.strip()}")
    yield path
    subprocess.run(["umount", str(path)], check=True)


def test_a_full_disk_is_an_event_and_the_store_works_again_with_space(
    mounted: Path, events: list[Event]
) -> None:
    store = Disk(mounted / "cache")
    store.put(MINE, b"code")
    store.put(OTHER, bytes(1 << 20))
    assert store.get(OTHER) is None and store.get(MINE) == b"code"
    (event,) = events
    assert event.facts["errno"] == errno.ENOSPC and "TZERO_CACHE_DIR" in event.reason
    assert temporary_files(store) == []
    store.put(OTHER, bytes(1000))
    assert store.get(OTHER) == bytes(1000)


def test_a_file_system_that_becomes_read_only_still_has_hits(
    mounted: Path, events: list[Event]
) -> None:
    store = Disk(mounted / "cache")
    store.put(MINE, b"code")
    os.utime(path_of(store, MINE), (1, 1))
    subprocess.run(["mount", "-o", "remount,ro", str(mounted)], check=True)
    assert store.get(MINE) == b"code"
    store.put(OTHER, b"new")
    assert {event.facts["errno"] for event in events} == {errno.EROFS}
    subprocess.run(["mount", "-o", "remount,rw", str(mounted)], check=True)
    store.put(OTHER, b"new")
    assert store.get(OTHER) == b"new"


PERMISSIONS = """
import os, sys
os.setgid(65534); os.setuid(65534)
from tzero.cache.disk import Disk
from tzero.events import observe
seen = []
store = Disk(sys.argv[1])
store.put("0" * 64, b"code")
os.chmod(store.root, 0o500)
os.chmod(os.path.join(store.root, "00"), 0o500)
with observe(lambda event: seen.append(event)):
    assert store.get("0" * 64) == b"code"
    store.put("0" * 64, b"new")
    store.put("1" * 64, b"new")
    assert store.get("0" * 64) == b"code" and store.get("1" * 64) is None
assert len(seen) == 2 and "Permission denied" in seen[0].reason, seen
os.chmod(store.root, 0o700)
store.put("1" * 64, b"new")
assert store.get("1" * 64) == b"new"
print("done")
"""


@as_root
def test_a_directory_without_write_permission_still_has_hits() -> None:
    """In a process that is not root, because root may write anywhere."""
    folder = tempfile.mkdtemp()  # other users cannot enter pytest's directories
    try:
        os.chown(folder, NOBODY, NOBODY)
        # Only root may be able to read the interpreter's packages, so import before changing user.
        code = "import tzero.cache.disk, tzero.events, fcntl, errno\n" + PERMISSIONS
        done = subprocess.run(
            [sys.executable, "-c", code, folder + "/cache"],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert done.stdout == "done\n", done.stderr
    finally:
        shutil.rmtree(folder)


@pytest.mark.parametrize("what", ["root", "shard", "entry", "ledger"])
def test_what_is_deleted_while_in_use_is_a_miss_and_is_created_again(
    store: Disk, what: str, events: list[Event]
) -> None:
    path = {
        "root": Path(store.root),
        "shard": path_of(store, MINE).parent,
        "entry": path_of(store, MINE),
        "ledger": Path(store.root, "ledger"),
    }[what]
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert store.get(MINE) == (b"code" if what == "ledger" else None)
    store.put(MINE, b"code")
    assert store.get(MINE) == b"code"
    assert events == []
    assert stat.S_IMODE(os.stat(store.root).st_mode) == 0o700


def test_a_store_deleted_during_a_put_is_an_event(
    store: Disk, events: list[Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.rename

    def too_late(source: str, target: str) -> None:
        shutil.rmtree(store.root)
        real(source, target)

    with monkeypatch.context() as broken:
        broken.setattr(os, "rename", too_late)
        store.put(MINE, b"code")
    assert len(events) == 1
    store.put(MINE, b"code")
    assert store.get(MINE) == b"code"


@pytest.mark.parametrize("where", ["cache", "cache/" + MINE[:2]])
def test_a_file_at_the_path_of_a_directory_is_an_event(
    tmp_path: Path, where: str, events: list[Event]
) -> None:
    path = tmp_path / where
    path.parent.mkdir(mode=0o700, exist_ok=True)
    path.write_text("a file")
    store = Disk(tmp_path / "cache")
    store.put(MINE, b"code")
    assert store.get(MINE) is None
    assert {event.facts["errno"] for event in events} == {errno.ENOTDIR}
    path.unlink()
    store.put(MINE, b"code")
    assert store.get(MINE) == b"code"
