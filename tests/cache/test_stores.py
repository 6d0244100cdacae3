"""The layers combined, and how settings choose them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cache.conftest import digest_of, where
from tzero.cache import Layers, stores
from tzero.cache.disk import Disk
from tzero.cache.remote import Remote
from tzero.cache.store import location
from tzero.settings import Settings

MINE = digest_of("mine")


def test_the_disk_is_read_first(tmp_path: Path) -> None:
    layers = Layers(Disk(tmp_path), Remote(f"memory://{tmp_path}", "key"))
    assert layers.get(MINE) is None
    layers.put(MINE, b"code")
    assert layers.flush(60)
    assert where(layers.get(MINE)) == (b"code", "disk")
    assert layers.disk is not None and layers.remote is not None
    layers.disk.clear()
    assert where(layers.get(MINE)) == (b"code", "remote")
    assert where(layers.get(MINE)) == (b"code", "disk")


def test_what_was_fetched_is_used_only_with_the_key_it_was_verified_with(tmp_path: Path) -> None:
    disk, url = Disk(tmp_path / "disk"), f"memory://{tmp_path}"

    def layers(key: str | None, url: str = url) -> Layers:
        return Layers(disk, Remote(url, key))

    attacker = Remote(url, None)
    attacker.put(MINE, b"attack")
    assert attacker.flush(60)
    assert where(layers(None).get(MINE)) == (b"attack", "remote")
    assert where(layers(None).get(MINE)) == (b"attack", "disk")
    assert layers("key").get(MINE) is None  # a key was set
    assert layers(None, f"memory://{tmp_path}/other").get(MINE) is None  # another remote is used
    assert Layers(disk, None).get(MINE) is None  # no remote is used
    first = layers("key")
    first.put(MINE, b"code")
    assert first.flush(60)
    disk.clear()
    assert where(layers("key").get(MINE)) == (b"code", "remote")
    assert where(layers("key").get(MINE)) == (b"code", "disk")
    assert layers("another key").get(MINE) is None  # the key was changed
    assert where(layers(None).get(MINE)) == (b"attack", "remote")
    assert [each.problem for each in disk.verify()] == [None, None]


def test_what_was_compiled_here_needs_no_remote_and_no_key(tmp_path: Path) -> None:
    disk = Disk(tmp_path / "disk")
    Layers(disk, None).put(MINE, b"code")
    for key in ("key", None):
        assert where(Layers(disk, Remote(f"memory://{tmp_path}", key)).get(MINE)) == (
            b"code",
            "disk",
        )


def test_without_a_disk_the_remote_is_used(tmp_path: Path) -> None:
    layers = Layers(None, Remote(f"memory://{tmp_path}", "key"))
    layers.put(MINE, b"code")
    assert layers.flush(60)
    assert where(layers.get(MINE)) == (b"code", "remote")


def test_a_broken_disk_does_not_hide_the_remote(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file in the way")
    layers = Layers(Disk(tmp_path / "cache"), Remote(f"memory://{tmp_path}", "key"))
    layers.put(MINE, b"code")
    assert layers.flush(60)
    assert where(layers.get(MINE)) == (b"code", "remote")


def test_settings_decide_the_layers(tmp_path: Path) -> None:
    settings = Settings(cache_dir=str(tmp_path), cache_limit=7, remote_cache="memory://x")
    layers = stores(settings)
    assert layers.disk is not None and layers.remote is not None
    assert (layers.disk.root, layers.disk.limit) == (str(tmp_path), 7 << 20)
    assert not layers.remote.authenticated
    assert stores(Settings(remote_cache="memory://x", cache_key="key", cache=False)).remote
    assert stores(Settings(cache=False)) == Layers(None, None)


def test_equal_settings_have_the_same_layers(tmp_path: Path) -> None:
    settings = Settings(cache_dir=str(tmp_path))
    assert stores(settings) is stores(Settings(cache_dir=str(tmp_path), tier=1))
    assert stores(settings) is not stores(Settings(cache_dir=str(tmp_path), cache_limit=1))


def test_the_default_location_is_the_users_cache_directory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert location(Settings()) == str(tmp_path / "tzero" / "kernels")
    assert location(Settings(cache_dir="~/kernels")) == os.path.expanduser("~/kernels")


def test_the_cache_imports_neither_torch_nor_optional_packages() -> None:
    code = (
        "import sys, tzero.cache, tzero.cli\n"
        "print(*{'torch', 'triton', 'redis', 'fsspec', 'numpy'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == ""


def test_nothing_in_the_cache_unpickles() -> None:
    folder = Path(sys.modules["tzero.cache"].__path__[0])
    for path in folder.glob("*.py"):
        text = path.read_text()
        assert not {"import pickle", "marshal", "eval(", "exec("} & {
            word for word in ("import pickle", "marshal", "eval(", "exec(") if word in text
        }, path
