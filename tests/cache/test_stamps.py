"""Digests of files: computed again exactly if a file was changed, replaced, added or removed."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tzero.adapters import triton_compile
from tzero.cache import stamps
from tzero.cache.disk import Disk
from tzero.settings import Settings

WHEN = time.time_ns() - 3600 * 10**9


class Counted:
    """A digest of all files of a folder, with a count of how often it was computed."""

    def __init__(self, folder: Path, disk: Disk | None) -> None:
        self.folder = folder
        self.disk = disk
        self.count = 0

    def _compute(self) -> str:
        self.count += 1
        return " ".join(path.read_text() for path in sorted(self.folder.iterdir()))

    def __call__(self) -> str:
        return stamps.remembered("texts", map(str, self.folder.iterdir()), self._compute, self.disk)


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Counted:
    # New files are settled at once: their change time cannot be set back.
    monkeypatch.setattr(stamps, "SETTLED", -1.0)
    folder = tmp_path / "files"
    folder.mkdir()
    for name in ("a", "b"):
        (folder / name).write_text(name)
        os.utime(folder / name, ns=(WHEN, WHEN))
    return Counted(folder, Disk(tmp_path / "store"))


def test_a_digest_is_computed_once(files: Counted) -> None:
    assert files() == files() == "a b"
    assert files.count == 1


def _same_size_and_time(folder: Path) -> None:
    time.sleep(0.02)  # a tick of the file system's clock
    (folder / "a").write_text("c")
    os.utime(folder / "a", ns=(WHEN, WHEN))


def _replaced(folder: Path) -> None:
    other = folder.parent / "other"
    other.write_text("c")
    os.utime(other, ns=(WHEN, WHEN))
    os.rename(other, folder / "a")


def _added(folder: Path) -> None:
    (folder / "c").write_text("c")


def _removed(folder: Path) -> None:
    (folder / "b").unlink()


def _swapped(folder: Path) -> None:
    os.rename(folder / "a", folder / "c")
    os.rename(folder / "b", folder / "a")
    os.rename(folder / "c", folder / "b")


@pytest.mark.parametrize("change", [_same_size_and_time, _replaced, _added, _removed, _swapped])
def test_a_change_is_noticed(files: Counted, change: Callable[[Path], None]) -> None:
    before = files()
    change(files.folder)
    assert files() != before
    assert files.count == 2


def test_a_file_that_was_just_written_is_not_remembered(
    files: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stamps, "SETTLED", 3600.0)
    assert files() == files() == "a b"
    assert files.count == 2


def test_a_change_while_the_digest_is_computed_is_not_remembered(files: Counted) -> None:
    compute = files._compute

    def changing() -> str:
        found = compute()
        _replaced(files.folder)
        return found

    files._compute = changing  # type: ignore[method-assign]
    assert files() == "a b"
    files._compute = compute  # type: ignore[method-assign]
    assert files() == "c b"


def test_a_damaged_digest_is_computed_again(files: Counted) -> None:
    files()
    assert files.disk is not None
    for path in Path(files.disk.root).glob("??/*"):
        path.write_bytes(path.read_bytes()[:-1] + b"x")
    assert files() == "a b"
    assert files.count == 2


def test_without_a_cache_the_digest_is_computed_each_time(files: Counted) -> None:
    files.disk = stamps.store(Settings(cache=False))
    assert files() == files() == "a b"
    assert files.count == 2


def test_every_file_that_triton_hashes_is_stamped(monkeypatch: pytest.MonkeyPatch) -> None:
    import builtins

    opened: set[str] = set()
    original = builtins.open

    def noted(path: str, mode: str = "r") -> object:
        if mode == "rb":
            opened.add(os.path.realpath(path))
        return original(path, mode)

    monkeypatch.setattr(triton_compile.cache, "open", noted, raising=False)
    computed = triton_compile._compute_digest()
    assert computed == triton_compile.compiler_digest()
    assert len(opened) > 20 and any("libtriton" in each for each in opened)
    assert opened <= {os.path.realpath(each) for each in triton_compile._compiler_files()}


def test_a_second_process_does_not_read_the_compiler(tmp_path: Path) -> None:
    import subprocess
    import sys

    program = (
        "from tzero.adapters import triton_compile as t\n"
        "reads, compute = [], t.cache.triton_key\n"
        "t._compute_digest = lambda: reads.append(1) or compute()\n"
        "print(t.compiler_digest() == compute(), len(reads), t.cache.triton_key() == compute())\n"
    )
    variables = {**os.environ, "TZERO_CACHE_DIR": str(tmp_path), "TZERO_CPU": "1"}
    variables["PYTHONPATH"] = os.pathsep.join(sys.path)
    said = [
        subprocess.run(
            [sys.executable, "-c", program], env=variables, capture_output=True, check=True
        ).stdout.split()
        for _ in range(2)
    ]
    assert said == [[b"True", b"1", b"True"], [b"True", b"0", b"True"]]
