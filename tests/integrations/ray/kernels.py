"""A kernel with configs that pauses, where a file says so, in the process that times it."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import torch

import tzero

VARIABLE = "TZERO_TEST_PAUSES"
"""Names a folder. While it has a file ``armed``, a call writes its process id there, and waits."""


def pause() -> None:
    folder = Path(os.environ[VARIABLE])
    if (folder / "armed").exists():
        (folder / f"paused-{os.getpid()}").touch()
        while (folder / "armed").exists():
            time.sleep(0.005)


def scaled(x: torch.Tensor, config: Any) -> torch.Tensor:
    pause()
    out = x
    for _ in range(config.TIMES):
        out = out * 1.0
    return out


def kernel() -> Any:
    configs = [tzero.Config(TIMES=400), tzero.Config(TIMES=1)]
    return tzero.kernel(configs=configs)(scaled)
