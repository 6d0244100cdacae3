"""What the environment does to a store: each row is an event, a miss, and a store that works again.

==========================  ======================================  =========================
what                        what the caller sees                    afterwards
==========================  ======================================  =========================
someone else's directory    an event with the cure, once; misses    works once it is cured
others may write            the same                                the same
read-only                   hits; put is an event                   works when writable
full                        put is an event, nothing half is left   works when there is room
deleted under us            a miss                                  the next put makes it
a file in the way           an event                                works when it is gone
input/output error          an event, a miss                        works when it ends
==========================  ======================================  =========================
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
from tests.cache.test_disk import left_behind, path_of
from tzero.cache.disk import Disk
from tzero.errors import CacheRefused
from tzero.events import Event

MINE, OTHER = digest_of("mine"), digest_of("other")
NOBODY = 65534

as_root = pytest.mark.skipif(
    os.geteuid() != 0, reason="only root can give a file to someone else, or mount"
)


@pytest.fixture
def store(tmp_path: Path) -> Disk:
    store = Disk(tmp_path / "cache")
    store.put(MINE, b"code")
    return store


# Who may write what we run.


def _others(path: Path) -> None:
    path.chmod(0o777)


def _group(path: Path) -> None:
    path.chmod(0o770)


def _anothers(path: Path) -> None:
    os.chown(path, NOBODY, NOBODY)


def _cured(path: Path) -> None:
    path.chmod(0o700)
    if os.geteuid() == 0:
        os.chown(path, 0, 0)


TAKEN = [
    pytest.param(_others, "others may write to it (its mode is 0777)", "chmod go-w", id="others"),
    pytest.param(_group, "others may write to it (its mode is 0770)", "chmod go-w", id="group"),
    pytest.param(_anothers, "it belongs to user 65534", "chown -R", id="owner", marks=as_root),
]


@pytest.mark.parametrize(("take", "problem", "cure"), TAKEN)
@pytest.mark.parametrize("where", ["root", "shard"])
def test_a_directory_that_is_not_private_is_refused_until_cured(
    store: Disk,
    where: str,
    take: Callable[[Path], None],
    problem: str,
    cure: str,
    told: list[Event],
) -> None:
    path = Path(store.root) if where == "root" else path_of(store, MINE).parent
    take(path)
    for _ in range(3):
        assert store.get(MINE) is None
        store.put(MINE, b"new")
    (event,) = told
    assert problem in event.reason and f"{cure} " in event.reason and str(path) in event.reason
    for direct in (store.check, store.usage, store.clear, lambda: list(store.verify())):
        with pytest.raises(CacheRefused, match="is not used"):
            direct()
    _cured(path)
    assert store.get(MINE) == b"code"  # what was put meanwhile went nowhere
    take(path)
    assert store.get(MINE) is None
    assert len(told) == 2
    _cured(path)


@pytest.mark.parametrize(("take", "problem", "cure"), TAKEN)
def test_an_entry_that_is_not_private_is_a_miss(
    store: Disk, take: Callable[[Path], None], problem: str, cure: str, told: list[Event]
) -> None:
    take(path_of(store, MINE))
    assert store.get(MINE) is None
    assert problem in told[0].reason
    store.put(MINE, b"code")
    assert store.get(MINE) == b"code"


def test_a_directory_that_others_may_read_will_do(store: Disk, told: list[Event]) -> None:
    os.chmod(store.root, 0o755)
    assert store.get(MINE) == b"code"
    assert told == []


def test_a_link_is_judged_by_what_it_leads_to(tmp_path: Path, told: list[Event]) -> None:
    real, link = tmp_path / "real", tmp_path / "link"
    real.mkdir(0o700)
    link.symlink_to(real)
    store = Disk(link)
    store.put(MINE, b"code")
    assert store.get(MINE) == b"code"
    assert told == []
    real.chmod(0o777)
    assert store.get(MINE) is None
    assert len(told) == 1


def test_temporary_names_are_new_each_time(store: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
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


# What happens to disks.


def fails_with(number: int) -> Callable[..., int]:
    def failing(*_: object, **__: object) -> int:
        raise OSError(number, os.strerror(number))

    return failing


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS])
@pytest.mark.parametrize("call", ["write", "rename", "open"])
def test_a_write_that_fails_is_an_event_and_leaves_nothing(
    store: Disk, call: str, number: int, told: list[Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as broken:
        broken.setattr(os, call, fails_with(number))
        store.put(MINE, b"new")
        store.put(OTHER, b"new")
    assert [event.facts["errno"] for event in told] == [number, number]
    assert os.strerror(number) in told[0].reason and "goes on" in told[0].reason
    assert left_behind(store) == []
    assert store.get(MINE) == b"code"
    assert store.get(OTHER) is None
    store.put(OTHER, b"new")
    assert store.get(OTHER) == b"new"


def test_a_failure_that_repeats_is_one_warning_in_the_log(
    store: Disk, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with caplog.at_level(logging.DEBUG, "tzero"), monkeypatch.context() as broken:
        broken.setattr(os, "write", fails_with(errno.ENOSPC))
        for each in range(5):
            store.put(digest_of(each), b"new")
    levels = [record.levelno for record in caplog.records]
    assert levels == [logging.WARNING, *[logging.DEBUG] * 4]


def test_writes_that_are_done_in_parts_are_finished(
    store: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.write
    monkeypatch.setattr(os, "write", lambda file, data: real(file, bytes(data)[:7]))
    store.put(MINE, b"some longer code")
    assert store.get(MINE) == b"some longer code"


def test_reads_that_are_done_in_parts_are_finished(
    store: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.read
    monkeypatch.setattr(os, "read", lambda file, size: real(file, min(size, 7)))
    assert store.get(MINE) == b"code"


@pytest.mark.parametrize("call", ["read", "fstat", "open"])
def test_a_read_that_fails_is_an_event_and_a_miss(
    store: Disk, call: str, told: list[Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as broken:
        broken.setattr(os, call, fails_with(errno.EIO))
        assert store.get(MINE) is None
    assert told[0].facts["errno"] == errno.EIO
    assert store.get(MINE) == b"code"


def test_an_entry_that_another_machine_replaced_is_a_plain_miss(
    store: Disk, told: list[Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as broken:
        broken.setattr(os, "read", fails_with(errno.ESTALE))
        assert store.get(MINE) is None
    assert told == []


def test_an_interrupted_write_leaves_nothing(store: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> int:
        raise KeyboardInterrupt

    with monkeypatch.context() as broken:
        broken.setattr(os, "write", interrupted)
        with pytest.raises(KeyboardInterrupt):
            store.put(OTHER, b"new")
    assert left_behind(store) == []


def test_a_store_without_locks_evicts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Disk(tmp_path, limit=100_000)
    monkeypatch.setattr("fcntl.flock", fails_with(errno.ENOLCK))
    for each in range(20):
        store.put(digest_of(each), bytes(20_000))
    assert store.usage().bytes <= 100_000


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


def test_a_full_disk_is_an_event_and_the_store_works_when_there_is_room(
    mounted: Path, told: list[Event]
) -> None:
    store = Disk(mounted / "cache")
    store.put(MINE, b"code")
    store.put(OTHER, bytes(1 << 20))
    assert store.get(OTHER) is None and store.get(MINE) == b"code"
    (event,) = told
    assert event.facts["errno"] == errno.ENOSPC and "TZERO_CACHE_DIR" in event.reason
    assert left_behind(store) == []
    store.put(OTHER, bytes(1000))
    assert store.get(OTHER) == bytes(1000)


def test_a_file_system_that_turns_read_only_gives_what_it_has(
    mounted: Path, told: list[Event]
) -> None:
    store = Disk(mounted / "cache")
    store.put(MINE, b"code")
    os.utime(path_of(store, MINE), (1, 1))
    subprocess.run(["mount", "-o", "remount,ro", str(mounted)], check=True)
    assert store.get(MINE) == b"code"
    store.put(OTHER, b"new")
    assert {event.facts["errno"] for event in told} == {errno.EROFS}
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
def test_a_directory_without_permission_to_write_gives_what_it_has() -> None:
    """By a process that is not root, which may write anywhere."""
    folder = tempfile.mkdtemp()  # pytest's own directories are closed to others
    try:
        os.chown(folder, NOBODY, NOBODY)
        # The interpreter and its packages may lie where only root can look; what is imported
        # before the change of user is what is needed.
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
def test_what_is_deleted_under_us_is_a_miss_and_is_made_again(
    store: Disk, what: str, told: list[Event]
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
    assert told == []
    assert stat.S_IMODE(os.stat(store.root).st_mode) == 0o700


def test_a_store_deleted_within_a_put_is_an_event_at_worst(
    store: Disk, told: list[Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.rename

    def too_late(source: str, target: str) -> None:
        shutil.rmtree(store.root)
        real(source, target)

    with monkeypatch.context() as broken:
        broken.setattr(os, "rename", too_late)
        store.put(MINE, b"code")
    assert len(told) == 1
    store.put(MINE, b"code")
    assert store.get(MINE) == b"code"


@pytest.mark.parametrize("where", ["cache", "cache/" + MINE[:2]])
def test_a_file_in_the_way_is_an_event(tmp_path: Path, where: str, told: list[Event]) -> None:
    path = tmp_path / where
    path.parent.mkdir(mode=0o700, exist_ok=True)
    path.write_text("a file")
    store = Disk(tmp_path / "cache")
    store.put(MINE, b"code")
    assert store.get(MINE) is None
    assert {event.facts["errno"] for event in told} == {errno.ENOTDIR}
    path.unlink()
    store.put(MINE, b"code")
    assert store.get(MINE) == b"code"
