"""Makes searches of the fastest config short, for tests that do not ask which one it is.

Enters: pytest's `monkeypatch`. Leaves: in this process, until the test ends, tzero's tuner and
Triton's autotuners on the CPU, which make the same steps in milliseconds. It knows no kernel.
"""

from __future__ import annotations

import pytest

from tzero.cpu import driver
from tzero.tune import timing, tuner


def tune_briefly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have tzero's tuner take shorter samples, flush less, and wait less for a quiet machine."""
    for name in ("EACH", "LEAST", "ROUND"):
        monkeypatch.setattr(tuner, name, 0.004)
    monkeypatch.setattr(tuner, "LONGER", 0.2)
    monkeypatch.setattr(timing.CpuClock, "shortest", 3e-4)
    monkeypatch.setattr(timing, "_LARGEST", 1 << 20)


def autotune_briefly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have Triton's autotuners time a config a few times, not for an eighth of a second."""
    warmup, rep, *others = driver.do_bench.__defaults__ or ()
    assert (warmup, rep) == (25, 100)
    monkeypatch.setattr(driver.do_bench, "__defaults__", (0, 0, *others))
