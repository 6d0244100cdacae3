"""A job of torchrun, whose ranks share nothing but its store: each kernel is compiled once."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

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
