"""Records of Triton's own language tests on the CPU backend, as tables of docs/cpu.md.

Enters: the outcomes that ``tools/triton_tests.py --write`` has seen, or the records of earlier
runs. Leaves: a record for ``bench/results``, with every failure and what it asks for, and the
tables. It must not know how tests are run.

    python -m tools.triton_record            write the tables of docs/cpu.md from the records
"""

from __future__ import annotations

import json
import subprocess
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench import record as bench_record
from bench.pages import with_tables

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "cpu.md"
RESULTS = ROOT / "bench" / "results"

KINDS = {
    "ir": "the IR of GPU backends (`ttgir`, `llir`), or their passes",
    "cuda": "tensors on the device `cuda`, or that tensors on the CPU are refused",
    "threads": "a line from each of a GPU's threads, or a number of them",
    "refused": "that formats or options which some GPUs lack are refused",
    "time": "more time than a test was given",
    "open": "something that the CPU backend should do",
}
"""What tests that fail ask for. All but `open` and `time` ask about a GPU."""

ASKS = {
    "test_assume": "ir",
    "test_disable_licm": "ir",
    "test_no_rematerialization_op": "ir",
    "test_optimize_thread_locality": "ir",
    "test_poison_return": "ir",
    "test_tl_range_fuse": "ir",
    "test_tl_range_fuse_dependent": "ir",
    "test_trans_reshape": "ir",
    "test_triton_reproducer_path": "ir",
    "test_preshuffle_scale_mxfp_cdna4": "cuda",
    "test_pointer_arguments": "cuda",
    "test_zero_strided_tensors": "cuda",
    "test_print": "threads",
    "test_num_warps_pow2": "refused",
    "test_fp8_support": "refused",
}
"""What a test function asks for: it was looked at, and its failures are about that."""

_PASSED = ("passed", "expected to fail", "unexpectedly passed")


def kind(test: str, error: str) -> str:
    """The kind of a failure; `open` if nobody has looked at its function.

    >>> kind("test_core.py::test_assume", ""), kind("test_core.py::test_bin_op[1]", "")
    ('ir', 'open')
    """
    if error.startswith("TimeoutError: the test took"):
        return "time"
    if "Torch not compiled with CUDA enabled" in error:
        return "cuda"
    return ASKS.get(function(test), "open")


def function(test: str) -> str:
    """The name of a test's function.

    >>> function("unit/language/test_core.py::test_bin_op[1-float::x]")
    'test_bin_op'
    """
    return test.partition("[")[0].rpartition("::")[2]


def begun(checkout: Path, share: float, seed: int, seconds: float) -> dict[str, Any]:
    """The part of a record that is known before the tests run."""
    return {
        "program": "tools/triton_tests.py --write",
        "when": bench_record.now(),
        "machine": bench_record.machine(),
        "versions": bench_record.versions(),
        "tests": _commit(checkout),
        "share": share,
        "seed": seed,
        "seconds": seconds,
    }


def _commit(checkout: Path) -> str:
    """What is checked out: a tag, or the commit with its day."""
    git = ["git", "-C", str(checkout)]
    for command in (["describe", "--tags", "--exact-match"], ["log", "-1", "--format=%h of %cs"]):
        done = subprocess.run([*git, *command], capture_output=True, text=True)
        if done.returncode == 0:
            return done.stdout.strip()
    return "not a git checkout"


def finished(
    begun: Mapping[str, Any], outcomes: Mapping[str, tuple[str, str]], early: bool = False
) -> dict[str, Any]:
    """The whole record: how many tests ended how, and every failure. ``early`` says that there was
    no time for the last of the share."""
    words = Counter(word.rpartition(", ")[2] for word, _ in outcomes.values())
    failures = [
        {"test": test, "kind": kind(test, error), "word": word, "error": error}
        for test, (word, error) in sorted(outcomes.items())
        if not word.endswith(("skipped", *_PASSED))
    ]
    return {
        **begun,
        "early": early,
        "counts": {"tests": len(outcomes), **dict(sorted(words.items()))},
        "failing": len(failures),
        "kinds": dict(sorted(Counter(each["kind"] for each in failures).items())),
        "failures": failures,
    }


def passing(record: Mapping[str, Any]) -> int:
    """How many tests ended as Triton says that they should.

    >>> passing({"counts": {"tests": 5, "passed": 2, "expected to fail": 1, "skipped": 2}})
    3
    """
    return sum(record["counts"].get(word, 0) for word in _PASSED)


def in_words(record: Mapping[str, Any]) -> str:
    """A record as a few lines, with what fails and nobody has looked at."""
    good, bad = passing(record), record["failing"]
    kinds = ", ".join(f"{count} {name}" for name, count in record["kinds"].items())
    lines = [
        f"{good:,} of {good + bad:,} tests pass ({_percent(good, bad)}), not counting skipped ones",
        f"{bad:,} fail: {kinds or 'none'}",
    ]
    looked = [each for each in record["failures"] if each["kind"] in ("open", "time")]
    return "\n".join([*lines, *(f"  {each['test']}: {each['error']}" for each in looked)])


def _percent(good: int, bad: int) -> str:
    """A share in percent, rounded down: 100 % means all.

    >>> _percent(1999, 1), _percent(5, 0)
    ('99.95 %', '100 %')
    """
    if not good + bad:
        return "none ran"
    hundredths = 10_000 * good // (good + bad)
    return "100 %" if not bad else f"{hundredths // 100}.{hundredths % 100:02} %"


# -- the page --------------------------------------------------------------------------------------


def records() -> list[dict[str, Any]]:
    """The records in ``bench/results``, by version of Triton."""
    paths = sorted(RESULTS.glob("triton-tests-*.json"))
    return [{"path": path.name, **json.loads(path.read_text())} for path in paths]


def tables(found: Sequence[Mapping[str, Any]]) -> str:
    """A table of the runs, and one of what fails in them."""
    lines = [
        "| Triton | tests of | share | pass | fail | about a GPU | skip themselves | record |",
        "|---|---|--:|--:|--:|--:|--:|---|",
        *map(_row, found),
        "",
        "| they ask for | failing test functions |",
        "|---|---|",
        *_asked(found),
    ]
    return "\n".join(lines)


def _row(record: Mapping[str, Any]) -> str:
    good, bad, kinds = passing(record), record["failing"], record["kinds"]
    ours = kinds.get("open", 0) + kinds.get("time", 0)
    cells = [
        record["versions"]["triton"],
        record["tests"],
        _share(record),
        f"{good:,} ({_percent(good, bad)})",
        f"{bad:,}",
        f"{bad - ours:,}",
        f"{record['counts'].get('skipped', 0):,}",
        f"`{record['path']}`",
    ]
    return f"| {' | '.join(cells)} |"


def _share(record: Mapping[str, Any]) -> str:
    share = "all" if record["share"] == 1 else f"{record['share']:g}, seed {record['seed']}"
    return f"{share}; stopped early" if record["early"] else share


def _asked(found: Sequence[Mapping[str, Any]]) -> list[str]:
    """For each kind, the functions of which a test fails, with how many do in all records."""
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for record in found:
        for each in record["failures"]:
            counts[each["kind"]][function(each["test"])] += 1
    rows = []
    for name, text in KINDS.items():
        named = [f"`{test}` ({count})" for test, count in sorted(counts[name].items())]
        rows += [f"| {text} | {', '.join(named)} |"] if named else []
    return rows


def page() -> str:
    """docs/cpu.md with the tables of the records that there are."""
    return with_tables(PAGE.read_text(), "tools.triton_record", tables(records()))


def main() -> None:
    """Write the page."""
    PAGE.write_text(page())


if __name__ == "__main__":
    main()
