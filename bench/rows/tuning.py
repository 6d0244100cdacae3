"""What tuning costs, and how good its choices are.

Choices are judged on held-out shapes: the chosen config's time is compared with that of the best
config, which is found by timing every config at every such shape, in turns. Each shape is called so
often that all count alike.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import itertools
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import triton
from torch import Tensor

import tzero
from bench import tunable
from bench.measure import Call
from bench.record import Target
from bench.rows.row import Case, Row
from bench.tunable import TUNABLE
from tzero import Config, settings
from tzero.tune.timing import Clock, clock_of, measure

__all__ = ["ROWS"]

TURNS = 7
EACH = 0.02
SLICE = 2e-3

Kernel = tzero.Kernel[Tensor]


# -- how good --------------------------------------------------------------------------------------


@contextlib.contextmanager
def _forgetful() -> Iterator[None]:
    """With an empty cache, so that nothing from an earlier run is used."""
    folder = tempfile.mkdtemp(prefix="tzero-bench-")
    with settings.override(cache_dir=folder):
        yield
    shutil.rmtree(folder)


@functools.cache
def _contenders(name: str, device: str) -> dict[str, Call]:
    """Calls over all held-out shapes with the best, the tuned, and the nearest hint's config."""
    subject = TUNABLE[name]
    inputs = [subject.inputs(shape, device) for shape in subject.held_out[device]]
    with _forgetful():
        tuned, near = (
            subject.kernel(device),
            subject.kernel(device, static_shapes=False, size_hints=subject.hints[device]),
        )
        for args in inputs:
            for made in (tuned, near):
                _check(made(*args), subject.reference(*args), name)
        found = [_times(subject, args, device) for args in inputs]
    chosen = {
        "best": [min(times, key=times.__getitem__) for times in found],
        "tuned": [_config(tuned, args) for args in inputs],
        "nearest": [_config(near, args) for args in inputs],
    }
    repeats = [max(1, round(SLICE / min(times.values()))) for times in found]
    return {
        who: _over(subject, inputs, configs, repeats, device) for who, configs in chosen.items()
    }


def _config(made: Kernel, args: Sequence[Tensor]) -> Config:
    config = made.explain(*args).config
    assert config is not None
    return config


def _check(mine: Tensor, wanted: Tensor, name: str) -> None:
    loose = 2e-2 if mine.dtype is torch.float16 else 1e-3
    torch.testing.assert_close(mine, wanted, rtol=loose, atol=loose, msg=name)


def _times(subject: tunable.Tunable, args: tuple[Tensor, ...], device: str) -> dict[Config, float]:
    """Every config's time at one shape: the median of several rounds."""
    calls = {config: _pinned(subject, config) for config in subject.configs(device)}
    usable = {}
    for config, call in calls.items():
        try:
            call(*args)
        except triton.runtime.errors.OutOfResources:
            continue
        usable[config] = call
    turns: dict[Config, list[float]] = {config: [] for config in usable}
    timed = _on_device if device == "cuda" else _in_a_loop
    for _ in range(TURNS):
        for config, call in usable.items():
            turns[config].append(timed(functools.partial(call, *args)))
    return {config: statistics.median(times) for config, times in turns.items()}


def _on_device(call: Call) -> float:
    return measure(call, device="cuda", budget=EACH, clock=_clock()).median


@functools.cache
def _clock() -> Clock:
    return clock_of("cuda")


def _in_a_loop(call: Call) -> float:
    """Seconds per call, in a loop of some milliseconds, after an untimed one."""
    count, taken = 1, 0.0
    while taken < EACH / 4:
        count *= 2
        taken = _taken(call, count)
    return _taken(call, 2 * count) / (2 * count)


def _taken(call: Call, count: int) -> float:
    start = time.perf_counter()
    for _ in range(count):
        call()
    return time.perf_counter() - start


def _pinned(subject: tunable.Tunable, config: Config) -> Kernel:
    return tzero.kernel(config=config)(subject.host)


def _over(
    subject: tunable.Tunable,
    inputs: Sequence[tuple[Tensor, ...]],
    configs: Sequence[Config],
    repeats: Sequence[int],
    device: str,
) -> Call:
    calls = [
        (_pinned(subject, config), args, times)
        for config, args, times in zip(configs, inputs, repeats, strict=True)
    ]

    def run() -> None:
        for call, args, times in calls:
            for _ in range(times):
                call(*args)
        if device == "cuda":
            torch.cuda.synchronize()

    return run


def _chosen(name: str, device: str) -> Case:
    return Case(_contenders(name, device), lambda: None)


# -- how long --------------------------------------------------------------------------------------

_turns = itertools.count(time.time_ns() // 1000)  # not used by any earlier run
SIZE = {"cpu": (256, 256, 256), "cuda": (2048, 2048, 2048)}


def _fresh(folder: str) -> Any:
    """The kernel in a new module with new source text, which no cache holds."""
    text = Path(tunable.kernels.__file__).read_text(encoding="utf-8")
    number = next(_turns)
    text = text.replace(
        "total = tl.zeros((BLOCK_M, BLOCK_N)",
        f"total = 0.0 * {number} + tl.zeros((BLOCK_M, BLOCK_N)",
    )
    path = Path(folder, f"tzero_bench_tuned_{number}.py")
    path.write_text(text, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _tuning(device: str) -> Case:
    from tzero.compile import service

    shape = SIZE[device]
    a, b = TUNABLE["matmul"].inputs(shape, device)
    configs = tunable.matmul_configs(device)
    folder = tempfile.mkdtemp(prefix="tzero-bench-")

    def with_tzero() -> None:
        module = _fresh(folder)

        def product(a: Tensor, b: Tensor, config: Config) -> Tensor:
            (m, k), n = a.shape, b.shape[1]
            out = torch.empty((m, n), dtype=a.dtype, device=a.device)
            grid = (triton.cdiv(m, config.BLOCK_M) * triton.cdiv(n, config.BLOCK_N),)
            module.matmul_kernel[grid](
                a, b, out, m, n, k, a.stride(0), a.stride(1), b.stride(0), b.stride(1),
                out.stride(0), out.stride(1), ACTIVATION=None, **config,
            )  # fmt: skip
            return out

        with settings.override(cache_dir=os.path.join(folder, str(next(_turns)))):
            found = tzero.kernel(configs=configs)(product).autotune(a, b, effort="full")
        assert len(found.steps) == len(configs), found

    def starting() -> None:
        service().quiesce()
        with_tzero()

    def with_triton() -> None:
        module = _fresh(folder)
        listed = [_triton_config(config) for config in configs]
        made = triton.autotune(listed, key=["M", "N", "K"])(module.matmul_kernel)
        (m, k), n = a.shape, b.shape[1]
        out = torch.empty((m, n), dtype=a.dtype, device=a.device)
        made[lambda meta: (triton.cdiv(m, meta["BLOCK_M"]) * triton.cdiv(n, meta["BLOCK_N"]),)](
            a, b, out, m, n, k, a.stride(0), a.stride(1), b.stride(0), b.stride(1),
            out.stride(0), out.stride(1), ACTIVATION=None,
        )  # fmt: skip

    def check() -> None:
        service().warm_pool()
        assert service().wait_pool_ready(60)

    contenders = {"tzero": with_tzero, "tzero, first": starting, "triton": with_triton}
    return Case(contenders, check, calls=1, rounds=3)


def _triton_config(config: Config) -> triton.Config:
    options = {name: value for name, value in config.items() if name.startswith("num_")}
    blocks = {name: value for name, value in config.items() if name not in options}
    return triton.Config(blocks, **options)


# -- rows ------------------------------------------------------------------------------------------


def _rows(device: str) -> Iterator[Row]:
    prefix = "" if device == "cpu" else "cuda."
    common: dict[str, Any] = {"unit": "ms", "interpreted": False, "device": device}
    for name in TUNABLE:
        yield Row(
            id=f"{prefix}tune.choice.{name}",
            title=f"{name} with its tuned config",
            make=functools.partial(_chosen, name, device),
            subject="tuned",
            baseline="best",
            target=Target("ratio", 1 / 0.95),
            seconds=30.0,
            **common,
        )
        yield Row(
            id=f"{prefix}tune.nearest.{name}",
            title=f"{name} with the nearest hint's config",
            make=functools.partial(_chosen, name, device),
            subject="nearest",
            baseline="best",
            target=Target("ratio", 1 / 0.85),
            **common,
        )
    yield Row(
        id=f"{prefix}tune.matmul",
        title="Tune a matmul: 24 configs",
        make=functools.partial(_tuning, device),
        subject="tzero",
        baseline="triton",
        target=Target("ratio", 1 / 1.6),
        seconds=70.0,
        **common,
    )


ROWS: tuple[Row, ...] = (*_rows("cpu"), *_rows("cuda"))
