"""Many processes, one of each compile: ranks of torchrun measured here, 1,000 nodes simulated.

Enters: nothing. Leaves: a record in ``bench/results``, and the tables of ``docs/scale.md``.

    python -m bench.fleet            measure, and print
    python -m bench.fleet --write    measure, keep the record, and write the tables
    python -m bench.fleet --table    write the tables from the record

The ranks are those of ``tests/compile/job.py``: 8 processes that share no disk, with 12 kernels and
one that is tuned, at the c10d store of their job. Once nothing happens, once a rank ends while it
compiles, once it is stopped. The simulation (`bench.simulation`) uses how long the stores take for
a request, measured here.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench import simulation
from bench.pages import with_tables

__all__ = ["PAGE", "main", "page"]

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "scale.md"
RECORD = ROOT / "bench" / "results" / "fleet-cpu.json"

RANKS, KERNELS = 8, 12
LEASE = 5
REQUESTS = 100


def ranks(how: str) -> dict[str, Any]:
    """A job whose first compiling rank goes on, ends or is stopped."""
    from tests.compile.test_torchrun import run_job

    with tempfile.TemporaryDirectory(prefix="tzero-bench-") as name:
        folder = Path(name)
        if how != "go on":
            (folder / "kill").write_text(how)
        reports = run_job(folder, RANKS, KERNELS, TZERO_LEASE=str(LEASE))
        lost = json.loads((folder / "lost").read_text()) if how != "go on" else None
    done = [report for report in reports if lost is None or report["pid"] != lost[0]]
    compiled = [
        (digest, at)
        for report in done
        for digest, at in zip(report["compiled"], report["times"], strict=True)
    ]
    again = [at - lost[1] for digest, at in compiled if lost is not None and digest == lost[3]]
    return {
        "how": how,
        "compiles": len(compiled),
        "distinct": len({digest for digest, _ in compiled}),
        "choices": len({report["block"] for report in done}),
        "longest_compile": max(each for report in reports for each in report["seconds"]),
        "again": max(again, default=None),
        "others_done": None
        if lost is None
        else max(report["precompile"][1] for report in done) - lost[1],
        "seconds": max(report["precompile"][1] for report in done)
        - min(report["precompile"][0] for report in done),
    }


def request_times() -> dict[str, float]:
    """Seconds of a small request to each kind of store, one after another, on this machine."""
    import datetime

    import torch.distributed as dist

    from tests.cache.conftest import start_redis
    from tzero.cache import c10d
    from tzero.cache.claims_redis import Redis

    wait = datetime.timedelta(seconds=60)
    store = dist.TCPStore("127.0.0.1", 0, None, True, wait, wait_for_workers=False)
    with tempfile.TemporaryDirectory() as folder:
        server = start_redis(Path(folder))
        try:
            url = c10d.url_of(store)
            boards = {"c10d": c10d.Marks(c10d.connection(url)), "redis": Redis(server.url)}
            return {name: _request_time(board) for name, board in boards.items()}
        finally:
            server.stop()


def _request_time(board: Any) -> float:
    best = float("inf")
    for _ in range(100):  # the fastest counts: other programs disturb most of them
        start = time.perf_counter()
        for _ in range(REQUESTS):
            board.read("a name")
        best = min(best, (time.perf_counter() - start) / REQUESTS)
    return best


def measured() -> dict[str, Any]:
    """Everything that the page has."""
    from bench import record

    times = request_times()
    return {
        "machine": record.machine("cpu"),
        "versions": record.versions(),
        "ranks": [ranks(how) for how in ("go on", "exit", "stop")],
        "lease": LEASE,
        "request_seconds": times,
        "simulated": [
            {"store": store, **simulation.run(each, times[store], store)}
            for store in times
            for each in simulation.FLEETS
        ],
    }


_EVENTS = {
    "go on": "nothing happens",
    "exit": "a rank ends while it compiles",
    "stop": "a rank is stopped (SIGSTOP) while it compiles",
}


def table(found: dict[str, Any]) -> str:
    """The tables of a record."""
    versions = found["versions"]
    lines = [
        f"{RANKS} ranks on one machine ({found['machine']['cpu']}, 2 cores), each with a disk of "
        f"its own, {KERNELS} kernels and one with 2 configs, c10d, a lease of {found['lease']} s; "
        f"Python {versions['python']}, torch {versions['torch']}, Triton {versions['triton']}:",
        "",
        "| what happens | compiles that count | distinct | configs chosen | longest compile | "
        "the lost kernel is there after | all others are done after | asked for | "
        "all is there, from the start |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for row in found["ranks"]:
        again = others = asked = ""
        if row["again"] is not None:
            again, others = f"{row['again']:.1f} s", f"{row['others_done']:.1f} s"
            most = found["lease"] + row["longest_compile"]
            verdict = "met" if row["others_done"] <= most else "missed"
            asked = f"≤ {most:.1f} s: {verdict}"
        lines.append(
            f"| {_EVENTS[row['how']]} | {row['compiles']} | {row['distinct']} | {row['choices']} | "
            f"{row['longest_compile']:.1f} s | {again} | {others} | {asked} | "
            f"{row['seconds']:.1f} s |"
        )
    lines += [
        "",
        "Simulated, with the time of a request measured here ("
        + ", ".join(f"{k} {v * 1e6:.0f} µs" for k, v in found["request_seconds"].items())
        + "), 200 kB a kernel and a network of 10 Gbit/s at the store:",
        "",
        "| store | nodes | kernels | seconds a compile | compiles | requests | the most a second | "
        "GB sent | seconds until all nodes are warm | each node for itself |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for row in found["simulated"]:
        lines.append(
            f"| {row['store']} | {row['nodes']:,} | {row['kernels']} | {row['compile']:g} | "
            f"{row['compiles']} | {row['requests']:,} | {row['peak']:,} | "
            f"{row['bytes'] / 1e9:.1f} | {row['warm']:.1f} | {row['alone']:.1f} |"
        )
    return "\n".join(lines)


def page(text: str) -> str:
    """The text of the page, with the tables of the record."""
    found = json.loads(RECORD.read_text(encoding="utf-8"))
    return with_tables(text, "bench.fleet", table(found))


def main(arguments: Sequence[str]) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m bench.fleet", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--write", action="store_true", help="keep the record, write the tables")
    parser.add_argument("--table", action="store_true", help="write the tables, measure nothing")
    given = parser.parse_args(arguments)
    if not given.table:
        os.environ.setdefault("TZERO_CPU", "1")  # before Triton is imported
        found = measured()
        print(table(found))
        if given.write:
            RECORD.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    if given.table or given.write:
        PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
