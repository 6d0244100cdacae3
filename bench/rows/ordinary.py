"""What ordinary code costs: fallbacks, helpers and tables on the path, and other projects' kernels.

A fallback is compared with the plain call. A replay of a host function with a helper, a dict or a
heuristic is compared with the replay of one without. Functions of Liger-Kernel and broadcasting
sums are called as they are published.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

import tzero
from bench import kernels, ordinary_kernels
from bench.measure import Call, calls_of
from bench.record import Target
from bench.rows.row import Case, Row
from tzero import settings

__all__ = ["ROWS"]

N = 4096
MORE = 0.3e-6
"""Seconds that a fallback may cost over a plain call, and a helper over a call without."""

ROWS_OF_TOKENS, WIDTH = 8, 512
SIDE = 1024


def _replaying(function: Callable[..., Any]) -> Any:
    with settings.override(tier=2):
        return tzero.kernel(function)


def _checked(function: Callable[..., Any], mine: Any, args: tuple[Any, ...], native: bool) -> None:
    """The results are equal, and calls are replayed or not, as the row says."""
    for _ in range(4):
        first, second = _copied(args), _copied(args)  # some work in place
        torch.testing.assert_close(mine(*first), function(*second))
    found = mine.explain(*args)
    assert (found.plan is not None) == native, found


def _copied(args: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(each.clone() if isinstance(each, Tensor) else each for each in args)


def _settle(device: str) -> Call:
    return torch.cuda.synchronize if device == "cuda" else lambda: None


def _against_plain(
    make: Callable[[str], tuple[Callable[..., Any], tuple[Any, ...]]],
    device: str = "cpu",
    native: bool = True,
    waiting: bool = False,
) -> Case:
    """A function through tzero beside the function itself; ``waiting`` adds both with a
    synchronise after each call."""
    function, args = make(device)
    mine = _replaying(function)
    contenders: dict[str, Call] = {
        "tzero": calls_of(mine, [args]),
        "plain call": calls_of(function, [args]),
    }
    if waiting:
        wait = torch.cuda.synchronize
        contenders["tzero, waited"] = lambda: (mine(*args), wait())
        contenders["plain call, waited"] = lambda: (function(*args), wait())
    return Case(contenders, lambda: _checked(function, mine, args, native), settle=_settle(device))


def _more_than_without(function: Callable[..., Tensor], device: str = "cpu") -> Case:
    """A replay of a function beside a replay of `kernels.add2`, which does the same work."""
    args = torch.randn(N, device=device), torch.randn(N, device=device)
    mine, without = _replaying(function), _replaying(kernels.add2)

    def check() -> None:
        _checked(function, mine, args, native=True)
        _checked(kernels.add2, without, args, native=True)

    contenders = {
        "native": calls_of(mine, [args]),
        "without": calls_of(without, [args]),
        "triton": calls_of(function, [args]),
    }
    return Case(contenders, check, settle=_settle(device))


def _tensors(function: Callable[..., Any], count: int) -> Callable[[str], Any]:
    return lambda device: (function, tuple(torch.randn(N, device=device) for _ in range(count)))


# -- Liger-Kernel ----------------------------------------------------------------------------------


def _of_liger(module: str, name: str, args: Callable[[Callable[..., Tensor]], Any]) -> Any:
    def make(device: str) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        function = getattr(importlib.import_module(f"liger_kernel.ops.{module}"), name)
        return function, args(functools.partial(torch.randn, device=device))

    return make


def _rows(draw: Callable[..., Tensor]) -> Tensor:
    return draw(ROWS_OF_TOKENS, WIDTH)


def _heads(draw: Callable[..., Tensor]) -> tuple[Tensor, ...]:
    """Queries and keys of 8 heads of 64 for 8 tokens, and angles."""
    q, k = (draw(1, ROWS_OF_TOKENS, 8, 64).transpose(1, 2) for _ in range(2))
    angles = draw(1, ROWS_OF_TOKENS, 32).repeat(1, 1, 2)
    return q, k, angles.cos(), angles.sin()


LIGER: Mapping[str, Any] = {
    "rms_norm": _of_liger(
        "rms_norm",
        "rms_norm_forward",
        lambda draw: (_rows(draw), draw(WIDTH), 1e-6, 0.0, "llama", False),
    ),
    "fused_add_rms_norm": _of_liger(
        "fused_add_rms_norm",
        "fused_add_rms_norm_forward",
        lambda draw: (_rows(draw), _rows(draw), draw(WIDTH), 1e-6, 0.0, "llama"),
    ),
    "rope": _of_liger("rope", "rope_forward", _heads),
    "swiglu": _of_liger("swiglu", "swiglu_forward", lambda draw: (_rows(draw), _rows(draw))),
}
"""Functions of Liger-Kernel, with arguments for 8 tokens of 512."""


# -- broadcasting sums -----------------------------------------------------------------------------


def _matrices(function: Callable[[], Callable[..., Any]]) -> Callable[[str], Any]:
    def make(device: str) -> tuple[Callable[..., Any], tuple[Tensor, ...]]:
        draw = functools.partial(torch.randn, SIDE, SIDE, dtype=torch.bfloat16, device=device)
        return function(), (draw(), draw())

    return make


def _helion_add() -> Callable[..., Any]:
    from bench.helion_kernels import broadcast_add

    found: Callable[..., Any] = broadcast_add
    return found


def _row(name: str, title: str, make: Callable[[], Case], **facts: Any) -> Row:
    facts = {
        "subject": "tzero",
        "baseline": "plain call",
        "unit": "us",
        "interpreted": False,
        **facts,
    }
    return Row(name, title, make, **facts)


def _on(device: str) -> tuple[str, str]:
    """How the ids of rows on a device begin, and their titles end."""
    return ("cuda.", " on CUDA") if device == "cuda" else ("", "")


ROWS = (
    *(
        _row(
            f"fallback.empty.{count}",
            f"Fallback of an empty function of {count} tensor{'s' * (count > 1)}, over plain",
            functools.partial(_against_plain, _tensors(function, count), native=False),
            baseline=None,
            floor="plain call",
            target=Target("value", MORE) if count == 1 else None,
        )
        for count, function in ((1, ordinary_kernels.nothing), (8, ordinary_kernels.nothing_of_8))
    ),
    _row(
        "fallback.launch",
        "Fallback that launches a kernel",
        functools.partial(
            _against_plain, _tensors(ordinary_kernels.add_with_clock, 2), native=False
        ),
        target=Target("ratio", 1.0),
    ),
    *(
        _row(
            f"plan.{name}",
            f"Whole call with one {title}, over one without",
            functools.partial(_more_than_without, function),
            subject="native",
            baseline=None,
            floor="without",
            target=Target("value", MORE),
        )
        for name, title, function in (
            ("helper", "helper function", ordinary_kernels.add_by_helper),
            ("table", "dict", ordinary_kernels.add_by_table),
            ("heuristic", "heuristic", ordinary_kernels.add_by_heuristic),
        )
    ),
    *(
        _row(
            f"{_on(device)[0]}liger.{name}",
            f"Liger's {name.replace('_', ' ')} of 8 tokens{_on(device)[1]}",
            functools.partial(_against_plain, make, device),
            target=Target("ratio", 1 / 4),
            needs="liger_kernel",
            device=device,
            threads=1,
        )
        for device in ("cpu", "cuda")
        for name, make in LIGER.items()
    ),
    *(
        _row(
            f"{_on(device)[0]}broadcast.{name}",
            f"Broadcasting add of 1024x1024 bf16 in {title}{_on(device)[1]}",
            functools.partial(_against_plain, make, device, waiting=device == "cuda"),
            device=device,
            **more,
        )
        for device in ("cpu", "cuda")
        for name, title, make, more in (
            ("triton", "Triton", _matrices(lambda: ordinary_kernels.broadcast_add), {}),
            ("helion", "Helion", _matrices(_helion_add), {"needs": "helion"}),
        )
    ),
)
