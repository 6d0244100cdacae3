"""Fleets: what processes agree on, where a fleet is, and which rank a process has."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import tzero
from tests.cache.boards import KINDS, Make, board
from tests.cache.conftest import digest_of
from tzero import settings
from tzero.cache import c10d, place, stores
from tzero.cache.fleet import LIMIT, Fleet, fleet_of
from tzero.cache.reaching import Reaching
from tzero.errors import InvalidSetting
from tzero.events import Event
from tzero.settings import Settings

MINE = digest_of("mine")


@pytest.fixture(scope="module", params=KINDS)
def boards(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator:
    with board(request.param, tmp_path_factory.mktemp("board")) as make:
        yield make


def test_the_first_value_counts_for_all(boards: Make, events: list[Event]) -> None:
    one, other, late = (Fleet("file:///none", "key", 10, board=boards()) for _ in range(3))
    assert one.agreed(MINE) is None
    assert one.agree(MINE, b"mine") == b"mine"
    assert other.agree(MINE, b"theirs") == b"mine"
    assert late.agreed(MINE) == b"mine" == one.agree(MINE, b"later")
    # Whoever has another key agrees on their own, and so does whoever has none.
    assert Fleet("file:///none", "another", 10, board=boards()).agree(MINE, b"x") == b"x"
    assert Fleet("file:///none", None, 10, board=boards()).agree(MINE, b"y") == b"y"
    assert one.agree(digest_of("large"), bytes(LIMIT + 1)) is None
    assert events == []


def test_a_value_that_is_not_authentic_is_not_used(boards: Make, events: list[Event]) -> None:
    fleet = Fleet("file:///none", "key", 10, board=boards())
    for k, lie in enumerate(["garbage", "Z2FyYmFnZQ=="]):
        digest = digest_of(f"lie {k}")
        assert boards().swap(fleet._name(digest), "", lie, 60)
        assert fleet.agreed(digest) is None
        assert fleet.agree(digest, b"mine") is None
    assert len(events) == 6 and all("is not used" in event.reason for event in events)


def test_a_fleet_that_does_not_reply_agrees_on_nothing(events: list[Event]) -> None:
    fleet = Fleet("redis://:secret@127.0.0.1:1/0", None, 10, reaching=Reaching(5.0))
    for _ in range(3):
        assert fleet.agree(MINE, b"mine") is None
    (event,) = events
    assert "claims at redis://127.0.0.1:1/0 are not used" in event.reason
    assert "secret" not in str(event)


def test_a_c10d_fleet_outside_a_job_says_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, events: list[Event]
) -> None:
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    assert Fleet("c10d", None, 10).agreed(MINE) is None
    assert "MASTER_ADDR and MASTER_PORT are not set" in events[0].reason


def test_the_program_chooses_a_fleet_and_else_the_variable_does(tmp_path: Path) -> None:
    import torch.distributed as dist

    from_variable = Settings(fleet="file:///variable", cache_dir=str(tmp_path))
    try:
        assert place.place_of(Settings()) is None and fleet_of(Settings()) is None
        assert place.place_of(from_variable) == "file:///variable"
        tzero.fleet("file:///chosen")
        assert place.place_of(from_variable) == place.place_of(Settings()) == "file:///chosen"
        store = dist.HashStore()
        tzero.fleet(store)
        url = place.place_of(Settings())
        assert url is not None and url.startswith("c10d:") and c10d.url_of(store) == url
        layers = stores(from_variable)
        assert layers.remote is not None and layers.remote.url == url
        assert [each.is_local for each in layers.claims] == [True, False]
        there = fleet_of(from_variable)
        assert there is not None and there.agree(MINE, b"mine") == b"mine"
        for wrong in ("http://host", "c10", 7):
            with pytest.raises(InvalidSetting):
                tzero.fleet(wrong)
        assert place.place_of(Settings()) == url
    finally:
        tzero.fleet()
    assert place.place_of(Settings()) is None


def test_entries_travel_through_the_shared_cache_if_there_is_one(tmp_path: Path) -> None:
    both = Settings(
        fleet="file:///fleet", remote_cache="file:///shared", cache_dir=str(tmp_path), lease=7
    )
    layers = stores(both)
    assert layers.remote is not None and layers.remote.url == "file:///shared"
    assert [each.seconds for each in layers.claims] == [7.0, 7.0]
    off = stores(Settings(cache=False))
    assert off.claims == () and off.remote is None


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, (0, 1, None)),
        ({"RANK": "3", "WORLD_SIZE": "8"}, (3, 8, None)),
        ({"SLURM_PROCID": "3", "SLURM_NTASKS": "8"}, (3, 8, None)),
        ({"RANK": "8", "WORLD_SIZE": "8"}, (0, 1, None)),
        ({"RANK": "-1", "WORLD_SIZE": "eight"}, (0, 1, None)),
        ({"MASTER_ADDR": "node", "MASTER_PORT": "29500"}, (0, 1, ("node", 29500))),
        ({"MASTER_ADDR": "node", "MASTER_PORT": "none"}, (0, 1, None)),
    ],
)
def test_the_rank_of_a_process(variables: dict[str, str], expected: tuple[object, ...]) -> None:
    names = ("RANK", "WORLD_SIZE", "SLURM_PROCID", "SLURM_NTASKS", "MASTER_ADDR", "MASTER_PORT")
    with settings.applied({**dict.fromkeys(names), **variables}):
        assert place.job() == expected


def test_of_entries_in_a_c10d_store_the_first_counts_unless_it_is_damaged() -> None:
    import torch.distributed as dist

    store = dist.HashStore()
    one, other = (c10d.Values(c10d.Connection(c10d.url_of(store))) for _ in range(2))
    assert one.fetch("name") is None
    one.send("name", b"first")
    keys = store.num_keys()
    other.send("name", b"second")
    assert store.num_keys() == keys  # its chunks were removed
    assert one.fetch("name") == other.fetch("name") == b"first"
    for lie in ("garbage", "ab 0", "ab 999999", "ab 1", "ab -1"):
        store.set("name", lie)
        assert one.fetch("name") == b""
    one.send("name", b"third")  # which is sent only because the entry was no good
    assert other.fetch("name") == b"third"
