"""The driver: when it is active, what it reports about the device, how it times."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
import triton.language as tl

from tests.cpu.childprocess import run_program
from tzero import settings
from tzero.cpu import driver, triton_compat

PATH = os.pathsep.join(os.path.abspath(each) for each in sys.path if each)


@pytest.mark.parametrize(
    ("forced", "gpu", "active"),
    [(None, False, True), (None, True, False), (False, False, False), (True, True, True)],
)
def test_is_active(
    forced: bool | None, gpu: bool, active: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    with settings.override(cpu=forced):
        assert driver.CPUDriver.is_active() == active
        others = [each for each in triton_compat.gpu_drivers() if each.is_active()]
    assert len(others) == (gpu and not forced)


@pytest.mark.parametrize("first", ["ours", "theirs"])
def test_forced_is_the_only_active_driver_whoever_is_found_first(
    tmp_path: Path, first: str
) -> None:
    """Found like an installed plugin, so that Triton imports our module during its own import."""
    plugin = tmp_path / "plugin"
    facts = plugin / "tzero_test-0.dist-info"
    facts.mkdir(parents=True)
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: tzero-test\nVersion: 0\n")
    (facts / "entry_points.txt").write_text("[triton.backends]\ncpu = tzero.cpu\n")
    path = [str(plugin), PATH] if first == "ours" else [PATH, str(plugin)]
    program = """
        import torch
        torch.cuda.is_available = lambda: True
        import triton
        from triton.backends import backends
        assert len(backends) > 1, backends
        print(type(triton.runtime.driver.active).__name__)
    """
    variables = {"TZERO_CPU": "1", "PYTHONPATH": os.pathsep.join(path)}
    done = run_program(tmp_path, program, fresh=True, **variables)
    assert done.stdout.split() == ["CPUDriver"]


def test_the_device_is_the_cpu() -> None:
    device = driver.CPUDriver()
    target = device.get_current_target()
    assert (target.backend, target.warp_size) == ("cpu", 1)
    assert device.get_current_device() == "cpu"
    assert device.get_current_stream(device.get_current_device()) == 0
    assert device.get_active_torch_device() == torch.device("cpu")
    properties = device.utils.get_device_properties("cpu")
    assert properties["multiprocessor_count"] == torch.get_num_threads()
    assert properties["max_shared_mem"] > 0
    assert device.map_python_to_cpp_type("*fp32") == "void*"
    assert device.map_python_to_cpp_type("i32") == "int32_t"


def test_do_bench_summarizes_as_tritons_does() -> None:
    def bench(**how: Any) -> Any:
        return driver.CPUDriver().get_benchmarker()(lambda: None, warmup=0.01, rep=0.01, **how)

    assert isinstance(bench(), float)
    assert isinstance(bench(quantiles=[0.5]), float)
    low, middle, high = bench(quantiles=[0.0, 0.5, 1.0])
    assert 0 <= low <= middle <= high
    assert isinstance(bench(return_mode="all"), list)
    for mode in ("min", "max", "mean", "median"):
        assert bench(return_mode=mode) >= 0
    with pytest.raises(ValueError, match="return_mode is 'fastest'"):
        bench(return_mode="fastest")


def test_do_bench_resets_gradients() -> None:
    x = torch.ones(1, requires_grad=True)
    seen: list[Any] = []

    def step() -> None:
        seen.append(x.grad)
        torch.autograd.backward([x.sum()])

    driver.do_bench(step, warmup=0, rep=0, grad_to_none=[x])
    assert seen[-1] is None


def test_quantiles_interpolate() -> None:
    assert driver._quantile([1.0, 2.0, 4.0], 0.5) == 2.0
    assert driver._quantile([1.0, 2.0, 4.0], 0.75) == 3.0
    with pytest.raises(ValueError, match="not between"):
        driver._quantile([1.0], 1.5)


def test_tritons_own_do_bench_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton.runtime.driver, "_active", driver.CPUDriver())
    assert triton.testing.do_bench(lambda: None, warmup=1, rep=1) >= 0


def doubled(x, out, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(out + at, 2 * tl.load(x + at))


def test_kernels_run_when_triton_stores_only_binaries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    for only in (True, False, True, False):
        monkeypatch.setenv("TRITON_STORE_BINARY_ONLY", str(int(only)))
        x, out = torch.ones(16), torch.empty(16)
        compiled = triton.jit(doubled)[(1,)](x, out, BLOCK=16)  # a new function, found on disk
        assert out.tolist() == [2.0] * 16
        assert ("ttir" in compiled.asm) == (not only)
