"""Runs Triton's own unit tests without and with `tzero.install`, and compares them test by test.

    python tools/triton_tests.py CHECKOUT              every test, which takes hours
    python tools/triton_tests.py CHECKOUT --share 0.02 two of a hundred, chosen by --seed
    python tools/triton_tests.py CHECKOUT --jobs 16    in 16 processes of pytest at once
    python tools/triton_tests.py CHECKOUT --write FILE the CPU backend alone, without comparing

    a file of tests ─┬─ pytest ──► the outcome of each test ───────────┬──► same, or differing
                     └─ pytest, `tzero.install()` first ──► outcomes ──┘

Enters: a checkout of the Triton release that is installed; nothing in it is changed. Leaves: a
summary, and exit status 1 if a test has another outcome with tzero. An outcome is passed, failed,
skipped or expected to fail, with the type and the text of the exception, in which numbers do not
count. A file that cannot be imported counts as a test; one that asks for the compute capability of
a GPU while it is imported is told 0.0 where there is none. A test whose outcomes differ is run
again, alone; one that differs from itself is listed as unsteady. ``--launches 2`` makes each launch
of a kernel twice in both runs: with tzero, the second one is native. With ``--jobs`` files are cut
into parts. After ``--most`` seconds no test is begun, and those that did not run both ways are left
out.

``--write`` runs each test of ``unit/language`` once, without `tzero.install`: these ask what the
CPU backend can do. What happened is kept as a record, which `tools.triton_record` shows in
docs/cpu.md.

In the pytest processes this module is a plugin; the functions whose names start with ``pytest_``
are its hooks.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest

FOLDERS = ("unit/language", "unit/runtime")
ALONE = FOLDERS[0]  # what asks about a backend, not about launches
_TESTS = Path("python/test")  # of a checkout


class Outcome(NamedTuple):
    """How a test ended: a word, and the exception if there was one."""

    word: str
    error: str = ""

    def __str__(self) -> str:
        return f"{self.word}: {self.error}" if self.error else self.word


def is_chosen(test: str, share: float, seed: int, part: int = 0, parts: int = 1) -> bool:
    """Whether a test belongs to a share of all, the same for the same seed, and to a part of it.

    >>> is_chosen("test_a", 1.0, 0), is_chosen("test_a", 0.0, 0)
    (True, False)
    >>> sum(is_chosen("test_a", 1.0, 0, part, 3) for part in range(3))
    1
    """
    digest = hashlib.sha256(f"{seed} {test}".encode()).digest()
    first, second = (int.from_bytes(digest[at : at + 8], "big") for at in (0, 8))
    return first < share * 2**64 and second % parts == part


def without_numbers(text: str) -> str:
    """The first line of a message, without what changes from run to run: numbers and paths.

    >>> without_numbers("3 of 7 differ at 0x7f00 in /tmp/a1")
    'N of N differ at N in PATH'
    """
    line = text.strip().partition("\n")[0]
    line = re.sub(r"(?<![\w<])/[\w./+-]+", "PATH", line)
    line = re.sub(r"0x[0-9a-fA-F]+", "N", line)
    return re.sub(r"[-+]?\d+(\.\d+)?(e[-+]?\d+)?", "N", line)[:300]


# -- in a process of pytest ------------------------------------------------------------------------


class Plugin:
    """Chooses tests, limits the time of each, and writes how it ended."""

    def __init__(self, config: pytest.Config) -> None:
        self.choice = [config.getoption(each) for each in ("share", "choice_seed", "part", "parts")]
        only = config.getoption("only_in")
        self.only = None if only is None else set(Path(only).read_text().split("\n"))
        self.seconds, self.ends = config.getoption("seconds"), config.getoption("ends")
        self.record = Path(config.getoption("record"))
        self.done = {line["test"] for line in _lines(self.record)}
        self.outcome = Outcome("passed")

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = [each for each in items if self.takes(each.nodeid)]

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed and self.choice[2] == 0:
            last = str(report.longrepr).strip().rpartition("\n")[2]
            self.write(report.nodeid, Outcome("not collected", without_numbers(last)))

    def takes(self, test: str) -> bool:
        if test in self.done:
            return False
        return is_chosen(test, *self.choice) if self.only is None else test in self.only

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self.write(item.nodeid, Outcome("begun"))
        self.outcome = Outcome("passed")
        signal.signal(signal.SIGALRM, self.stop)
        signal.setitimer(signal.ITIMER_REAL, self.seconds)
        try:
            return (yield)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            self.write(item.nodeid, self.outcome)
            if time.time() > self.ends:
                item.session.shouldstop = "there is no time for more tests"

    def stop(self, *_: Any) -> None:
        raise TimeoutError(f"the test took more than {self.seconds} s")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Iterator[pytest.TestReport]:
        report = yield
        word = report.outcome
        if hasattr(report, "wasxfail"):
            word = "expected to fail" if report.skipped else "unexpectedly passed"
        if word != "passed":
            raised = call.excinfo
            error = f"{raised.typename}: {without_numbers(str(raised.value))}" if raised else ""
            place = "" if report.when == "call" else f"{report.when}, "
            self.outcome = Outcome(f"{place}{word}", error)
        return report

    def write(self, test: str, outcome: Outcome) -> None:
        with self.record.open("a") as file:
            file.write(json.dumps({"test": test, "word": outcome.word, "error": outcome.error}))
            file.write("\n")


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options that `_command` gives."""
    parser.addoption("--record")
    parser.addoption("--share", type=float)
    parser.addoption("--choice-seed", type=int)
    parser.addoption("--part", type=int)
    parser.addoption("--parts", type=int)
    parser.addoption("--only-in")
    parser.addoption("--seconds", type=float)
    parser.addoption("--ends", type=float)
    parser.addoption("--launches", type=int)
    parser.addoption("--with-tzero", action="store_true")


def pytest_configure(config: pytest.Config) -> None:
    """Install tzero if that is asked for."""
    config.pluginmanager.register(Plugin(config))
    if config.getoption("with_tzero"):
        import tzero

        tzero.install()
    if config.getoption("launches") > 1:
        _repeat_launches(config.getoption("launches"))


def pytest_pycollect_makemodule(module_path: Path) -> None:
    """Let a file be imported that asks for the GPU's compute capability in a decorator."""
    if "torch.cuda.get_device_capability" in module_path.read_text():
        import torch

        if not torch.cuda.is_available():
            torch.cuda.get_device_capability = lambda device=None: (0, 0)


def _repeat_launches(times: int) -> None:
    from triton.runtime.jit import JITFunction, KernelInterface

    def subscript(kernel: Any, grid: Any) -> Any:
        launch = KernelInterface.__getitem__(kernel, grid)

        def repeated(*args: Any, **kwargs: Any) -> Any:
            for _ in range(times - 1):
                launch(*args, **kwargs)
            return launch(*args, **kwargs)

        return repeated

    JITFunction.__getitem__ = subscript


def _lines(record: Path) -> list[dict[str, str]]:
    text = record.read_text() if record.exists() else ""
    return [json.loads(line) for line in text.splitlines()]


# -- comparing -------------------------------------------------------------------------------------


@dataclass
class Summary:
    """The outcomes of all tests so far, without tzero and with it."""

    words: Counter[str] = field(default_factory=Counter)
    differing: dict[str, tuple[set[Outcome], set[Outcome]]] = field(default_factory=dict)
    unsteady: dict[str, tuple[set[Outcome], set[Outcome]]] = field(default_factory=dict)

    def add(self, test: str, without: Iterable[Outcome], having: Iterable[Outcome]) -> None:
        """Add a test with what was seen of it in one run or more."""
        pair = set(without), set(having)
        if not pair[0] & pair[1]:
            self.differing[test] = pair
        elif len(pair[0] | pair[1]) > 1:
            self.unsteady[test] = pair
        else:
            self.words[next(iter(pair[0])).word] += 1

    def __str__(self) -> str:
        same = sum(self.words.values())
        counts = ", ".join(f"{count:,} {word}" for word, count in self.words.most_common())
        lines = [f"{same:,} tests have the same outcome without and with tzero: {counts}"]
        for title, tests in (("differing", self.differing), ("unsteady", self.unsteady)):
            lines.append(f"{len(tests):,} {title}")
            for test, (without, having) in tests.items():
                lines.append(f"  {test}")
                lines += [f"    without: {each}" for each in sorted(without)]
                lines += [f"    with:    {each}" for each in sorted(having)]
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Part:
    """Some tests of a file, and until when the runs without tzero, and those with it, may begin new
    ones."""

    path: Path
    number: int = 0
    of: int = 1
    ends: tuple[float, float] = (math.inf, math.inf)


Seen = dict[str, tuple[list[Outcome], list[Outcome]]]
"""What was seen of each test, without tzero and with it."""


def compare(options: argparse.Namespace, folder: Path) -> Summary:
    """Run the tests of each file both ways, several processes at once."""
    summary, ends = Summary(), time.time() + options.most
    with ThreadPoolExecutor(options.jobs) as threads:
        running = [threads.submit(_both, options, folder, each, ends) for each in _parts(options)]
        for each in as_completed(running):
            part, seen = each.result()
            for test, (without, having) in seen.items():
                summary.add(test, without, having)
            name = f"{part.path.name} {part.number + 1}/{part.of}"
            print(f"{name}: {len(seen):,} tests, {len(summary.differing):,} differ so far")
    return summary


def alone(options: argparse.Namespace, folder: Path) -> dict[str, Outcome]:
    """The outcome of each test, run once and without `tzero.install`."""
    found: dict[str, Outcome] = {}
    ends = time.time() + options.most
    # All files in one process, unless some are chosen: it takes seconds to start.
    whole = options.checkout / _TESTS / ALONE
    parts = _parts(options) if options.file else _cut(whole, options.jobs)
    with ThreadPoolExecutor(options.jobs) as threads:
        running = [
            threads.submit(_outcomes, options, folder, replace(each, ends=(ends, ends)), False)
            for each in parts
        ]
        for each in as_completed(running):
            found.update(each.result())
    return found or sys.exit(f"no test ran in {whole}: give a checkout of Triton")


_LARGE = 100_000  # bytes of a file that is cut into as many parts as there are processes


def _parts(options: argparse.Namespace) -> list[Part]:
    """All parts, those of large files first."""
    found = []
    for path in sorted(_files(options), key=lambda each: -each.stat().st_size):
        of = options.jobs if path.stat().st_size > _LARGE else min(options.jobs, 4)
        found += _cut(path, of)
    return found


def _cut(path: Path, of: int) -> list[Part]:
    return [Part(path, number, of) for number in range(of)]


def _both(options: argparse.Namespace, folder: Path, part: Part, ends: float) -> tuple[Part, Seen]:
    """Run the tests of a part without tzero, those that ran with it, and what differs again."""
    now = time.time()
    if now > ends:
        return part, {}
    # The second run finds what the first one compiled.
    part = replace(part, ends=(now + 0.6 * (ends - now), ends))
    without = _outcomes(options, folder, part, False)
    having = _outcomes(options, folder, part, True, without if options.most < math.inf else None)
    seen: Seen = {}
    late = time.time() > ends
    for test in without.keys() | having.keys():
        if late and not (test in without and test in having):
            continue
        seen[test] = [without.get(test, _MISSING)], [having.get(test, _MISSING)]
    for test, pair in seen.items():
        if pair[0] != pair[1]:
            for mine, tzero in zip(pair, (False, True), strict=True):
                again = _outcomes(options, folder, Part(part.path), tzero, [test])
                mine.append(again.get(test, _MISSING))
    return part, seen


_MISSING = Outcome("missing")


def _files(options: argparse.Namespace) -> list[Path]:
    root = options.checkout / _TESTS
    found = [each for folder in FOLDERS for each in sorted((root / folder).glob("test_*.py"))]
    if not found:
        sys.exit(f"there are no tests in {root}: give a checkout of Triton")
    chosen = [each for each in found if not options.file or each.name in options.file]
    return chosen or sys.exit(f"none of the files is called {options.file}")


def _outcomes(
    options: argparse.Namespace,
    folder: Path,
    part: Part,
    tzero: bool,
    only: Iterable[str] | None = None,
) -> dict[str, Outcome]:
    """The outcomes of the tests of a part. pytest is started again after a test that ends it."""
    with tempfile.TemporaryDirectory(dir=folder) as mine:
        record = Path(mine) / "record"
        if only is not None:
            record.with_name("only").write_text("\n".join(only))
        while True:
            command = _command(options, record, part, tzero)
            code = _run(command, record, options)
            lines = _lines(record)
            if not lines or lines[-1]["word"] != "begun":
                break
            word = "hung" if code is None else f"ended the process with {code}"
            with record.open("a") as file:
                file.write(json.dumps({**lines[-1], "word": word}) + "\n")
        if code not in (0, 1, 2, 5):  # 2: it was not collected, 5: no test was chosen
            said = record.with_name("output").read_text()[-2000:]
            raise RuntimeError(f"pytest could not run {part.path}:\n{said}")
    return {each["test"]: Outcome(each["word"], each["error"]) for each in lines}


def _command(options: argparse.Namespace, record: Path, part: Part, tzero: bool) -> list[str]:
    only = record.with_name("only")
    empty = record.with_name("pytest.ini")
    empty.write_text("[pytest]\n")
    return [
        *(sys.executable, "-m", "pytest", "-q", "-p", Path(__file__).stem),
        *("-p", "no:cacheprovider", "-p", "no:xdist", "-c", str(empty), "--tb", "no"),
        "--continue-on-collection-errors",
        *("--rootdir", str(options.checkout / _TESTS), "--device", options.device),
        *("--record", str(record), "--share", str(options.share)),
        *("--choice-seed", str(options.seed), "--seconds", str(options.seconds)),
        *("--part", str(part.number), "--parts", str(part.of), "--ends", str(part.ends[tzero])),
        *("--launches", str(options.launches), *["--with-tzero"] * tzero),
        *(["--only-in", str(only)] if only.exists() else []),
        str(part.path),
    ]


def _run(command: list[str], record: Path, options: argparse.Namespace) -> int | None:
    """Run pytest; its exit status, or None if it had to be killed."""
    path = os.pathsep.join([str(Path(__file__).parent), *filter(None, [os.getenv("PYTHONPATH")])])
    env = {**os.environ, "PYTHONPATH": path, "TRITON_CACHE_DIR": str(record.parents[1] / "cache")}
    if options.device == "cpu":
        env["TZERO_CPU"] = "1"
    with record.with_name("output").open("w") as output:
        process = subprocess.Popen(command, env=env, stdout=output, stderr=subprocess.STDOUT)
        started = time.time()
        while True:
            try:
                return process.wait(1.0)
            except subprocess.TimeoutExpired:
                pass
            # Between tests it collects, imports torch, or sets up what many tests share.
            most = options.seconds + 30 if _is_in_test(record) else 600
            last = record.stat().st_mtime if record.exists() else started
            if time.time() - last > most:
                process.kill()
                process.wait()
                return None


def _is_in_test(record: Path) -> bool:
    """Whether the last line says that a test has begun. A line may be half written."""
    return record.exists() and record.read_text().endswith('"word": "begun", "error": ""}\n')


def _write(options: argparse.Namespace) -> int:
    """Run the tests of the CPU backend alone, and write the record of it."""
    if options.device != "cpu" or options.launches != 1:
        sys.exit("--write is about the CPU backend alone: leave out --device and --launches")
    # pytest loads this file as a plugin, where the root of the repository is not on the path.
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from tools import triton_record

    with tempfile.TemporaryDirectory() as folder:
        begun = triton_record.begun(options.checkout, options.share, options.seed, options.seconds)
        ends = time.time() + options.most
        outcomes = alone(options, Path(folder))
    record = triton_record.finished(begun, outcomes, early=time.time() > ends)
    options.write.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print(triton_record.in_words(record))
    return 0


def main() -> int:
    """Compare as the command line says."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("checkout", type=Path, help="of the Triton release that is installed")
    parser.add_argument("--share", type=float, default=1.0, help="of the tests; 1 for all")
    parser.add_argument("--seed", type=int, default=0, help="which share")
    parser.add_argument("--file", action="append", help="such as test_launch.py; all if not given")
    parser.add_argument("--seconds", type=float, default=60.0, help="the most a test may take")
    parser.add_argument("--launches", type=int, default=1, help="how often each launch is made")
    parser.add_argument("--jobs", type=int, default=1, help="how many processes at once")
    parser.add_argument("--most", type=float, default=math.inf, help="when to begin no more, in s")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--write", type=Path, help="run the CPU backend alone, and keep a record")
    options = parser.parse_args()
    options.checkout = options.checkout.resolve()
    if options.write is not None:
        return _write(options)
    with tempfile.TemporaryDirectory() as folder:
        summary = compare(options, Path(folder))
    print(summary)
    return 1 if summary.differing else 0


if __name__ == "__main__":
    sys.exit(main())
