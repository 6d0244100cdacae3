"""Calls that mypy accepts, and calls that it must not; `test_typing` compares line by line.

Enters: nothing. Leaves: nothing, this module is read by mypy and never imported. A line that is
wrong ends with the code of its error; `reveal_type` lines end with the type.
"""

from typing import Any, reveal_type

import tzero


@tzero.kernel
def scale(x: int, by: float = 2.0, *, shift: int = 0) -> str:
    return f"{x * by + shift}"


@tzero.kernel(static_shapes=False, pool=True)
def count(x: list[int], /) -> int:
    return len(x)


@tzero.kernel(config=tzero.Config(BLOCK=1))
def configured(x: int, config: tzero.Config) -> float:
    return float(x)


class Model:
    @tzero.kernel
    def forward(self, x: int) -> bytes:
        return bytes(x)


@tzero.jit
def double(x: Any, n: int, BLOCK: int) -> None: ...


@tzero.jit(do_not_specialize=["n"])
def halve(x: Any, n: int) -> None: ...


def helion_add(x: float, y: float) -> str:
    return f"{x + y}"


either = tzero.multi_kernel([scale.function, scale.function])


def right() -> None:
    reveal_type(scale(1))  # str
    reveal_type(scale(1, 3.0, shift=2))  # str
    reveal_type(scale(x=1, by=3))  # str
    reveal_type(count([1]))  # int
    reveal_type(configured(1))  # float
    reveal_type(Model().forward(1))  # bytes
    reveal_type(Model.forward(Model(), 1))  # bytes
    reveal_type(scale.bind(1, shift=3)(1))  # str
    reveal_type(scale.plain(1, by=3.0)())  # str
    reveal_type(scale.explain(1).hit)  # bool
    reveal_type(scale.stats().native_replays)  # int
    scale.key(1, 2.0, shift=3)
    scale.arguments(1)
    configured.autotune(1, effort="full", budget=3.0)
    configured.precompile(tzero.Spec((4,)))
    double[(1,)](1, 2, BLOCK=64, num_warps=4)
    double[lambda given: (given["n"], 2)](1, 2, BLOCK=64)
    double.precompile(1, 2, BLOCK=64, grid=(1,)).wait()
    reveal_type(double.fn.__name__)  # str
    halve.warmup(1, 2, grid=(1,))
    reveal_type(tzero.build_bundle("app.tzb", target="cuda:90").kernels)  # int
    tzero.unload_bundle(tzero.load_bundle("app.tzb"))
    reveal_type(tzero.helion.wrap(helion_add)(1.0, 2.0))  # str
    reveal_type(tzero.helion.installed())  # bool
    reveal_type(tzero.compile.service().stats().seconds)  # float
    with tzero.measure.recording() as record:
        reveal_type(record.dropped)  # int


def wrong() -> None:
    scale()  # call-arg
    scale("1")  # arg-type
    scale(1, 2.0, 3)  # call-arg
    scale(1, size=3)  # call-arg
    count(x=[1])  # call-arg
    count(1)  # arg-type
    Model().forward("x")  # arg-type
    scale.bind("1")  # arg-type
    scale.bind((1, 2.0))  # arg-type
    scale.key(1, shift="3")  # arg-type
    scale.explain()  # call-arg
    abs(scale(1))  # arg-type
    configured.autotune(1, effort="much")  # arg-type
    double(1, 2, BLOCK=64)  # operator
    double["x"](1)  # index
    double.precompiled()  # attr-defined
    tzero.helion.install("all")  # call-arg
    tzero.helion.wrap(helion_add)("1", 2.0)  # arg-type
    tzero.events.observe()  # call-arg


def annotated(one: tzero.Kernel[[int], str], other: tzero.Kernel[..., Any]) -> str:
    other(1, "2", three=3)
    return one(1)


annotated(tzero.kernel(str), scale)
