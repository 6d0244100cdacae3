"""Helion's remote cache of tuned configs on tzero's store: what Helion itself demands of one."""

from __future__ import annotations

import importlib
import socket
from pathlib import Path
from typing import Any

import helion.autotuner
import pytest
import torch

from tests.cache.conftest import Server, redis_server
from tests.integrations.helion import kernels_tiles
from tests.integrations.helion.calls import again

__all__ = ["redis_server"]  # a fixture

ROW = kernels_tiles.tile_1d
NAME = "HELION_REMOTE_CACHE_BACKEND"

pytestmark = pytest.mark.skipif(
    not hasattr(helion.autotuner, "RemoteCacheBackend"), reason="this Helion has no remote cache"
)


@pytest.fixture(autouse=True)
def node(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(NAME, "tzero.helion.RemoteCache")
    monkeypatch.setenv("TZERO_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("TZERO_CACHE_KEY", "a secret")
    # Helion's keys of tuned configs have no name for the CPU: let them name another device.
    local = importlib.import_module("helion.autotuner.local_cache")
    monkeypatch.setattr(local, "extract_device", lambda args: torch.device("mps"))
    monkeypatch.setattr(local, "get_device_name", lambda device: "the CPU")
    on_node(monkeypatch, tmp_path, 1)


def on_node(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, number: int) -> None:
    """Go on with another cache of Helion's, as another machine has one."""
    monkeypatch.setenv("HELION_CACHE_DIR", str(tmp_path / f"helion {number}"))


def loaded() -> Any:
    return importlib.import_module("helion.autotuner.remote_cache")._load_remote_backend()


def call(cache: str = "RemoteAutotuneCache") -> int:
    """Call a new kernel object, whose configs are cached so; return how often it was tuned."""
    searched: list[object] = []

    class Search(helion.autotuner.base_search.BaseSearch):
        def autotune(self, *, skip_cache: bool = False) -> Any:
            searched.append(self)
            return self.config_spec.default_config()

    kind = getattr(helion.autotuner, cache)
    kernel = again(ROW.kernel)
    kernel.configs = []
    kernel.settings.autotune_effort = "full"
    kernel.settings.autotuner_fn = lambda bound, args, **more: kind(Search(bound, args))
    x, y = ROW.fresh()
    torch.testing.assert_close(kernel(x, y), ROW.kernel(x, y))
    return len(searched)


def test_the_variable_loads_it() -> None:
    backend = loaded()
    assert isinstance(backend, helion.autotuner.RemoteCacheBackend)
    assert list(backend.list(max_results=5)) == []


def test_texts_come_back_also_without_a_shared_cache() -> None:
    backend = loaded()
    assert backend.get("key") is None
    backend.put("key", '{"config": "ä"}')
    backend.put("key", '{"config": "newer"}')
    assert loaded().get("key") == '{"config": "newer"}'
    assert loaded().get("another") is None


@pytest.mark.parametrize("cache", ["RemoteAutotuneCache", "StrictRemoteAutotuneCache"])
def test_what_one_node_tunes_others_read_and_keep(
    cache: str, redis_server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TZERO_FLEET", redis_server.url)
    assert call(cache) == 1
    on_node(monkeypatch, tmp_path, 2)
    assert call(cache) == 0
    redis_server.stop()
    assert call(cache.replace("Remote", "Local")) == 0  # kept by the first hit


def test_the_records_are_those_that_helion_can_read(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[str] = []
    kind = type(loaded())
    put = kind.put
    monkeypatch.setattr(kind, "put", lambda self, k, data: (sent.append(data), put(self, k, data)))
    assert call() == 1
    local = importlib.import_module("helion.autotuner.local_cache")
    (text,) = sent
    entry = local.parse_cache_entry(text)
    assert entry.hardware and entry.specialization_key and entry.flat_config is not None


def test_without_a_reply_helion_goes_on_with_its_own_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    monkeypatch.setenv("TZERO_REMOTE_CACHE", f"redis://127.0.0.1:{port}/0")
    assert call() == 1
    assert call() == 0
