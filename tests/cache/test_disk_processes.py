"""Many processes use one store: a reader sees a complete entry or none."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cache.conftest import digest_of
from tests.cache.test_disk import temporary_files
from tzero.cache.disk import Disk

# A separate, small process, so that forking it two hundred times is cheap. Writers wait for a pipe
# to be closed, so that all begin at once. Readers read until the last writer is done. A child that
# fails has exit code 1.
CROWD = """
import os, sys, traceback
from tzero.cache.disk import Disk
from tzero.events import observe

root, writers, readers, limit = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
digest = "%064x" % 7

def payload(who):
    return bytes([who % 256]) * (20_000 + who)

def fail(event):
    raise AssertionError(str(event))

def child(work):
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        with observe(fail):
            work()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)

go, start = os.pipe()
ended, end = os.pipe()
os.set_blocking(ended, False)

def write(who):
    def work():
        os.close(start)
        os.read(go, 1)
        store = Disk(root, limit)
        for round in range(3):
            store.put(digest, payload(who))
            store.put("%064x" % (1000 + who), payload(who))
    return work

def read():
    os.close(start)
    os.close(end)
    store, seen = Disk(root, limit), 0
    known = {payload(who) for who in range(writers)}
    while True:
        found = store.get(digest)
        assert found is None or found in known, (len(found), found[:1])
        seen += found is not None
        try:
            if os.read(ended, 1) == b"" and seen:
                return
        except BlockingIOError:
            pass

writing = [child(write(who)) for who in range(writers)]
reading = [child(read) for _ in range(readers)]
os.close(start)
codes = [os.waitpid(pid, 0)[1] for pid in writing]
if limit < 1 << 30:
    Disk(root, limit).put(digest, payload(0))  # it may have been evicted last
os.close(end)
codes += [os.waitpid(pid, 0)[1] for pid in reading]
found = Disk(root, limit).get(digest)
assert found in {payload(who) for who in range(writers)}
assert not any(codes), codes
print("done")
"""


@pytest.mark.parametrize("limit", [1 << 30, 1 << 20], ids=["within the limit", "evicting"])
def test_readers_beside_two_hundred_writers_see_complete_entries(
    tmp_path: Path, limit: int
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CROWD, str(tmp_path / "cache"), "200", "4", str(limit)],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.stdout == "done\n", done.stderr[-3000:]
    store = Disk(tmp_path / "cache", limit)
    assert temporary_files(store) == []
    assert all(each.problem is None for each in store.verify())
    store.put(digest_of("next"), b"code")
    assert store.get(digest_of("next")) == b"code"
    if limit == 1 << 30:
        assert store.usage().entries == 202
    else:
        store.evict()
        assert store.usage().bytes <= limit


KILLED = """
import os, sys
from tzero.cache.disk import Disk
real = os.write
def write(file, data):
    if len(data) > 1000:
        real(file, bytes(data)[:1000])
        os.kill(os.getpid(), 9)
    return real(file, data)
os.write = write
Disk(sys.argv[1]).put("0" * 64, bytes(10_000))
"""


def test_a_writer_killed_during_a_write_leaves_the_old_entry(tmp_path: Path) -> None:
    store = Disk(tmp_path)
    store.put("0" * 64, b"old")
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], check=False, timeout=60)
    assert done.returncode == -9
    assert store.get("0" * 64) == b"old"
    (half,) = temporary_files(store)
    os.utime(half, (1, 1))
    store.evict()
    assert temporary_files(store) == []
