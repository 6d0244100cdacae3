"""Any change to the bytes of an entry is detected, with a reason."""

from __future__ import annotations

import struct

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.cache.conftest import digest_of
from tzero.cache.entry import HEADER, SCHEMA, Damaged, derived, opened, seal

MINE, OTHER = digest_of("mine"), digest_of("other")
KEY, WRONG = derived("a secret"), derived("another")
keys = st.sampled_from([None, KEY])

# Offsets of the fields, stated independently of the implementation.
FIELDS = {
    "magic": (0, 8),
    "schema": (8, 10),
    "flags": (10, 12),
    "request": (12, 44),
    "length": (44, 52),
    "sha256": (52, 84),
    "mac": (84, 116),
    "payload start": (116, 120),
    "payload middle": (564, 568),
    "payload end": (1112, 1116),
}


def damage_of(data: bytes, key: bytes | None = None, digest: str = MINE) -> str:
    with pytest.raises(Damaged) as caught:
        opened(data, digest, key)
    assert caught.value.problem
    return caught.value.kind


def test_the_header_has_its_documented_size() -> None:
    assert HEADER.size == 116


@given(st.binary(max_size=300), keys)
@example(b"", None)
@example(b"", KEY)
def test_opened_inverts_seal(payload: bytes, key: bytes | None) -> None:
    assert opened(seal(payload, MINE, key), MINE, key) == payload


@pytest.mark.parametrize("key", [None, KEY], ids=["open", "keyed"])
def test_any_flipped_bit_is_detected(key: bytes | None) -> None:
    entry = seal(b"some code", MINE, key)
    for at in range(len(entry)):
        for bit in range(8):
            flipped = bytearray(entry)
            flipped[at] ^= 1 << bit
            damage_of(bytes(flipped), key)


@pytest.mark.parametrize("key", [None, KEY], ids=["open", "keyed"])
@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("by", [0x01, 0x80, 0xFF])
def test_a_changed_field_is_detected(field: str, by: int, key: bytes | None) -> None:
    entry = seal(bytes(range(250)) * 4, MINE, key)
    start, end = FIELDS[field]
    changed = bytes(each ^ by for each in entry[start:end])
    damage_of(entry[:start] + changed + entry[end:], key)


@pytest.mark.parametrize("key", [None, KEY], ids=["open", "keyed"])
def test_an_entry_truncated_anywhere_is_torn(key: bytes | None) -> None:
    entry = seal(b"some code", MINE, key)
    assert {damage_of(entry[:size], key) for size in range(len(entry))} == {"torn"}


@given(st.binary(min_size=1, max_size=50), keys)
def test_an_entry_with_trailing_bytes_is_extended(more: bytes, key: bytes | None) -> None:
    assert damage_of(seal(b"some code", MINE, key) + more, key) == "extended"


@given(st.binary(max_size=400), keys)
def test_random_bytes_are_rejected(data: bytes, key: bytes | None) -> None:
    damage_of(data, key)


@given(st.data(), keys)
def test_a_mix_of_two_entries_is_rejected(data: st.DataObject, key: bytes | None) -> None:
    one, two = seal(b"first code", MINE, key), seal(b"other code", MINE, key)
    start = data.draw(st.integers(0, len(one)))
    end = data.draw(st.integers(start, len(one)))
    mixed = one[:start] + two[start:end] + one[end:]
    if mixed not in (one, two):
        damage_of(mixed, key)


@pytest.mark.parametrize("key", [None, KEY], ids=["open", "keyed"])
def test_an_entry_under_another_name_is_foreign(key: bytes | None) -> None:
    assert damage_of(seal(b"code", OTHER, key), key) == "foreign"


@pytest.mark.parametrize(
    ("schema", "kind"), [(0, "older"), (SCHEMA - 1, "older"), (SCHEMA + 1, "newer")]
)
def test_another_schema_is_detected(schema: int, kind: str) -> None:
    entry = seal(b"code", MINE)
    assert damage_of(entry[:8] + struct.pack(">H", schema) + entry[10:]) == kind


@pytest.mark.parametrize(
    ("sealed", "opening"), [(WRONG, KEY), (None, KEY), (KEY, None)], ids=["wrong", "none", "unset"]
)
def test_an_entry_is_opened_only_with_the_key_it_was_sealed_with(
    sealed: bytes | None, opening: bytes | None
) -> None:
    assert damage_of(seal(b"code", MINE, sealed), opening) == "unauthenticated"


def test_a_forged_payload_with_a_correct_checksum_lacks_the_mac() -> None:
    honest, forged = seal(b"good code", MINE, KEY), seal(b"evil code", MINE)
    start, end = FIELDS["mac"]
    mixed = forged[:10] + honest[10:12] + forged[12:start] + honest[start:end] + forged[end:]
    assert damage_of(mixed, KEY) == "unauthenticated"


@pytest.mark.parametrize("digest", ["", "ab", "../" + "0" * 61, "0" * 63 + "G", "A" * 64, "0" * 65])
def test_an_invalid_digest_raises(digest: str) -> None:
    with pytest.raises(ValueError, match="not a request digest"):
        seal(b"code", digest)
    with pytest.raises(ValueError, match="not a request digest"):
        opened(seal(b"code", MINE), digest)
