"""The script that runs Triton's own tests without and with tzero: how it judges outcomes."""

from __future__ import annotations

import argparse
import math
from pathlib import Path

from tools import triton_record
from tools.triton_tests import (
    Outcome,
    Part,
    Summary,
    _outcomes,
    alone,
    compare,
    is_chosen,
    without_numbers,
)
from tzero.versions import SUPPORTED

TESTS = """
import os, time
import pytest

@pytest.mark.parametrize("n", range(3))
def test_that_passes(n, device):
    assert device == "nowhere"

def test_that_fails():
    assert 3 == 4, "3 is not 4, at /tmp/there"

def test_that_is_skipped():
    pytest.skip("no")

@pytest.mark.xfail
def test_that_should_fail():
    raise ValueError("once")

def test_that_ends_the_process():
    os._exit(7)

def test_that_takes_too_long():
    time.sleep(60)

@pytest.fixture
def broken():
    raise OSError("broken")

def test_that_cannot_start(broken):
    pass
"""
BLACKWELL = """
import pytest, torch

@pytest.mark.skipif(torch.cuda.get_device_capability()[0] < 1000, reason="for a GPU to come")
def test_that_is_for_some_gpus():
    pass
"""
CONFTEST = """
import pytest

def pytest_addoption(parser):
    parser.addoption("--device")

@pytest.fixture
def device(request):
    return request.config.getoption("--device")
"""


def given(checkout: Path, **more: object) -> argparse.Namespace:
    options = {"share": 1.0, "seed": 0, "seconds": 3.0, "launches": 1, "device": "nowhere"}
    return argparse.Namespace(checkout=checkout, **{**options, **more})


def test_every_way_for_a_test_to_end_is_an_outcome(tmp_path: Path) -> None:
    folder = tmp_path / "python" / "test" / "unit"
    folder.mkdir(parents=True)
    (folder.parent / "conftest.py").write_text(CONFTEST)
    (folder / "test_some.py").write_text(TESTS)
    found = _outcomes(given(tmp_path), tmp_path, Part(folder / "test_some.py"), False)
    words = {test.rpartition("::test_")[2]: str(outcome) for test, outcome in found.items()}
    assert words == {
        **{f"that_passes[{n}]": "passed" for n in range(3)},
        "that_fails": "failed: AssertionError: N is not N, at PATH",
        "that_is_skipped": "skipped: Skipped: no",
        "that_should_fail": "expected to fail: ValueError: once",
        "that_ends_the_process": "ended the process with 7",
        "that_takes_too_long": "failed: TimeoutError: the test took more than N s",
        "that_cannot_start": "setup, failed: OSError: broken",
    }
    (folder / "test_other.py").write_text("import nowhere_to_be_found")
    (found,) = _outcomes(given(tmp_path), tmp_path, Part(folder / "test_other.py"), False).values()
    assert found.word == "not collected"
    assert "nowhere_to_be_found" in found.error


def test_parts_of_a_file_run_at_once_and_stop_in_time(tmp_path: Path) -> None:
    folder = tmp_path / "python" / "test" / "unit" / "language"
    folder.mkdir(parents=True)
    (folder.parents[1] / "conftest.py").write_text(CONFTEST)
    (folder / "test_some.py").write_text(TESTS)
    options = {"jobs": 2, "file": None, "most": math.inf}
    whole = compare(given(tmp_path, **options), tmp_path)
    assert (sum(whole.words.values()), whole.words["passed"], whole.differing) == (9, 3, {})
    # A process begins at least one test: what takes long is in one of the two parts.
    early = compare(given(tmp_path, **{**options, "most": 0.5}), tmp_path)
    assert 0 < sum(early.words.values()) < 9 and not early.differing
    assert not compare(given(tmp_path, **{**options, "most": -1.0}), tmp_path).words


def test_the_backend_alone_runs_each_test_of_the_language_once(tmp_path: Path) -> None:
    unit = tmp_path / "python" / "test" / "unit"
    for name in ("language", "runtime"):
        (unit / name).mkdir(parents=True)
        (unit / name / f"test_{name}.py").write_text(TESTS)
    (unit.parent / "conftest.py").write_text(CONFTEST)
    (unit / "language" / "test_elsewhere.py").write_text("import nowhere_to_be_found")
    (unit / "language" / "test_blackwell.py").write_text(BLACKWELL)
    found = alone(given(tmp_path, jobs=1, file=None, most=math.inf), tmp_path)
    assert {test.partition("::")[0] for test in found} == {
        "unit/language/test_language.py",
        "unit/language/test_elsewhere.py",
        "unit/language/test_blackwell.py",
    }
    record = triton_record.finished({}, found)
    assert record["counts"] == {
        "tests": 11,
        "ended the process with 7": 1,
        "expected to fail": 1,
        "failed": 3,
        "not collected": 1,
        "passed": 3,
        "skipped": 2,
    }
    assert (triton_record.passing(record), record["failing"]) == (4, 5)
    assert record["kinds"] == {"open": 4, "time": 1}


def test_what_fails_is_named_with_what_it_asks_for() -> None:
    cuda = "E   AssertionError: Torch not compiled with CUDA enabled"
    outcomes = {
        "test_core.py::test_print[a-b]": Outcome("failed", "AssertionError"),
        "test_core.py::test_new": Outcome("setup, failed", "OSError: broken"),
        "test_core.py::test_bin_op": Outcome("passed"),
        "test_matmul.py": Outcome("not collected", cuda),
    }
    known = {"versions": {"triton": "3.6.0"}, "tests": "v3.6.0", "share": 0.5, "seed": 3}
    record = triton_record.finished(known, outcomes)
    assert {each["test"]: each["kind"] for each in record["failures"]} == {
        "test_core.py::test_new": "open",
        "test_core.py::test_print[a-b]": "threads",
        "test_matmul.py": "cuda",
    }
    assert triton_record.in_words(record).splitlines() == [
        "1 of 4 tests pass (25.00 %), not counting skipped ones",
        "3 fail: 1 cuda, 1 open, 1 threads",
        "  test_core.py::test_new: OSError: broken",
    ]
    tables = triton_record.tables([{**record, "path": "some.json"}]).splitlines()
    assert tables[2] == ("| 3.6.0 | v3.6.0 | 0.5, seed 3 | 1 (25.00 %) | 3 | 2 | 0 | `some.json` |")
    assert tables[-1] == "| something that the CPU backend should do | `test_new` (1) |"


def test_the_tables_of_the_records_are_up_to_date() -> None:
    assert triton_record.page() == triton_record.PAGE.read_text(), "run `make docs`"


def test_every_supported_triton_has_a_record() -> None:
    minors = {each["versions"]["triton"].rpartition(".")[0] for each in triton_record.records()}
    triton = next(each for each in SUPPORTED if each.package == "triton")
    assert minors == {f"3.{each}" for each in between(triton.oldest, triton.newest)}


def between(oldest: str, newest: str) -> range:
    return range(int(oldest.split(".")[1]), int(newest.split(".")[1]) + 1)


def test_a_share_is_the_same_each_time_and_has_its_size() -> None:
    tests = [f"test_{k}" for k in range(2000)]
    chosen = [each for each in tests if is_chosen(each, 0.1, 3)]
    assert chosen == [each for each in tests if is_chosen(each, 0.1, 3)]
    assert 150 < len(chosen) < 250
    assert chosen != [each for each in tests if is_chosen(each, 0.1, 4)]


def test_outcomes_that_differ_are_listed() -> None:
    summary = Summary()
    passed, failed = Outcome("passed"), Outcome("failed", "ValueError: once")
    summary.add("a", [passed], [passed])
    summary.add("b", [passed, passed], [failed, failed])
    summary.add("c", [passed, failed], [failed, failed])
    assert str(summary).splitlines() == [
        "1 tests have the same outcome without and with tzero: 1 passed",
        "1 differing",
        "  b",
        "    without: passed",
        "    with:    failed: ValueError: once",
        "1 unsteady",
        "  c",
        "    without: failed: ValueError: once",
        "    without: passed",
        "    with:    failed: ValueError: once",
    ]


def test_numbers_and_paths_do_not_count() -> None:
    assert without_numbers("at 0x1f of -2.5e-3\nmore") == "at N of N"
