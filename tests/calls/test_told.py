"""What a user is told of fallbacks: a warning once per kernel if they last, INFO if they pass."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
import triton.language as tl

import tzero
from tests import tiers
from tests.briefly import autotune_briefly
from tzero import settings
from tzero.fallbacks import Fallbacks

tier = tiers.fixture(1, 2, override=True)


@triton.jit
def scale_kernel(x, out, by, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < n) * by, mask=at < n)


timed = triton.autotune([triton.Config({"BLOCK": 16}), triton.Config({"BLOCK": 32})], key=["n"])(
    triton.jit(scale_kernel.fn)
)
X = torch.arange(1.0, 6.0)


def scaled(x, thing=None):
    out = torch.empty_like(x)
    scale_kernel[(1,)](x, out, 2.0, x.numel(), BLOCK=16)
    return out


def reads_values(x):
    out = scaled(x)
    return out if out.sum() > 0 else x


def tuned_by_triton(x):
    out = torch.empty_like(x)
    timed[(1,)](x, out, 2.0, x.numel())
    return out


class Thing:
    pass


def in_a_mode(kernel: tzero.Kernel) -> None:
    with torch.device("cpu"):
        kernel(X)


def with_an_autotuner(kernel: tzero.Kernel) -> None:
    timed.cache.clear()
    kernel(X)


PASSING: dict[str, tuple[Callable[..., Any], Callable[[Any], None], str]] = {
    "a mode": (scaled, in_a_mode, "a torch function mode is on"),
    "an autotuner": (tuned_by_triton, with_an_autotuner, "an autotuner times scale_kernel"),
}


@pytest.mark.parametrize("name", PASSING)
def test_a_passing_fallback_is_logged_as_information(
    name: str, tier: int, caplog: pytest.LogCaptureFixture
) -> None:
    host, act, words = PASSING[name]
    kernel = tzero.kernel(host)
    with caplog.at_level(logging.INFO, logger="tzero"):
        act(kernel)
        act(kernel)
    found = [each for each in caplog.records if words in each.getMessage()]
    assert [each.levelname for each in found] == ["INFO"]
    assert found[0].getMessage().startswith(f"{host.__name__}: fallback: not replayed: ")
    assert not [each for each in caplog.records if each.levelno >= logging.WARNING]
    for _ in range(3):
        kernel(X)
    assert kernel.explain(X).replay is not None  # it passed


def test_a_lasting_fallback_is_one_warning_with_its_place(
    tier: int, caplog: pytest.LogCaptureFixture
) -> None:
    kernel = tzero.kernel(reads_values)
    with caplog.at_level(logging.INFO, logger="tzero"):
        for x in (X, X, X.double(), X[:2]):
            kernel(x)
    (told,) = [each for each in caplog.records if each.levelno == logging.WARNING]
    line = reads_values.__code__.co_firstlineno + 2
    assert told.getMessage() == (
        "tzero: reads_values: fallback: not replayed: it reads the value of a tensor "
        f"(Tensor.__bool__), at {__file__}:{line}. Told once per kernel; silence it with "
        'TZERO_QUIET=1 or logging.getLogger("tzero").setLevel("ERROR").'
    )


def test_a_second_reason_of_a_kernel_is_information(
    tier: int, caplog: pytest.LogCaptureFixture
) -> None:
    kernel = tzero.kernel(scaled)
    with caplog.at_level(logging.INFO, logger="tzero"):
        kernel(X, Thing())
        kernel(X, object())
        kernel(X, Thing())
    found = [(each.levelname, each.args[0].kind) for each in caplog.records]  # type: ignore[index, union-attr]
    assert found == [("WARNING", "fallback"), ("INFO", "fallback")]


def test_each_kernel_has_its_own_warning(tier: int, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        tzero.kernel(scaled)(X, Thing())
    assert [each.levelname for each in caplog.records] == ["WARNING", "WARNING"]


def test_what_passes_too_often_lasts(
    tier: int, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    autotune_briefly(monkeypatch)
    kernel = tzero.kernel(tuned_by_triton)
    with caplog.at_level(logging.INFO, logger="tzero"):
        for _ in range(40):
            timed.cache.clear()
            kernel(X)
    found = [each.levelname for each in caplog.records if "autotuner times" in each.getMessage()]
    assert found == ["INFO", "WARNING"]


def test_quiet_makes_warnings_information(tier: int, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="tzero"), settings.override(quiet=True):
        tzero.kernel(reads_values)(X)
    assert [each.levelname for each in caplog.records if "fallback" in each.getMessage()] == [
        "INFO"
    ]


def test_nothing_is_said_of_a_function_that_launches_nothing(
    tier: int, caplog: pytest.LogCaptureFixture
) -> None:
    kernel = tzero.kernel(lambda x: x)
    with caplog.at_level(logging.INFO, logger="tzero"):
        kernel(X)
    assert not [each for each in caplog.records if "fallback" in each.getMessage()]


def test_the_reasons_of_a_kernel_are_bounded() -> None:
    told, seen = Fallbacks("add"), []
    with tzero.events.observe(seen.append):
        for number in range(1000):
            told.passing(f"not replayed: {number}")
            told.lasting(f"not replayed: always {number}")
    assert 2 <= len(seen) <= 64


PROGRAM = """
import torch, triton, triton.language as tl, tzero

@triton.jit
def double(x, out, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < n) * 2, mask=at < n)

@tzero.kernel
def host(x):
    out = torch.empty_like(x)
    double[(1,)](x, out, x.numel(), BLOCK=16)
    return float(out.sum())

for _ in range(5):
    host(torch.ones(4))
    host(torch.ones(5))
"""


@pytest.mark.parametrize("quiet", ["", "1"])
def test_a_terminal_shows_one_line(quiet: str, tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    environ = {**os.environ, "TZERO_CPU": "1", "TZERO_QUIET": quiet}
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, env=environ, check=True
    )
    lines = done.stderr.splitlines()
    assert len(lines) == (0 if quiet else 1), done.stderr
    if not quiet:
        assert lines[0].startswith("tzero: host: fallback: not replayed: it reads ")
        assert f"{script}:13" in lines[0] and "TZERO_QUIET=1" in lines[0]
    assert done.stdout == ""
