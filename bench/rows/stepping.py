"""A whole decode step of a Llama-shaped model, as a guarded graph and in other ways.

The model is that of examples/decode.py: 16 layers, in which 65 launches of Triton kernels are among
torch's own operators; in `cuda.step.liger...` 49 of them are Liger-Kernel's. `graph=True` is the
decorator on the model's `forward`; `by hand` is a CUDA graph with static inputs, into which each
call copies its token and position, and whose logits it copies out; `torch.compile` has the mode
`reduce-overhead`, and its logits are copied too. A sample is some steps and the wait for the last
of them; that of `cuda.step.host` is what the host does alone. In `cuda.step.moved` each call has
tokens, positions and caches at other addresses. Samples of `installed` begin with `tzero.install()`
and end with `tzero.uninstall()`; in those of `no launches` a launch through Triton returns at once,
so that no way to launch can be faster. `step.record` is the first call alone, of a small model on
the CPU.
"""

from __future__ import annotations

import copy
import importlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
import triton

import tzero
from bench.measure import Call, Loop
from bench.record import Target
from bench.rows.row import Case, Row

__all__ = ["ROWS"]

LAYERS, WIDTH, HEADS, WORDS, LENGTH = 16, 1024, 16, 32_000, 512
SETS = 4
WAYS = "as written", "installed", "graph=True", "torch.compile", "by hand"


def _models(count: int = 2, liger: bool = False) -> list[Any]:
    """The model, and others with the same parameters whose step is a graph."""
    decode: Any = importlib.import_module("examples.decode")
    torch.manual_seed(0)
    shape = LAYERS, WIDTH, HEADS, WORDS, LENGTH
    with torch.device("cuda"):
        made = [kind(*shape, liger=liger) for kind in (decode.Model, decode.Step)]
    for each in made:
        each.to(torch.bfloat16).requires_grad_(False)
    made[1].load_state_dict(made[0].state_dict())
    return [*made, *(copy.deepcopy(made[1]) for _ in range(count - 2))]


def _inputs(model: Any) -> tuple[Any, ...]:
    token = torch.zeros(1, 1, dtype=torch.long, device="cuda")
    position = torch.full((1,), 7, device="cuda")
    return token, position, model.caches(), model.caches()


def _without_gradients(call: Callable[[], Any], waits: bool = True) -> Loop:
    """Calls in a loop. `waits`: until the GPU has made all of them."""

    def run(times: int) -> None:
        with torch.no_grad():
            for _ in range(times):
                call()
        if waits:
            torch.cuda.synchronize()

    return Loop(run)


def _step(only: tuple[str, ...], sets: int = 1, waits: bool = True, liger: bool = False) -> Case:
    decode: Any = importlib.import_module("examples.decode")
    model, step = _models(liger=liger)
    given = [_inputs(model) for _ in range(sets)]
    hand = decode.by_hand(model)
    turn = [0]

    def cycled(function: Callable[..., Any]) -> Loop:
        def call() -> Any:
            turn[0] = (turn[0] + 1) % sets
            return function(*given[turn[0]])

        return _without_gradients(call, waits)

    contenders: dict[str, Call] = {
        "graph=True": cycled(step),
        "as written": cycled(model),
        "by hand": _without_gradients(lambda: hand(*given[0]), waits),
        "installed": _steps_in(_installed, lambda: model(*given[0])),
        "no launches": _steps_in(_without_launches, lambda: model(*given[0])),
    }
    compiled = decode.compiled(model) if "torch.compile" in only else None
    if compiled is not None:
        contenders["torch.compile"] = cycled(compiled)

    def check() -> None:
        with torch.no_grad():
            for each in given:
                for _ in range(3):
                    wanted = model(*each)
                    assert torch.equal(step(*each), wanted)
            wanted = model(*given[0])
            assert torch.equal(hand(*given[0]), wanted)
            if compiled is not None:  # its sums are in another order
                for _ in range(3):
                    torch.testing.assert_close(compiled(*given[0]), wanted, rtol=0.05, atol=0.05)

    made = {name: contenders[name] for name in only}
    # A program calls `tzero.install` once, and the first step after it is slower than the next.
    calls = 32 if "installed" in only else None
    return Case(made, check, calls=calls, rounds=11, settle=torch.cuda.synchronize)


def _steps_in(block: Callable[[], AbstractContextManager[None]], call: Callable[[], Any]) -> Loop:
    def run(times: int) -> None:
        with block(), torch.no_grad():
            for _ in range(times):
                call()
            torch.cuda.synchronize()

    return Loop(run)


@contextmanager
def _installed() -> Iterator[None]:
    tzero.install()
    try:
        yield
    finally:
        tzero.uninstall()


@contextmanager
def _without_launches() -> Iterator[None]:
    runs, triton.JITFunction.run = triton.JITFunction.run, lambda *_, **__: None
    try:
        yield
    finally:
        triton.JITFunction.run = runs


def _guards() -> Case:
    """What a call costs the host besides the launch of the graph: its guards, and the setting of
    parameters. A graph made by hand, replayed without copies, is what remains."""
    decode: Any = importlib.import_module("examples.decode")
    model, step = _models()
    given = _inputs(model)
    with torch.no_grad():
        for _ in range(3):
            step(*given)
        decode.by_hand(model)(*given)
    kernel = step.forward
    guards = kernel.native.STAGES["guards"]

    def check() -> None:
        with torch.no_grad():
            assert kernel._look(guards, *given)

    def run(times: int) -> None:
        with torch.no_grad():
            for _ in range(times):
                kernel._look(guards, *given)

    return Case({"guards": Loop(run)}, check)


def _first() -> Case:
    """The two calls that record a step and capture it, for a model that has run before."""
    model, *steps = _models(24)
    given = _inputs(model)

    def first() -> None:
        step = steps.pop()
        with torch.no_grad():
            step(*given)
            step(*given)
        torch.cuda.synchronize()

    def check() -> None:
        with torch.no_grad():
            model(*given)
        first()

    return Case({"first": first}, check, calls=1, rounds=5)


def _record() -> Case:
    """The call that records a step of 16 small layers on the CPU, each time of another copy of the
    model, and a step of a model that has run before."""
    rounds = 11
    decode: Any = importlib.import_module("examples.decode")
    torch.manual_seed(0)
    model, step = (kind(LAYERS).requires_grad_(False) for kind in (decode.Model, decode.Step))
    step.load_state_dict(model.state_dict())
    steps = [copy.deepcopy(step) for _ in range(rounds + 1)]
    token, position = torch.zeros(1, 1, dtype=torch.long), torch.full((1,), 7)
    given = token, position, model.caches(), model.caches()

    def first() -> Any:
        with torch.no_grad():
            return steps.pop()(*given)

    def plain() -> Any:
        with torch.no_grad():
            return model(*given)

    def check() -> None:
        recorded = steps[-1]
        assert torch.equal(first(), plain())
        with torch.no_grad():
            assert recorded.forward.explain(*given).plan is not None

    return Case({"first": first, "as written": plain}, check, calls=1, rounds=rounds)


def _row(name: str, title: str, case: Callable[[], Case], **facts: Any) -> Row:
    facts = {"subject": "graph=True", "interpreted": False, "device": "cuda", **facts}
    return Row(name, title, case, **facts)


ROWS = (
    _row(
        "cuda.step.plain",
        "Decode step as one guarded graph",
        lambda: _step(WAYS),
        baseline="as written",
        target=Target("ratio", 1 / 6),
        seconds=60.0,
    ),
    _row(
        "cuda.step.liger",
        "Decode step with Liger-Kernel as one guarded graph",
        lambda: _step(WAYS, liger=True),
        baseline="as written",
        target=Target("ratio", 1 / 6),
        needs="liger_kernel",
        seconds=60.0,
    ),
    _row(
        "cuda.step.hand",
        "Decode step, guarded graph and graph by hand",
        lambda: _step(("graph=True", "by hand")),
        baseline="by hand",
        target=Target("ratio", 1.15),
    ),
    _row(
        "cuda.step.moved",
        "Decode step, all inputs at new addresses",
        lambda: _step(("graph=True", "by hand"), SETS),
        baseline="by hand",
        target=Target("ratio", 1.25),
    ),
    _row(
        "cuda.step.host",
        "Host's part of a decode step",
        lambda: _step(("graph=True", "by hand"), waits=False),
        baseline="by hand",
        unit="us",
    ),
    _row(
        "cuda.step.installed",
        "Decode step with Liger-Kernel, tzero.install() alone",
        lambda: _step(("installed", "as written", "no launches"), liger=True),
        subject="installed",
        baseline="as written",
        target=Target("ratio", 1 / 1.8),
        needs="liger_kernel",
    ),
    _row(
        "cuda.step.guards",
        "Guards of a decode step",
        _guards,
        subject="guards",
        baseline=None,
        unit="us",
        target=Target("value", 15e-6),
    ),
    _row(
        "cuda.step.first",
        "Recording and capturing a decode step",
        _first,
        subject="first",
        baseline=None,
        target=Target("value", 0.118),
    ),
    _row(
        "step.record",
        "Recording a step of 16 small layers, over a plain step",
        _record,
        subject="first",
        baseline="as written",
        target=Target("ratio", 35),
        device="cpu",
        threads=1,
    ),
)
