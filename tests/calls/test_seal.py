"""A sealed process: what it covers is called as ever, and everything else is said."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
import triton.language as tl

import tzero
from tests import warm
from tests.briefly import tune_briefly
from tzero import sealed, settings
from tzero.errors import InvalidArgument, SealBroken
from tzero.events import Event, observe


@triton.jit
def scale_rows(x, out, by, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < n) * by, mask=at < n)


CONFIG = tzero.Config(BLOCK=64)


def scaled(x, by, config=CONFIG):
    out = torch.empty_like(x)
    scale_rows[(triton.cdiv(x.numel(), config.BLOCK),)](x, out, by, x.numel(), **config)
    return out


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZERO_CACHE_DIR", str(tmp_path / "cache"))
    yield
    tzero.unseal()


@pytest.fixture
def seen() -> Iterator[list[Event]]:
    found: list[Event] = []
    with observe(found.append):
        yield found


def covered(**options: Any) -> Any:
    """A kernel that was called with 64 and 100 floats."""
    kernel = tzero.kernel(**options)(scaled)
    for size in (64, 64, 100, 100):
        assert torch.equal(kernel(torch.ones(size), 2.0), torch.full((size,), 2.0))
    return kernel


def test_what_was_covered_is_replayed_and_anything_else_is_an_error() -> None:
    kernel = covered(static_shapes=True)
    x = torch.ones(64)
    with tzero.seal("error") as seal:
        before = kernel.stats().native_replays
        assert torch.equal(kernel(x, 2.0), x * 2)
        assert kernel.stats().native_replays == before + 1
        with pytest.raises(
            SealBroken, match=r"needs a recording.*'x' has dtype torch.float16, not"
        ):
            kernel(x.half(), 2.0)
        with pytest.raises(SealBroken, match=r"'x' has sizes \(65,\), not \(64,\), which was cov"):
            kernel(torch.ones(65), 2.0)
        assert "in force" in repr(seal)
    assert not sealed.is_sealed() and "ended" in repr(seal)
    assert torch.equal(kernel(torch.ones(65), 2.0), torch.full((65,), 2.0))


def test_a_size_that_a_plan_over_sizes_serves_is_no_recording() -> None:
    kernel = covered()
    kernel(torch.ones(102), 2.0)
    with tzero.seal():
        assert torch.equal(kernel(torch.ones(110), 2.0), torch.full((110,), 2.0))


def test_a_launch_that_needs_a_compile_is_an_error_that_names_the_argument() -> None:
    @tzero.jit
    def kernel(x, out, by, n, BLOCK: tl.constexpr):
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(out + at, tl.load(x + at, mask=at < n) * by, mask=at < n)

    x, out = torch.ones(64), torch.empty(64)
    kernel[(1,)](x, out, 2.0, 64, BLOCK=64)
    with tzero.seal():
        kernel[(1,)](x, out, 3.0, 48, BLOCK=64)  # the same specialization
        with pytest.raises(SealBroken, match=r"argument 'n' is i32, and i32 divisible by 16 was"):
            kernel[(1,)](x, out, 2.0, 63, BLOCK=64)
        with pytest.raises(SealBroken, match=r"'BLOCK' is the constant 128, and the constant 64"):
            kernel[(1,)](x, out, 2.0, 64, BLOCK=128)
        with pytest.raises(SealBroken, match=r"argument 'x' is \*fp16 divisible by 16, and \*fp32"):
            kernel[(1,)](x.half(), out, 2.0, 64, BLOCK=64)
    kernel[(1,)](x, out, 2.0, 63, BLOCK=64)


def test_a_kernel_of_triton_itself_is_sealed_too(seen: list[Event]) -> None:
    @triton.jit
    def alone(out):
        tl.store(out, 7.0)

    out = torch.empty(1)
    with tzero.seal(), pytest.raises(SealBroken, match=r"alone: .*nothing of this kernel was cov"):
        alone[(1,)](out)
    alone[(1,)](out)
    assert out[0] == 7


def test_what_a_cache_has_is_no_compile() -> None:
    one, other = tzero.jit(scale_rows), tzero.jit(scale_rows)
    x, out = torch.ones(32), torch.empty(32)
    one[(1,)](x, out, 2.0, 32, BLOCK=32)
    with tzero.seal():
        other[(1,)](x, out, 2.0, 32, BLOCK=32)
    assert torch.equal(out, x * 2)


def test_a_tuning_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    tune_briefly(monkeypatch)
    configs = [tzero.Config(BLOCK=64), tzero.Config(BLOCK=256)]
    kernel = tzero.kernel(configs=configs)(scaled)
    x = torch.ones(64)
    kernel(x, 2.0)
    with tzero.seal():
        kernel(x, 2.0)
        with pytest.raises(SealBroken, match=r"needs a tuning.*sizes \(48,\), not \(64,\)"):
            kernel(torch.ones(48), 2.0)
        with pytest.raises(SealBroken, match="needs a tuning"):
            kernel.autotune(x, 2.0, force=True)
        with settings.override(tune="none"), pytest.raises(SealBroken, match="needs a recording"):
            kernel(torch.ones(48), 2.0)  # the nearest config, and no plan yet
    assert torch.equal(kernel(torch.ones(48), 2.0), torch.full((48,), 2.0))


def test_a_warning_names_the_same_and_the_call_is_made(seen: list[Event]) -> None:
    kernel = covered(static_shapes=True)
    seen.clear()
    with tzero.seal("warn"):
        assert torch.equal(kernel(torch.ones(33), 2.0), torch.full((33,), 2.0))
        said = [each.reason for each in seen if "sealed" in each.reason]
        assert len(said) == 1 and "needs a recording" in said[0] and "(33,)" in said[0]
        kernel(torch.ones(33), 2.0)
        assert len([each for each in seen if "sealed" in each.reason]) == 1


def test_after_a_warning_a_new_shape_gets_the_nearest_config_and_no_search(
    monkeypatch: pytest.MonkeyPatch, seen: list[Event]
) -> None:
    tune_briefly(monkeypatch)
    monkeypatch.delenv("TZERO_TUNE_WHEN", raising=False)
    kernel = tzero.kernel(configs=[tzero.Config(BLOCK=64), tzero.Config(BLOCK=256)])(scaled)
    kernel(torch.ones(64), 2.0)
    seen.clear()
    with tzero.seal("warn"):
        assert torch.equal(kernel(torch.ones(48), 2.0), torch.full((48,), 2.0))
        assert kernel.bind(torch.ones(48), 2.0).choice.how == "nearest"
        said = [each.reason for each in seen if "sealed" in each.reason]
        assert len(said) == 2 and "needs a tuning: argument 'x' has sizes (48,)" in said[0]
        assert "needs a recording" in said[1]
        seen.clear()
        kernel.autotune(torch.ones(64), 2.0, force=True)  # its own recordings are part of it
        assert len([each for each in seen if "sealed" in each.reason]) == 1
    assert tzero.wait_for_tuning(0)


def test_a_call_that_was_covered_but_cannot_be_replayed_runs_as_written() -> None:
    @tzero.kernel
    def reads(x):
        out = torch.empty_like(x)
        scale_rows[(1,)](x, out, 2.0, x.numel(), BLOCK=64)
        return out * out[0].item()

    x = torch.ones(64)
    for _ in range(3):
        assert torch.equal(reads(x), x * 4)
    with tzero.seal():
        assert torch.equal(reads(x), x * 4)


def test_seals_nest_and_unseal_ends_all() -> None:
    covered()
    outer = tzero.seal("error")
    with tzero.seal("warn"):
        sealed.check("compile", "add")
    with pytest.raises(SealBroken):
        sealed.check("compile", "add")
    tzero.seal("warn")
    tzero.unseal()
    sealed.check("compile", "add")
    outer.__exit__()
    with pytest.raises(InvalidArgument, match="the mode is 'off'"):
        tzero.seal("off")  # type: ignore[arg-type]


def test_sealing_with_nothing_covered_is_said() -> None:
    program = "import tzero; tzero.seal()"
    done = warm.run([sys.executable, "-c", program])
    assert isinstance(done, subprocess.CompletedProcess)
    assert "nothing is covered yet" in done.stderr
