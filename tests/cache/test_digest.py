"""Canonical texts are equal exactly if values are; toolchains that differ have different texts."""

from __future__ import annotations

import enum
import json
import math
import os
import struct
import time
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tzero.cache import digest
from tzero.cache.digest import Unwritable, canonical, cpu_features, file_digest, parse, toolchain

scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(min_value=2**62, max_value=2**66)
    | st.floats(allow_nan=False)
    | st.text(st.characters(), max_size=5)
    | st.binary(max_size=5)
)
keys = scalars | st.sampled_from(["$tuple", "$dict", "$"]) | st.tuples(scalars, scalars)
values = st.recursive(
    scalars,
    lambda each: (
        st.lists(each, max_size=3)
        | st.lists(each, max_size=3).map(tuple)
        | st.dictionaries(keys, each, max_size=3)
    ),
    max_leaves=12,
)


def same(one: Any, other: Any) -> bool:
    """Equal in type and value, all the way down."""
    if type(one) is not type(other):
        return False
    if isinstance(one, float):
        return struct.pack(">d", one) == struct.pack(">d", other)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):

        def by(held: dict[Any, Any]) -> list[Any]:
            return sorted(held.items(), key=lambda item: canonical(item[0]))

        return len(one) == len(other) and all(
            same(a, b) for a, b in zip(by(one), by(other), strict=True)
        )
    return bool(one == other)


@given(values)
def test_parse_inverts_canonical(value: Any) -> None:
    assert same(parse(canonical(value)), value)


@given(values, values)
def test_different_values_have_different_texts(one: Any, other: Any) -> None:
    assert (canonical(one) == canonical(other)) == same(one, other)


@given(values)
def test_a_canonical_text_is_json(value: Any) -> None:
    json.loads(canonical(value))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ([1], (1,)),
        (1, 1.0),
        (1, True),
        (0.0, -0.0),
        (math.inf, -math.inf),
        (math.nan, "nan"),
        (b"a", "a"),
        ({"$tuple": [1]}, (1,)),
        ({"$float": "0x1.0000000000000p+0"}, 1.0),
        ({1: 2}, {"1": 2}),
        ("\ud83d\ude00", "\U0001f600"),
        (2**64, 2**64 + 1),
        ("e\u0301", "\xe9"),
    ],
)
def test_values_that_json_confuses_have_different_texts(one: Any, other: Any) -> None:
    assert canonical(one) != canonical(other)


def test_the_order_of_a_dict_does_not_matter() -> None:
    assert canonical({"b": 1, "a": 2}) == canonical({"a": 2, "b": 1})
    assert canonical({2: 1, "a": 2}) == canonical({"a": 2, 2: 1})


def test_parse_returns_nan() -> None:
    assert math.isnan(parse(canonical(math.nan)))


def test_parse_returns_a_number_of_ten_thousand_digits() -> None:
    assert parse(canonical(-(10**10_000))) == -(10**10_000)


class Text(str):
    pass


class Level(enum.IntEnum):
    ONE = 1


LOOP: list[Any] = []
LOOP.append(LOOP)


@pytest.mark.parametrize(
    "value",
    [{1}, object(), Text("a"), Level.ONE, 1j, range(3), OrderedDict(), bytearray(b"a"), LOOP],
    ids=lambda value: type(value).__name__,
)
def test_values_without_canonical_text_are_rejected(value: Any) -> None:
    with pytest.raises(Unwritable):
        canonical([value])


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1.5",
        "NaN",
        "Infinity",
        " 1",
        "[1, 2]",
        '{"b":1,"a":2}',
        '{"a":1,"a":1}',
        '{"$tuple":1}',
        '{"$what":1}',
        '{"$float":"1.5"}',
        '{"$float":"what"}',
        '{"$int":"0x1"}',
        '{"$bytes":"AB"}',
        '{"$dict":[["a",1]]}',
        '{"$dict":[[[],1]]}',
        "[" * 100_000,
    ],
    ids=lambda text: text[:20],
)
def test_text_that_is_not_canonical_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match="not a canonical text"):
        parse(text)


def test_a_toolchain_contains_the_schema(monkeypatch: pytest.MonkeyPatch) -> None:
    before = toolchain(gcc="12")
    monkeypatch.setattr(digest, "SCHEMA", digest.SCHEMA + 1)
    assert toolchain(gcc="12") != before


@pytest.mark.parametrize(
    ("text", "features"),
    [
        ("flags\t\t: avx sse2 fpu\nbugs: x\nflags\t\t: sse2 fpu\n", {"sse2", "fpu"}),
        ("Features\t: fp asimd sve\n", {"fp", "asimd", "sve"}),
        ("isa\t\t: rv64imafdc_zba\n", {"rv64imafdc_zba"}),
    ],
    ids=["x86", "arm", "riscv"],
)
def test_the_features_are_those_that_all_cores_have(
    text: str, features: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = tmp_path / "cpuinfo"
    listed.write_text(text)
    monkeypatch.setattr(digest, "_CPUINFO", str(listed))
    assert set(cpu_features.__wrapped__().split()[1:]) == features


def test_without_cpuinfo_the_features_come_from_platform(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(digest, "_CPUINFO", str(tmp_path / "missing"))
    assert cpu_features.__wrapped__()


def compiler(path: Path, version: str, log: Path) -> Path:
    path.write_text(f"#!/bin/sh\necho run >> '{log}'\necho '{version}' \"$@\"\n")
    path.chmod(0o755)
    return path


def test_a_compiler_is_run_once_until_it_changes(tmp_path: Path) -> None:
    log = tmp_path / "log"
    cc = compiler(tmp_path / "cc", "one", log)
    first = file_digest(cc)
    assert file_digest(cc) == first
    assert log.read_text().count("run") == 1
    compiler(cc, "two", log)
    os.utime(cc, (1, 1))
    assert file_digest(cc) != first
    assert file_digest(cc, ["-v"]) != file_digest(cc)
    second = file_digest(cc)
    time.sleep(0.02)  # longer than a tick of the file system's clock
    compiler(cc, "six", log)
    os.utime(cc, (1, 1))  # the same size and modification time
    assert file_digest(cc) != second


def test_the_same_compiler_at_another_path_has_the_same_digest(tmp_path: Path) -> None:
    log = tmp_path / "log"
    (tmp_path / "bin").mkdir()
    here = compiler(tmp_path / "cc", "one", log)
    there = compiler(tmp_path / "bin" / "gcc", "one", log)
    assert file_digest(here) == file_digest(there)


def test_a_link_to_another_compiler_changes_the_digest(tmp_path: Path) -> None:
    log = tmp_path / "log"
    link = tmp_path / "cc"
    link.symlink_to(compiler(tmp_path / "gcc-12", "12", log))
    before = file_digest(link)
    link.unlink()
    link.symlink_to(compiler(tmp_path / "gcc-13", "13", log))
    assert file_digest(link) != before


def test_a_missing_compiler_raises_file_not_found(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        file_digest(tmp_path / "cc")
