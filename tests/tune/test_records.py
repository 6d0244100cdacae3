"""Tuning results are remembered by their key, and damaged ones are never used; shipped files say
why they have no config."""

from __future__ import annotations

import json
import math
import os
import pickle
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tzero.cache.digest import Unwritable, canonical
from tzero.cache.disk import Disk
from tzero.cache.store import stores
from tzero.config import Config
from tzero.errors import PretunedDamaged
from tzero.events import Event, observe
from tzero.settings import Settings
from tzero.tune import records as module
from tzero.tune.records import (
    Entry,
    Memory,
    Outcome,
    Pretuned,
    Record,
    cpu_class,
    cuda_class,
    merge,
    strict,
)

SMALL, LARGE, HUGE = Config(BLOCK=64), Config(BLOCK=128), Config(BLOCK=4096)
SLOW, FAST = Outcome(2.0, 1.9, 2.1, 30), Outcome(1.0, 0.9, 1.1, 20)
FAILED = Outcome(problem="it needs more shared memory than there is")


@pytest.fixture
def reported() -> Iterator[list[Event]]:
    """The events of the test."""
    seen: list[Event] = []
    with observe(seen.append):
        yield seen


@pytest.fixture
def memory(tmp_path: Path) -> Memory:
    return Memory.of(Settings(cache_dir=str(tmp_path / "cache")))


def files(tmp_path: Path) -> list[Path]:
    found = (tmp_path / "cache" / "tuned").rglob("*")
    return sorted(path for path in found if len(path.name) == 64)


# -- the local cache ------------------------------------------------------------------------------


def test_outcomes_are_remembered(memory: Memory, reported: list[Event]) -> None:
    assert memory.record("key") is None
    memory.keep("key", {SMALL: SLOW, LARGE: FAST, HUGE: FAILED})
    record = memory.record("key")
    assert record is not None
    assert record.outcomes == {SMALL: SLOW, LARGE: FAST, HUGE: FAILED}
    assert record.best() == LARGE
    assert reported == []


def test_another_key_knows_nothing(memory: Memory) -> None:
    memory.keep("key", {SMALL: SLOW})
    assert memory.known("kez", [SMALL]) == {}


def test_only_new_configs_need_timing(memory: Memory) -> None:
    memory.keep("key", {SMALL: SLOW, LARGE: FAST})
    assert memory.known("key", [HUGE, LARGE]) == {LARGE: FAST}
    memory.keep("key", {HUGE: FAILED})
    assert memory.known("key", [SMALL, LARGE, HUGE]) == {SMALL: SLOW, LARGE: FAST, HUGE: FAILED}


def test_known_outcomes_come_in_the_order_of_the_request(memory: Memory) -> None:
    memory.keep("key", {LARGE: FAST, SMALL: SLOW})
    assert list(memory.known("key", [SMALL, LARGE])) == [SMALL, LARGE]


def test_a_later_timing_replaces_an_earlier_one(memory: Memory) -> None:
    memory.keep("key", {SMALL: SLOW})
    memory.keep("key", {SMALL: FAST})
    assert memory.known("key", [SMALL]) == {SMALL: FAST}


def test_the_best_is_one_of_the_given_configs() -> None:
    record = Record("key", {SMALL: SLOW, LARGE: FAST, HUGE: FAILED})
    assert record.best([SMALL, HUGE]) == SMALL
    assert record.best([HUGE]) is None
    assert record.best([]) is None


def test_of_equal_configs_every_process_takes_the_same() -> None:
    one, two = Record("key", {SMALL: FAST, LARGE: FAST}), Record("key", {LARGE: FAST, SMALL: FAST})
    assert one.best() == two.best()
    assert one.encode() == two.encode()


def test_configs_whose_values_differ_only_in_type_are_distinct(memory: Memory) -> None:
    configs = [Config(x=1), Config(x=1.0), Config(x=True), Config(x=0.0), Config(x=-0.0)]
    outcomes = {config: Outcome(float(k)) for k, config in enumerate(configs)}
    memory.keep("key", outcomes)
    assert memory.known("key", configs) == outcomes


def test_a_cache_that_is_off_keeps_nothing(tmp_path: Path) -> None:
    memory = Memory.of(Settings(cache=False, cache_dir=str(tmp_path / "cache")))
    memory.keep("key", {SMALL: SLOW})
    assert memory.record("key") is None
    assert list(tmp_path.iterdir()) == []


def test_clearing_compiled_kernels_keeps_tuning_results(tmp_path: Path) -> None:
    settings = Settings(cache_dir=str(tmp_path / "cache"))
    memory, disk = Memory.of(settings), stores(settings).disk
    assert disk is not None
    disk.put("0" * 64, b"code")
    memory.keep("key", {SMALL: SLOW})
    assert disk.usage().entries == 1
    disk.clear()
    assert memory.known("key", [SMALL]) == {SMALL: SLOW}


def test_files_are_private_and_no_temporary_file_stays(memory: Memory, tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        memory.keep("key", {SMALL: SLOW})
    finally:
        os.umask(before)
    for path in (tmp_path / "cache", *(tmp_path / "cache").rglob("*")):
        wanted = 0o700 if path.is_dir() else 0o600
        assert stat.S_IMODE(path.stat().st_mode) == wanted
    assert not list(tmp_path.rglob("*.tmp"))


def test_keeping_known_outcomes_writes_nothing(memory: Memory, tmp_path: Path) -> None:
    memory.keep("key", {SMALL: SLOW, LARGE: FAST})
    [path] = files(tmp_path)
    before = path.stat().st_ino
    memory.keep("key", {LARGE: FAST})
    assert path.stat().st_ino == before


def test_a_file_damaged_at_any_byte_is_a_miss_reported_and_replaced(
    memory: Memory, tmp_path: Path, reported: list[Event]
) -> None:
    memory.keep("key", {SMALL: SLOW})
    [path] = files(tmp_path)
    whole = path.read_bytes()
    for k in range(0, len(whole), 5):
        path.write_bytes(whole[:k] + bytes([whole[k] ^ 1]) + whole[k + 1 :])
        reported.clear()
        assert memory.record("key") is None
        assert [event.kind for event in reported] == ["cache"]
        memory.keep("key", {SMALL: SLOW})
        assert path.read_bytes() == whole


PAYLOADS = {
    "not UTF-8": b"\xff\xfe",
    "not JSON": b"{",
    "other JSON": b"[]",
    "fields missing": canonical({"schema": module.RECORDS, "key": "key"}).encode(),
    "an older schema": canonical({"schema": 0, "key": "key", "outcomes": []}).encode(),
    "another key": canonical({"schema": module.RECORDS, "key": "other", "outcomes": []}).encode(),
    "outcomes that are not a list": canonical(
        {"schema": module.RECORDS, "key": "key", "outcomes": 5}
    ).encode(),
    "rows that are not pairs": canonical(
        {"schema": module.RECORDS, "key": "key", "outcomes": [1]}
    ).encode(),
    "an invalid config": canonical(
        {"schema": module.RECORDS, "key": "key", "outcomes": [("[]", {"median": 1.0})]}
    ).encode(),
    "unknown fields": canonical(
        {"schema": module.RECORDS, "key": "key", "outcomes": [("{}", {"mean": 1.0})]}
    ).encode(),
    "an invalid time": canonical(
        {"schema": module.RECORDS, "key": "key", "outcomes": [("{}", {"median": math.nan})]}
    ).encode(),
}


@pytest.mark.parametrize("name", PAYLOADS)
def test_an_intact_file_without_a_record_is_a_miss_reported_and_replaced(
    name: str, tmp_path: Path, reported: list[Event]
) -> None:
    disk = Disk(tmp_path)
    disk.put(module.digest_of("key"), PAYLOADS[name])
    memory = Memory(disk)
    assert memory.known("key", [SMALL]) == {}
    assert [event.kind for event in reported] == ["cache"]
    assert "timed again" in reported[0].reason
    memory.keep("key", {SMALL: SLOW})
    assert memory.known("key", [SMALL]) == {SMALL: SLOW}


def test_a_directory_that_others_may_write_to_is_not_read(
    memory: Memory, tmp_path: Path, reported: list[Event]
) -> None:
    memory.keep("key", {SMALL: SLOW})
    (tmp_path / "cache" / "tuned").chmod(0o777)
    assert memory.known("key", [SMALL]) == {}
    assert "others may write" in reported[0].reason
    (tmp_path / "cache" / "tuned").chmod(0o700)
    assert memory.known("key", [SMALL]) == {SMALL: SLOW}


def test_an_unwritable_disk_raises_nothing_and_remembers_nothing(
    tmp_path: Path, reported: list[Event]
) -> None:
    (tmp_path / "file").write_text("")
    memory = Memory(Disk(tmp_path / "file" / "tuned"))
    memory.keep("key", {SMALL: SLOW})
    assert memory.record("key") is None
    assert {event.kind for event in reported} == {"cache"}


@pytest.mark.parametrize(
    "wrong",
    [
        {"median": math.nan},
        {"median": -1.0},
        {"median": 1},
        {"median": 1.0, "low": 2.0},
        {"median": 1.0, "high": 0.5},
        {"median": 1.0, "samples": -1},
        {"median": 1.0, "samples": True},
        {"median": 1.0, "problem": "it is wrong"},
        {},
        {"problem": None},
    ],
    ids=str,
)
def test_an_invalid_outcome_is_rejected(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="an outcome has"):
        Outcome(**wrong)


def test_strict_keys_of_different_facts_differ() -> None:
    keys = [strict(a=1), strict(a=1.0), strict(a="1"), strict(a=(1,)), strict(a=[1]), strict(b=1)]
    assert len(set(keys)) == len(keys)
    assert strict(a=1, b=2) == strict(b=2, a=1)
    with pytest.raises(Unwritable):
        strict(a={1})


NAMES = st.sampled_from(["BLOCK", "num_warps", "stages", "größe"])
PLAIN = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
VALUES = st.recursive(PLAIN, lambda inner: st.lists(inner, max_size=3), max_leaves=4)
CONFIGS = st.dictionaries(NAMES, VALUES).map(Config)
TIMES = st.lists(st.floats(0, 1e6), min_size=3, max_size=3).map(sorted)
OUTCOMES = TIMES.map(lambda t: Outcome(t[1], t[0], t[2], 7)) | st.text(min_size=1).map(
    lambda words: Outcome(problem=words)
)


@given(st.text(), st.dictionaries(CONFIGS, OUTCOMES, max_size=5))
def test_any_record_is_read_as_it_was_written(key: str, outcomes: dict[Config, Outcome]) -> None:
    record = Record(key, outcomes)
    assert Record.decode(record.encode(), key) == record


# -- shipped files --------------------------------------------------------------------------------

SM90, SM80 = cuda_class(9, 0), cuda_class(8, 0)
MATMUL = Entry("matmul", "aa", "f16[*,*]", SM90, LARGE)
ADD = Entry("add", "bb", "f32[*]", SM90, SMALL)


def find(pretuned: Pretuned, **other: str) -> Any:
    asked = {"kernel": "matmul", "source": "aa", "arguments": "f16[*,*]", "hardware": SM90}
    return pretuned.find(**{**asked, **other})


def test_a_config_is_found_for_its_exact_key() -> None:
    answer = find(Pretuned([MATMUL, ADD], "p.json"))
    assert (answer.config, answer.verdict) == (LARGE, "found")
    assert answer.reason == "p.json has it for cuda:sm_90"


@pytest.mark.parametrize(
    ("other", "verdict", "words"),
    [
        ({"source": "cc"}, "other source", "'matmul' with another source"),
        ({"hardware": SM80}, "other hardware", "for cuda:sm_90 only, and this is cuda:sm_80"),
        ({"arguments": "f32[*]"}, "other arguments", "for other arguments than f32[*]"),
        ({"kernel": "softmax", "source": "cc"}, "no entry", "no config for 'softmax'"),
        ({"source": "cc", "hardware": SM80}, "other source", "another source"),
        ({"arguments": "", "hardware": SM80}, "other hardware", "this is cuda:sm_80"),
    ],
)
def test_a_miss_names_the_first_fact_without_an_entry(
    other: dict[str, str], verdict: str, words: str
) -> None:
    answer = find(Pretuned([MATMUL, ADD], "p.json"), **other)
    assert (answer.config, answer.verdict) == (None, verdict)
    assert answer.reason.startswith("p.json") and words in answer.reason


def test_a_file_is_readable_and_sorted(tmp_path: Path) -> None:
    path = tmp_path / "pretuned.json"
    Pretuned([MATMUL, ADD]).write(path)
    assert path.read_text() == (
        "{\n"
        '  "tzero_pretuned": 1,\n'
        '  "entries": [\n'
        '    {"kernel": "add", "source": "bb", "arguments": "f32[*]", "hardware": "cuda:sm_90", '
        '"config": {"BLOCK": 64}},\n'
        '    {"kernel": "matmul", "source": "aa", "arguments": "f16[*,*]", '
        '"hardware": "cuda:sm_90", "config": {"BLOCK": 128}}\n'
        "  ]\n"
        "}\n"
    )
    json.loads(path.read_text())


def test_an_empty_file_can_be_written_and_read(tmp_path: Path) -> None:
    Pretuned([]).write(tmp_path / "p.json")
    assert len(Pretuned.read(tmp_path / "p.json")) == 0


ENTRIES = st.builds(Entry, st.text(), st.text(), st.text(), st.text(), CONFIGS)


@given(st.lists(ENTRIES, max_size=5, unique_by=lambda entry: entry.place))
def test_any_file_is_read_as_it_was_written(
    tmp_path_factory: pytest.TempPathFactory, entries: list[Entry]
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.json"
    Pretuned(entries).write(path)
    first = path.read_bytes()
    again = Pretuned.read(path)
    assert again == Pretuned(entries)
    again.write(path)
    assert path.read_bytes() == first


def test_writing_replaces_the_file_atomically_and_leaves_no_other(tmp_path: Path) -> None:
    path, link = tmp_path / "p.json", tmp_path / "link.json"
    path.write_text("old")
    link.symlink_to(path)
    Pretuned([ADD]).write(link)
    assert link.is_symlink()
    assert Pretuned.read(path).entries == (ADD,)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["link.json", "p.json"]


def test_a_write_that_fails_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "p.json"
    Pretuned([ADD]).write(path)

    def fail(*_: object) -> None:
        raise OSError("no rename")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="no rename"):
        Pretuned([MATMUL]).write(path)
    assert Pretuned.read(path).entries == (ADD,)
    assert [each.name for each in tmp_path.iterdir()] == ["p.json"]


def test_a_missing_file_raises_file_not_found(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        Pretuned.read(tmp_path / "none.json")


ROW = {"kernel": "k", "source": "s", "arguments": "a", "hardware": "h", "config": {"BLOCK": 1}}


def text_of(*rows: Any) -> str:
    return json.dumps({"tzero_pretuned": 1, "entries": rows})


DAMAGED = {
    "": "it is not JSON",
    "{": "it is not JSON",
    "[" * 200_000: "it is not JSON",
    "[]": "it has no 'tzero_pretuned'",
    '{"tzero_pretuned": 1, "tzero_pretuned": 1, "entries": []}': "'tzero_pretuned' twice",
    '{"tzero_pretuned": 2, "entries": []}': "its schema is 2, and this tzero reads 1",
    '{"tzero_pretuned": true, "entries": []}': "its schema is True",
    '{"tzero_pretuned": 1}': "not 'tzero_pretuned' and a list 'entries'",
    '{"tzero_pretuned": 1, "entries": {}}': "not 'tzero_pretuned' and a list 'entries'",
    text_of(ROW, 5): "entry 2 is not an object",
    text_of({**ROW, "kernel": 5}): "entry 1 has kernel=5, which is not a string",
    text_of({**ROW, "colour": ""}): "entry 1 has the field 'colour'; the fields of an entry are",
    text_of({k: v for k, v in ROW.items() if k != "hardware"}): "entry 1 has no 'hardware'",
    text_of({**ROW, "config": [1]}): "entry 1 has config=[1], which is not an object",
    text_of({**ROW, "config": {"not a name": 1}}): "entry 1: a Config cannot hold not a name=1",
    text_of(ROW, ROW): "it has two entries of 'k' for 'a' on h",
}


@pytest.mark.parametrize("text", DAMAGED, ids=lambda text: DAMAGED[text][:30])
def test_a_damaged_file_is_an_error_that_says_where(text: str, tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    path.write_text(text)
    with pytest.raises(PretunedDamaged) as caught:
        Pretuned.read(path)
    assert str(caught.value).startswith(f"{path} cannot be used: ")
    assert DAMAGED[text] in str(caught.value)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_a_file_torn_anywhere_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    Pretuned([MATMUL, ADD]).write(path)
    whole = path.read_bytes()
    for k in range(len(whole) - 2):  # the last two bytes are the brace and the newline
        path.write_bytes(whole[:k])
        with pytest.raises(PretunedDamaged):
            Pretuned.read(path)


def test_a_file_that_is_not_utf8_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "p.json").write_bytes(b"\xff\xfe{}")
    with pytest.raises(PretunedDamaged, match="it is not JSON"):
        Pretuned.read(tmp_path / "p.json")


def test_a_file_for_other_hardware_gives_a_warning_text() -> None:
    known = Pretuned([MATMUL, Entry("add", "bb", "f32[*]", SM80, SMALL)], "p.json")
    assert known.foreign(SM80) is None
    words = known.foreign("cpu:x86_64-avx2")
    assert words is not None
    assert words.startswith("p.json is for cuda:sm_80, cuda:sm_90, and this is cpu:x86_64-avx2")


def test_merging_keeps_all_and_lists_what_was_replaced() -> None:
    other = Entry("matmul", "aa", "f16[*,*]", SM90, HUGE)
    elsewhere = Entry("matmul", "aa", "f16[*,*]", SM80, SMALL)
    merged = merge(Pretuned([MATMUL, ADD]), Pretuned([other, elsewhere, ADD]))
    assert merged.pretuned == Pretuned([ADD, other, elsewhere])
    assert merged.replaced == (MATMUL,)


@given(st.lists(ENTRIES, max_size=4, unique_by=lambda entry: entry.place))
def test_merging_with_itself_or_an_empty_one_changes_nothing(entries: list[Entry]) -> None:
    one, nothing = Pretuned(entries), Pretuned([])
    for left, right in ((one, one), (one, nothing), (nothing, one)):
        assert merge(left, right).pretuned == one
        assert merge(left, right).replaced == ()


def test_a_table_answers_as_a_file_does(tmp_path: Path) -> None:
    table = {"f16[*,*]": {"BLOCK": 128}, "f32[*,*]": Config(BLOCK=64)}
    known = Pretuned.of(table, kernel="matmul", source="aa", hardware=SM90)
    assert find(known).config == LARGE
    assert find(known, arguments="f32[*,*]").config == SMALL
    assert find(known, hardware=SM80).verdict == "other hardware"
    known.write(tmp_path / "p.json")
    assert Pretuned.read(tmp_path / "p.json") == known


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"f32": 5}, "entry 1 has config=5"),
        ({5: {"BLOCK": 1}}, "entry 1 has arguments=5, which is not a string"),
        ({"f32": {"BLOCK": {1}}}, "a Config cannot hold BLOCK={1}"),
    ],
)
def test_an_invalid_table_is_rejected(table: Any, words: str) -> None:
    with pytest.raises(PretunedDamaged, match="the lookup table of add") as caught:
        Pretuned.of(table, kernel="add", source="aa", hardware=SM90)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("features", "wanted"),
    [
        ("x86_64 avx2 avx512f", "cpu:x86_64"),
        ("x86_64 avx2 avx512f fma", "cpu:x86_64-avx2"),
        ("x86_64 avx2 avx512bw avx512cd avx512dq avx512f avx512vl fma", "cpu:x86_64-avx512"),
        ("x86_64", "cpu:x86_64"),
        ("aarch64 asimd sve sve2", "cpu:aarch64-sve2"),
    ],
)
def test_a_cpu_class_is_its_widest_vectors(features: str, wanted: str) -> None:
    assert cpu_class(features) == wanted


def test_this_machine_has_a_class() -> None:
    assert cpu_class().startswith("cpu:")


def test_records_do_not_import_torch() -> None:
    code = "import sys, tzero.tune.records; assert 'torch' not in sys.modules, 'torch is imported'"
    subprocess.run([sys.executable, "-c", code], check=True)
