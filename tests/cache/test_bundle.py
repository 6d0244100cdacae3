"""Bundles: what was written is what is read, and everything else is an error or a miss."""

from __future__ import annotations

import hashlib
import json
import os
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from tzero import settings
from tzero.cache import bundle, entry, in_use
from tzero.cache.bundle import Bundle, Item
from tzero.errors import BundleRefused
from tzero.events import Event, observe

ADD, MUL = "ab" * 32, "cd" * 32
ITEMS = [
    Item("kernel", ADD, "add", {"target": "cuda:90"}, b"code of add"),
    Item("kernel", MUL, "mul", {"target": "cuda:80"}, b""),
    Item("config", ADD, "add", {"hardware": "cuda:sm_90"}, b"{}"),
]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = tmp_path / "app.tzb"
    bundle.write(made, ITEMS)
    return made


@pytest.fixture
def seen() -> Iterator[list[Event]]:
    found: list[Event] = []
    with observe(found.append):
        yield found


def test_what_was_written_is_read(path: Path) -> None:
    with Bundle(path) as opened:
        assert [opened.get(each.kind, each.digest) for each in ITEMS] == [
            b"code of add",
            b"",
            b"{}",
        ]
        assert {each.name: each.facts for each in opened if each.kind == "kernel"} == {
            "add": {"target": "cuda:90"},
            "mul": {"target": "cuda:80"},
        }
        assert opened.get("config", MUL) is None
    other = path.with_name("other.tzb")
    bundle.write(other, reversed(ITEMS))
    assert other.read_bytes() == path.read_bytes()  # whatever the order
    assert sorted(path.parent.iterdir()) == sorted([path, other])


def test_a_change_of_any_byte_is_noticed(path: Path, seen: list[Event]) -> None:
    whole = path.read_bytes()
    with Bundle(path) as opened:
        first = min(each.start for each in opened)
    for at in range(len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :])
        seen.clear()
        if at < first:
            with pytest.raises(BundleRefused):
                Bundle(path)
            continue
        with Bundle(path) as opened:
            good = [opened.get(each.kind, each.digest) == each.payload for each in ITEMS]
        assert good.count(False) == 1 and len(seen) == 1, at
        assert seen[0].kind == "cache" and str(path) in seen[0].reason


def test_a_bundle_that_is_cut_off_is_refused(path: Path) -> None:
    whole = path.read_bytes()
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        with pytest.raises(BundleRefused, match="Build it again"):
            Bundle(path)
    path.write_bytes(whole + b"x")
    with pytest.raises(BundleRefused, match="longer than its index says"):
        Bundle(path)


def test_a_bundle_that_is_cut_off_while_it_is_open_is_a_miss(path: Path, seen: list[Event]) -> None:
    with Bundle(path) as opened:
        os.truncate(path, path.stat().st_size - 100)
        found = [opened.get(each.kind, each.digest) for each in ITEMS]
    assert None in found and "torn" in seen[-1].reason


def test_a_bundle_that_is_replaced_stays_the_one_that_was_opened(path: Path) -> None:
    with Bundle(path) as opened:
        bundle.write(path, [])
        assert opened.get("kernel", ADD) == b"code of add"
    assert len(Bundle(path)) == 0


def header(index: bytes, schema: int = bundle.SCHEMA) -> bytes:
    facts = (bundle.MAGIC, schema, 0, len(index), hashlib.sha256(index).digest(), bytes(32))
    return struct.pack(">8sHHQ32s32s", *facts) + index


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "no bundle"),
        (b"PK\3\4 a zip file", "no bundle"),
        (b"\x89tz", "cut off after 3 bytes"),
        (header(b"{}", schema=99), "its format is 99, and this tzero reads 1"),
        (header(b"[]"), "index cannot be read"),
        (header(b"{"), "index cannot be read"),
        (header(b"[" * 100_000), "index cannot be read"),
        (header(b'{"entries":[["kernel","../../etc","x",{},0]]}'), "entry 1 is malformed"),
        (header(b'{"entries":[["kernel","%s","x",{},-5]]}' % (b"0" * 64)), "malformed"),
        (header(b'{"entries":[["kernel","%s","x",{"a":1},0]]}' % (b"0" * 64)), "malformed"),
        (header(b'{"entries":[["kernel","%s","x",{},9]]}' % (b"0" * 64)), "cut off"),
        (header(b'{"entries":[5]}'), "index cannot be read"),
    ],
)
def test_what_is_no_bundle_is_refused(path: Path, data: bytes, problem: str) -> None:
    path.write_bytes(data)
    with pytest.raises(BundleRefused, match=problem) as raised:
        Bundle(path)
    assert str(path) in str(raised.value)


def test_what_cannot_be_read_is_refused(tmp_path: Path) -> None:
    for where, problem in [
        (tmp_path / "missing.tzb", "No such file"),
        (tmp_path, "not a regular file"),
        (Path("/dev/null"), "not a regular file"),
    ]:
        with pytest.raises(BundleRefused, match=problem):
            Bundle(where)


def test_an_entry_of_another_request_is_refused(path: Path, seen: list[Event]) -> None:
    """The index says which entry is whose, and so does each entry."""
    whole = path.read_bytes()
    swapped = whole.replace(bytes.fromhex(ADD), bytes.fromhex(MUL))
    path.write_bytes(swapped)
    with Bundle(path) as opened:
        assert opened.get("kernel", ADD) is None
    assert "foreign" in seen[0].reason


# -- who wrote it ----------------------------------------------------------------------------------


def test_a_bundle_that_others_may_write_to_needs_a_key(path: Path) -> None:
    path.chmod(0o666)
    with pytest.raises(BundleRefused, match="chmod go-w"):
        Bundle(path)
    bundle.write(path, ITEMS, "secret")
    path.chmod(0o666)
    assert Bundle(path, "secret").get("kernel", ADD) == b"code of add"


def test_a_bundle_of_another_user_needs_a_key(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.chown(path, 12345, -1) if os.geteuid() == 0 else monkeypatch.setattr(
        os, "geteuid", lambda: 1
    )
    with pytest.raises(BundleRefused, match=r"belongs to user .* TZERO_CACHE_KEY"):
        Bundle(path)


@pytest.mark.parametrize(
    ("made", "opened", "problem"),
    [
        ("one", None, "Set TZERO_CACHE_KEY"),
        (None, "one", "built without a key"),
        ("one", "two", "does not match the key"),
    ],
)
def test_a_key_must_match(path: Path, made: str | None, opened: str | None, problem: str) -> None:
    bundle.write(path, ITEMS, made)
    with pytest.raises(BundleRefused, match=problem):
        Bundle(path, opened)


def test_a_forged_index_is_refused_although_its_checksum_is_right(path: Path) -> None:
    bundle.write(path, ITEMS, "secret")
    whole = path.read_bytes()
    size = struct.unpack_from(">Q", whole, 12)[0]
    start = bundle.HEADER.size
    index = whole[start : start + size].replace(b'"add"', b'"sub"')
    forged = whole[:20] + hashlib.sha256(index).digest() + whole[52:start] + index
    path.write_bytes(forged + whole[start + size :])
    with pytest.raises(BundleRefused, match="MAC"):
        Bundle(path, "secret")


def test_a_forged_entry_is_a_miss_although_its_checksum_is_right(
    path: Path, seen: list[Event]
) -> None:
    bundle.write(path, ITEMS, "secret")
    plain = entry.seal(b"evil of add", ADD)
    with Bundle(path, "secret") as opened:
        listed = next(each for each in opened if each.kind == "kernel" and each.name == "add")
    whole = bytearray(path.read_bytes())
    whole[listed.start : listed.start + listed.size] = plain
    path.write_bytes(whole)
    assert Bundle(path, "secret").get("kernel", ADD) is None
    assert "unauthenticated" in seen[0].reason


# -- in use ----------------------------------------------------------------------------------------


def test_the_latest_bundle_comes_first_and_that_of_the_variable_last(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZERO_BUNDLE", str(path))
    (named,) = in_use.bundles()
    one, two = in_use.use(path), in_use.use(path)
    assert in_use.bundles() == (two, one, named)
    in_use.drop(one)
    assert in_use.bundles() == (two, named)
    in_use.drop(two)
    monkeypatch.delenv("TZERO_BUNDLE")
    assert in_use.bundles() == ()


def test_a_bundle_of_the_variable_that_cannot_be_used_is_one_event(
    path: Path, monkeypatch: pytest.MonkeyPatch, seen: list[Event]
) -> None:
    path.write_bytes(b"nothing")
    monkeypatch.setenv("TZERO_BUNDLE", str(path))
    assert in_use.bundles() == in_use.bundles() == ()
    assert [each.kind for each in seen] == ["cache"] and "no bundle" in seen[0].reason
    with pytest.raises(BundleRefused, match="no bundle"):
        in_use.use(path)


def test_the_key_of_a_bundle_is_the_setting(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle.write(path, ITEMS, "secret")
    monkeypatch.setenv("TZERO_CACHE_KEY", "secret")
    assert settings.now().cache_key == "secret"
    in_use.drop(in_use.use(path))


def test_the_index_is_json(path: Path) -> None:
    """As docs/caching.md describes it."""
    whole = path.read_bytes()
    (size,) = struct.unpack_from(">Q", whole, 12)
    index = json.loads(whole[bundle.HEADER.size :][:size])
    assert index["entries"][0][:3] == ["config", ADD, "add"]
