"""What one launch costs: sums of 2, 8 and 16 small tensors.

The kernels do next to nothing, so mostly the launch is timed. Triton's launch with a new output,
the usual way to call a kernel, is compared with torch's. tzero's launches into a given output are
compared with Triton's and with the floor, a C loop around the bare launch.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

import tzero
from bench import floor, kernels
from bench.measure import Call, Loop
from bench.record import Target
from bench.rows.row import Case, Row
from tzero import settings

__all__ = ["ROWS"]

N = 4096
PROGRAMS = N // kernels.LAUNCH_BLOCK
COUNTS = (2, 8, 16)
TIERS = {"python": 1, "native": 2}

_IN = {"native": "", "python": ", tier 1"}

ON_CPU = {"native": 0.08, "python": 0.5}
"""The largest allowed ratio to Triton's launch, the floor subtracted from both."""

ON_CUDA = {2: 1.25, 8: 1.5, 16: 1.8}
"""The largest allowed ratio of a native launch to the floor, by number of inputs."""


def _new_output(count: int) -> Case:
    inputs = [torch.randn(N) for _ in range(count)]
    contenders: dict[str, Call] = {"triton": functools.partial(kernels.add_many, *inputs)}
    if count == 2:
        contenders["torch"] = functools.partial(torch.add, *inputs)

    def check() -> None:
        torch.testing.assert_close(kernels.add_many(*inputs), torch.stack(inputs).sum(0))

    return Case(contenders, check)


def _launches(kernel: Any, tensors: list[torch.Tensor]) -> Loop:
    """Launches as a program makes them: in a loop, with every argument a local variable."""
    names = [f"t{k}" for k in range(len(tensors))]
    world: dict[str, Any] = dict(zip(names, tensors, strict=True))
    world |= {"kernel": kernel, "grid": (PROGRAMS,), "block": kernels.LAUNCH_BLOCK}
    local = ", ".join(f"{name}={name}" for name in world)
    lines = [
        f"def run(times, {local}):",
        " for _ in range(times):",
        f"  kernel[grid]({', '.join(names)}, {N}, BLOCK=block)",
    ]
    exec("\n".join(lines), world)
    return Loop(world["run"])


def _given_output(count: int, tiers: tuple[str, ...], device: str) -> Case:
    inputs = [torch.randn(N, device=device) for _ in range(count)]
    out = torch.empty(N, device=device)
    tensors = [*inputs, out]
    plain = kernels.SUMS[count]
    contenders: dict[str, Call] = {"triton": _launches(plain, tensors)}
    for name in tiers:
        with settings.override(tier=TIERS[name]):
            contenders[name] = _launches(tzero.jit(plain), tensors)
    compiled = plain[(PROGRAMS,)](*tensors, N, BLOCK=kernels.LAUNCH_BLOCK)
    make = floor.on_cuda if device == "cuda" else floor.on_cpu
    contenders["floor"] = make(compiled, PROGRAMS, [*tensors, N])

    def check() -> None:
        for name, call in contenders.items():
            for _ in range(3):
                out.zero_()
                call()
                torch.testing.assert_close(out, torch.stack(inputs).sum(0), msg=name)

    settle = torch.cuda.synchronize if device == "cuda" else lambda: None
    return Case(contenders, check, settle=settle)


ROWS = (
    *(
        Row(
            f"launch.triton.{count}",
            f"Triton's own launch, {count} tensors",
            functools.partial(_new_output, count),
            baseline="torch" if count == 2 else None,
            unit="us",
        )
        for count in COUNTS
    ),
    *(
        Row(
            f"launch.{name}.{count}",
            f"Launch overhead with {count} tensors{_IN[name]}",
            functools.partial(_given_output, count, (name,), "cpu"),
            subject=name,
            baseline="triton",
            floor="floor",
            unit="us",
            target=Target("ratio", ON_CPU[name]),
            interpreted=False,
        )
        for name in ("native", "python")
        for count in COUNTS
    ),
    *(
        Row(
            f"cuda.launch.native.{count}",
            f"Launch with {count} tensors on CUDA",
            functools.partial(_given_output, count, ("native", "python"), "cuda"),
            subject="native",
            baseline="floor",
            unit="us",
            target=Target("ratio", ON_CUDA[count]),
            interpreted=False,
            device="cuda",
        )
        for count in COUNTS
    ),
)
