"""Kernels in the workers of data loaders, in processes that share tensors, and in threads."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from tests import warm
from tests.integrations.torch import hosts
from tests.integrations.torch.hosts import Made

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("method", "tier"), [("fork", 1), ("fork", 2), ("spawn", 2)], indirect=["tier"]
)
def test_kernels_run_in_data_loaders_and_in_processes_that_share_tensors(
    method: str, tier: int
) -> None:
    command = [sys.executable, "-m", "tests.integrations.torch.programs", method, str(tier)]
    done = warm.run(command, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr


def test_neither_recording_nor_tuning_imports_torch_compile(tmp_path: Path) -> None:
    code = (
        "import sys, torch\n"
        "from tests.integrations.torch.hosts import chosen, doubled\n"
        "x = torch.ones(70)\n"
        "assert torch.equal(doubled(x), doubled(x))\n"
        "assert len(chosen.autotune(x).steps) == 2\n"
        "assert torch.equal(chosen(x), doubled(x))\n"
        "assert 'replayed' in str(chosen.explain(x)) and 'replayed' in str(doubled.explain(x))\n"
        "print('torch._dynamo' in sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**os.environ, "TZERO_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.stdout.split() == ["False"], done.stdout + done.stderr


# -- threads ---------------------------------------------------------------------------------------


def test_threads_call_one_kernel_under_modes_of_their_own(made: Made) -> None:
    def work(number: int) -> bool:
        together.wait()
        right = True
        for step in range(40):
            size = 3 + (number + step) % 5
            x = torch.randn(size, requires_grad=step % 3 == 0)
            with modes[number % len(modes)]():
                right &= torch.equal(made.scaled(x, float(number)), (x * number).detach())
                right &= torch.equal(made.summed(x, x), (x + x).detach())
                right &= torch.equal(hosts.launched(made.launch, x, 2.0), (x * 2).detach())
        return right

    modes: list[Any] = [torch.no_grad, torch.inference_mode, torch.enable_grad]
    count = 8
    together = threading.Barrier(count)
    with ThreadPoolExecutor(count) as threads:
        assert all(threads.map(work, range(count)))


def test_threads_train_with_kernels_in_both_directions(made: Made) -> None:
    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = made.scaled(x, 2.0)
            return out

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> Any:
            return made.scaled(gradient.contiguous(), 2.0)

    def work(number: int) -> bool:
        right = True
        for _ in range(20):
            x = torch.randn(5, requires_grad=True)
            (Twice.apply(x) * number).sum().backward()
            right &= x.grad is not None and torch.equal(x.grad, torch.full((5,), 2.0 * number))
        return right

    with ThreadPoolExecutor(6) as threads:
        assert all(threads.map(work, range(6)))


def test_threads_call_a_kernel_while_one_compiles_it(made: Made) -> None:
    stop = threading.Event()

    def work(_: int) -> bool:
        right = True
        while not stop.is_set():
            x = torch.randn(6)
            right &= torch.equal(made.scaled(x, 2.0), x * 2)
        return right

    with ThreadPoolExecutor(3) as threads:
        others = threads.map(work, range(3))
        try:
            for size in (6, 7, 8):
                compiled = torch.compile(
                    lambda x: made.scaled(x + 1, 2.0), backend="aot_eager", fullgraph=True
                )
                x = torch.randn(size)
                assert torch.equal(compiled(x), (x + 1) * 2)
        finally:
            stop.set()
        assert all(others)


def test_a_shared_tensor_is_written_in_place(made: Made) -> None:
    for _ in range(3):
        x = torch.ones(5).share_memory_()
        made.grown(x)
        assert x.is_shared() and x.tolist() == [2.0] * 5
