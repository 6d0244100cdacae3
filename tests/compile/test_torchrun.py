"""A job of torchrun, whose ranks share nothing but its store: each kernel is compiled once."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.compile.waiting import PYTHONPATH

JOB = Path(__file__).with_name("job.py")


def run_job(folder: Path, ranks: int, kernels: int, **names: str) -> list[dict[str, Any]]:
    """Run a job, and return what its ranks report."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={ranks}"]
    command += ["--master-addr=127.0.0.1", f"--master-port={port}", str(JOB), str(folder)]
    variables = {"PYTHONPATH": PYTHONPATH, "TZERO_FLEET": "c10d", "TZERO_CPU": "1", **names}
    done = subprocess.run(
        [*command, str(kernels)],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(path.read_text()) for path in sorted(folder.glob("[0-9]*.json"))]


def test_ranks_compile_each_kernel_once_and_make_one_choice(tmp_path: Path) -> None:
    reports = run_job(tmp_path, ranks=2, kernels=4, TZERO_CACHE_KEY="a secret of the job")
    compiled = [digest for report in reports for digest in report["compiled"]]
    assert len(compiled) == len(set(compiled)) == 4 + 2  # the kernels, and the configs
    assert all(report["compiled"] for report in reports)  # both did a part
    assert sorted(report["how"] for report in reports) == ["cached", "tuned"]
    assert len({report["block"] for report in reports}) == 1
    assert sum(report["hits"]["remote"] for report in reports) >= 4


LEASE = 3


@pytest.mark.parametrize("how", ["exit", "stop"])
def test_what_a_lost_rank_had_claimed_is_made_once_by_another(how: str, tmp_path: Path) -> None:
    """It ends, or is stopped until the others have reported, while it holds a lease."""
    (tmp_path / "kill").write_text(how)
    reports = run_job(tmp_path, ranks=4, kernels=6, TZERO_LEASE=str(LEASE))
    pid, at, _, digest = json.loads((tmp_path / "lost").read_text())
    others = [report for report in reports if report["pid"] != pid]
    assert len(others) == 3 and len(reports) == (3 if how == "exit" else 4)
    compiled = [each for report in others for each in report["compiled"]]
    assert len(compiled) == len(set(compiled)) == 6 + 2 and digest in compiled
    assert len({report["block"] for report in reports}) == 1
    assert [report["how"] for report in others].count("tuned") <= 1
    # The others may have all kernels to compile yet; all of them together bound that here.
    work = sum(sum(report["seconds"]) for report in others)
    left = max(report["precompile"][1] for report in others) - at
    assert left <= 3 * (LEASE + work)
