"""What a launch of someone else's kernel costs with `tzero.install`, beside Triton and the floor.

The kernels do nothing, and all arguments are given by place. Samples of `installed` begin with
`tzero.install()` and end with `tzero.uninstall()`, which is timed with them; the other contenders
are Triton's own launches, and the bare launch in a C loop. A tuned kernel has two configs, and its
key is tuned before. `compiled` is ``compiled[grid](...)`` of a compiled kernel, as programs with a
cache of their own launch it. The rows over flash-linear-attention are its own functions, eager,
without and with `tzero.install()`.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

import torch
import triton
from triton.runtime.autotuner import Autotuner
from triton.tools.tensor_descriptor import TensorDescriptor

import tzero
from bench import floor
from bench.measure import Call, Loop
from bench.noop_kernels import KINDS, NOOPS, noop_constant, noop_descriptors, noop_tuples
from bench.record import Target
from bench.rows.row import Case, Row

__all__ = ["ROWS"]

COUNTS = tuple(KINDS)
ON_CPU = {"plain": 0.06, "tuned": 0.12, "heuristics": 0.15, "three": 0.15, "compiled": 0.3}
"""The largest allowed ratio to the same launch by Triton, the floor subtracted from both."""

CONSTANTS = {"heuristics": 1, "three": 3}
"""How many constants heuristics compute."""

HOLDING = 0.1
"""The same of a launch whose arguments hold others."""

ON_CUDA = {0: 1.25, 19: 1.4, 58: 1.7}
"""The largest allowed ratio of a plain launch to the floor, by number of arguments."""

MORE_ON_CUDA = {"tuned": 0.6e-6, "heuristics": 0.5e-6}
"""How many seconds more a launch may take than a plain one."""

BY_FLA = 1 / 1.8
"""The largest allowed ratio of an operator of flash-linear-attention to itself without tzero."""

TITLES = {
    "plain": "",
    "tuned": " through triton.autotune",
    "heuristics": " through a heuristic",
    "three": " through three heuristics",
    "compiled": " of a compiled kernel",
}


def _given(count: int, device: str) -> tuple[list[Any], dict[str, Any]]:
    """The arguments of a kernel, and its constants."""
    tensors, integers, floats, constants = KINDS[count]
    given = [
        *(torch.zeros(16, device=device) for _ in range(tensors)),
        *(17 + 2 * k for k in range(integers)),
        *(0.5 + k for k in range(floats)),
    ]
    return given, {f"C{k}": 32 + k for k in range(constants)}


def _noop(kind: str, count: int) -> Any:
    """A kernel with so many arguments; through heuristics also one without any has a constant."""
    return noop_constant if kind == "heuristics" and not count else NOOPS[count]


def _wrapped(kind: str, count: int, constants: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """A kernel with something around it, and the constants that a launch still gives."""
    kernel = triton.jit(_noop(kind, count).fn)
    if kind == "plain":
        return kernel, constants
    if kind == "tuned":
        key = ["n0"] if count else []
        configs = [triton.Config(dict(constants), num_warps=warps) for warps in (1, 2)]
        return triton.autotune(configs, key=key)(kernel), {}
    many = CONSTANTS[kind]
    rest, last = list(constants.items())[:-many], list(constants.items())[-many:]
    functions = {name: functools.partial(_constant, value) for name, value in last}
    return triton.heuristics(functions)(kernel), dict(rest)


def _constant(value: int, given: Any) -> int:
    return value


def _launches(
    kernel: Any, given: list[Any], named: dict[str, Any], install: bool, grid: Any = (1,)
) -> Loop:
    """Launches as a program makes them: in a loop, with every argument a local variable."""
    places = [f"a{k}" for k in range(len(given))]
    world: dict[str, Any] = dict(zip(places, given, strict=True))
    world |= {"kernel": kernel, "grid": grid, "tzero": tzero}
    local = ", ".join(f"{name}={name}" for name in world)
    passed = ", ".join([*places, *map(str, named.values())])
    lines = [
        f"def run(times, {local}):",
        *([" tzero.install()"] if install else []),
        " for _ in range(times):",
        f"  kernel[grid]({passed})",
        *([" tzero.uninstall()"] if install else []),
    ]
    exec("\n".join(lines), world)
    return Loop(world["run"])


def _case(kind: str, count: int, device: str, beside: bool) -> Case:
    given, constants = _given(count, device)
    if _noop(kind, count) is noop_constant:
        constants = {"C0": 32}
    plain = triton.jit(_noop(kind, count).fn)
    compiled = plain[(1,)](*given, **constants, num_warps=1)
    grid: tuple[int, ...] = (1,)
    if kind == "compiled":
        kernel, named, grid = compiled, constants, (1, 1, 1)  # it takes three
    else:
        kernel, named = _wrapped(kind, count, constants)
    contenders: dict[str, Call] = {
        "triton": _launches(kernel, given, named, False, grid),
        "installed": _launches(kernel, given, named, True, grid),
    }
    make = floor.on_cuda if device == "cuda" else floor.on_cpu
    contenders["floor"] = make(compiled, 1, given)
    if kind == "three":
        one, rest = _wrapped("heuristics", count, constants)
        contenders["one"] = _launches(one, given, rest, True)
    if beside or kind == "three":
        contenders["plain"] = _launches(plain, given, constants, True)

    def check() -> None:
        for call in contenders.values():
            for _ in range(3):
                call()

    settle = torch.cuda.synchronize if device == "cuda" else lambda: None
    return Case(contenders, check, settle=settle)


def _holding_case(what: str, device: str) -> Case:
    """Arguments that hold others: 17 values in two tuples, or two tensor descriptors."""
    given, constants = _given(19, device)
    floor_of = triton.jit(NOOPS[19].fn)[(1,)](*given, **constants)
    make = floor.on_cuda if device == "cuda" else floor.on_cpu
    if what == "tuples":
        kernel, held = triton.jit(noop_tuples.fn), [(*given[:8],), (*given[8:14], (*given[14:],))]
    else:
        source = torch.zeros(16, 16, device=device)
        block = TensorDescriptor.from_tensor(source, [8, 16])
        kernel, held, constants = triton.jit(noop_descriptors.fn), [block, block, 17], {}
    contenders: dict[str, Call] = {
        "triton": _launches(kernel, held, constants, False),
        "installed": _launches(kernel, held, constants, True),
        "floor": make(floor_of, 1, given),
    }

    def check() -> None:
        for call in contenders.values():
            for _ in range(3):
                call()

    settle = torch.cuda.synchronize if device == "cuda" else lambda: None
    return Case(contenders, check, settle=settle)


def _fla_case(name: str, tokens: int) -> Case:
    """A forward call of an operator of flash-linear-attention: one sequence, 4 heads of 64. Its
    autotuners take their first config: tuning compiles hundreds of kernels."""
    from fla.ops import gla

    function = getattr(gla, name)
    number = itertools.count()
    Autotuner._bench = lambda self, *args, config, **meta: [float(next(number))] * 3
    torch.manual_seed(0)
    q, k, v, decay = (torch.randn(1, tokens, 4, 64, device="cuda") for _ in range(4))
    given = (q, k, v, torch.nn.functional.logsigmoid(decay))

    @torch.no_grad()
    def eager(times: int) -> None:
        for _ in range(times):
            function(*given)

    def installed(times: int) -> None:
        tzero.install()
        eager(times)
        tzero.uninstall()

    def check() -> None:
        with torch.no_grad():
            plain = function(*given)[0]
            tzero.install()
            try:
                for _ in range(3):
                    assert torch.equal(function(*given)[0], plain), f"{name} differs"
            finally:
                tzero.uninstall()

    contenders = {"eager": Loop(eager), "installed": Loop(installed)}
    return Case(contenders, check, settle=torch.cuda.synchronize)


def _made(kind: str, count: int, device: str, beside: bool) -> Callable[[], Case]:
    return functools.partial(_case, kind, count, device, beside)


def _row(
    name: str,
    title: str,
    make: Callable[[], Case],
    target: Target,
    *,
    baseline: str = "triton",
    floor: str | None = "floor",
    needs: str | None = None,
) -> Row:
    return Row(
        name,
        title,
        make,
        subject="installed",
        baseline=baseline,
        floor=floor,
        unit="us",
        target=target,
        interpreted=False,
        needs=needs,
        device="cuda" if name.startswith("cuda.") else "cpu",
    )


ROWS = (
    *(
        _row(
            f"install.{kind}.{count}",
            f"Launch with {count} arguments{TITLES[kind]}, tzero.install()",
            _made(kind, count, "cpu", False),
            Target("ratio", ON_CPU[kind]),
        )
        for kind in ON_CPU
        for count in COUNTS
        if kind != "three" or KINDS[count][3] >= CONSTANTS["three"]
    ),
    *(
        _row(
            f"{prefix}install.{what}",
            f"Launch with {what}{' on CUDA' if prefix else ''}, tzero.install()",
            functools.partial(_holding_case, what, "cuda" if prefix else "cpu"),
            Target("ratio", HOLDING),
        )
        for prefix in ("", "cuda.")
        for what in ("tuples", "descriptors")
    ),
    *(
        _row(
            f"cuda.install.compiled.{count}",
            f"Launch with {count} arguments{TITLES['compiled']} on CUDA, tzero.install()",
            _made("compiled", count, "cuda", False),
            Target("ratio", ON_CPU["compiled"]),
        )
        for count in COUNTS
    ),
    *(
        _row(
            f"cuda.install.fla.{name}",
            f"{name} of flash-linear-attention, {tokens} tokens, forward, tzero.install()",
            functools.partial(_fla_case, name, tokens),
            Target("ratio", BY_FLA),
            baseline="eager",
            floor=None,
            needs="fla",
        )
        for name, tokens in (("chunk_gla", 128), ("fused_recurrent_gla", 16))
    ),
    *(
        _row(
            f"cuda.install.plain.{count}",
            f"Launch with {count} arguments on CUDA, tzero.install()",
            _made("plain", count, "cuda", False),
            Target("ratio", ON_CUDA[count]),
            baseline="floor",
            floor=None,
        )
        for count in COUNTS
    ),
    *(
        _row(
            f"cuda.install.{kind}.{count}",
            f"The same{TITLES[kind]}, {count} arguments, over a plain one",
            _made(kind, count, "cuda", True),
            Target("value", MORE_ON_CUDA[kind]),
            floor="plain",
        )
        for kind in MORE_ON_CUDA
        for count in COUNTS
    ),
)
