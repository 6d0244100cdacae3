"""Rows about what Triton puts around kernels: programs that are run without and with `install`.

Enters: nothing. Leaves: `ROWS`. A row is a program that tells `see` what it observes; with
`tzero.install` it must observe the same.
"""

from __future__ import annotations

import collections
import copy
import functools
import linecache
import pickle
import tempfile
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from triton import knobs
from triton.runtime.autotuner import Autotuner

from tests.rows import Rows

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

See = Callable[..., None]
Program = Callable[[See], None]


class Row(NamedTuple):
    """A program, by name."""

    name: str
    run: Program


ROWS = Rows(Row)
row = ROWS.add()


def said(call: Callable[[], Any]) -> str:
    """What a call raises, without addresses."""
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}".split(" at 0x")[0]
    return "nothing"


# -- kernels ---------------------------------------------------------------------------------------


def _add(x, y, out, n, BLOCK: tl.constexpr, TIMES: tl.constexpr = 1):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    total = tl.load(x + at, mask=inside) + tl.load(y + at, mask=inside)
    tl.store(out + at, total * TIMES, mask=inside)


def _put(out, value):
    tl.store(out, value)


def _count(out, BLOCK: tl.constexpr):
    tl.store(out, tl.load(out) + BLOCK)


def plain() -> Any:
    return triton.jit(_add)


def bench(call: Callable[[], Any], quantiles: Any) -> list[float]:
    """Runs a config, and finds the second of two the best."""
    call()
    bench.runs += 1  # type: ignore[attr-defined]
    return [1.0 / bench.runs] * 3  # type: ignore[attr-defined]


bench.runs = 0  # type: ignore[attr-defined]


def configs(**options: Any) -> list[Any]:
    return [triton.Config({"BLOCK": block}, **options) for block in (32, 64)]


def tuned(made: Any = None, key: tuple[str, ...] = ("n",), **options: Any) -> Any:
    bench.runs = 0  # type: ignore[attr-defined]
    given = options.pop("configs", None) or configs()
    return triton.autotune(given, key=list(key), do_bench=bench, **options)(made or plain())


def launch(kernel: Any, n: int = 100, **named: Any) -> float:
    """The sum of what it computes."""
    x, out = torch.arange(float(n), device=DEVICE), torch.zeros(n, device=DEVICE)
    kernel[lambda given: (triton.cdiv(n, given["BLOCK"]),)](x, x, out, n, **named)
    return float(out.sum())


def on_grid(kernel: Any, n: int = 100, **named: Any) -> float:
    """As `launch`, with a grid that is no function."""
    x, out = torch.arange(float(n), device=DEVICE), torch.zeros(n, device=DEVICE)
    kernel[(-(-n // 16),)](x, x, out, n, **named)
    return float(out.sum())


def cache_of(tuner: Any) -> list[Any]:
    return [(key, str(config)) for key, config in tuner.cache.items()]


# -- autotuners: what is tuned ---------------------------------------------------------------------


@row
def a_cache_that_is_cleared_and_filled_by_hand(see: See) -> None:
    kernel = tuned()
    for n in (100, 100, 64):
        see(launch(kernel, n), cache_of(kernel), str(kernel.best_config), kernel.nargs)
    key = next(iter(kernel.cache))
    kernel.cache[key] = triton.Config({"BLOCK": 16, "TIMES": 3}, num_warps=2)
    see(launch(kernel), on_grid(kernel), str(kernel.best_config))
    kernel.cache.clear()
    see(launch(kernel), cache_of(kernel), bench.runs)  # type: ignore[attr-defined]
    kernel.cache = collections.OrderedDict(kernel.cache)
    see(launch(kernel), launch(kernel, 32), cache_of(kernel))
    kernel.cache = collections.defaultdict(lambda: kernel.configs[0])
    see(launch(kernel), cache_of(kernel))
    del kernel.cache
    see(said(lambda: launch(kernel)))


@row
def a_config_that_is_none_of_tritons(see: See) -> None:
    class Mine(triton.Config):
        def all_kwargs(self) -> dict[str, Any]:
            return {**super().all_kwargs(), "TIMES": 5}

    kernel = tuned()
    launch(kernel)
    key = next(iter(kernel.cache))
    kernel.cache[key] = Mine({"BLOCK": 32})
    see(launch(kernel), type(kernel.best_config).__name__)
    odd = kernel.cache[key] = triton.Config({"BLOCK": 32})
    see(launch(kernel))
    odd.all_kwargs = lambda: {"BLOCK": 32, "TIMES": 7}
    see(launch(kernel))
    kernel.cache[key] = {"BLOCK": 32}
    see(said(lambda: launch(kernel)))
    kernel.cache[key] = None
    see(said(lambda: launch(kernel)))


@row
def fields_of_a_config_that_change(see: See) -> None:
    kernel = tuned()
    launch(kernel)
    config = kernel.best_config
    config.kwargs["TIMES"] = 2
    see(launch(kernel))
    config.kwargs = {"BLOCK": 16, "TIMES": 3}
    see(launch(kernel))
    config.num_warps, config.num_stages = None, 5
    see(launch(kernel), kernel.best_config.all_kwargs())
    config.kwargs["num_warps"] = 2
    config.num_warps = 8
    see(launch(kernel))
    config.kwargs["n"] = 10
    see(said(lambda: launch(kernel)))
    del config.kwargs["n"]
    see(launch(kernel))
    del config.pre_hook
    see(said(lambda: launch(kernel)))


@row
def keys_configs_and_kernel_of_an_autotuner_that_change(see: See) -> None:
    kernel = tuned()
    see(launch(kernel), cache_of(kernel))
    kernel.keys.append("TIMES")
    see(launch(kernel, TIMES=2), cache_of(kernel))
    kernel.keys = ["x", "n"]
    see(said(lambda: on_grid(kernel))[:20], len(kernel.cache))
    kernel.keys = ()
    see(launch(kernel), len(kernel.cache))
    kernel.configs.append(triton.Config({"BLOCK": 16, "TIMES": 4}))
    kernel.cache.clear()
    kernel.keys = []
    see(launch(kernel), cache_of(kernel))
    kernel.configs = kernel.configs[:1]
    see(launch(kernel), str(kernel.best_config))
    kernel.configs = []
    see(said(lambda: launch(kernel)))
    kernel.configs = tuple(configs()[:1])
    see(launch(kernel))
    kernel.fn = triton.jit(_sub)
    see(launch(kernel))
    kernel.arg_names = ["a", "b", "c", "d", "BLOCK", "TIMES"]
    see(launch(kernel))


def _sub(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < n) - 1, mask=at < n)


@row
def keys_by_dtype_and_by_the_order_of_names(see: See) -> None:
    kernel = tuned()
    x = torch.arange(64.0, device=DEVICE)
    for dtype in (torch.float32, torch.float64, torch.float16, torch.float32):
        given, out = x.to(dtype), torch.zeros_like(x)
        kernel[(2,)](given, given, out, 64)
        kernel[(2,)](n=64, out=out, y=given, x=given)
        kernel[(2,)](given, out=out, y=given, n=64)
        see(float(out.sum()), cache_of(kernel))
    kernel[(2,)](x, x, out, True)
    see(cache_of(kernel))


@row
def reset_and_restored_arguments(see: See) -> None:
    for options in ({"reset_to_zero": ["out"]}, {"restore_value": ["out"]}, {}):
        kernel = tuned(triton.jit(_count), key=(), **options)
        out = torch.full((4,), 7.0, device=DEVICE)
        for _ in range(4):
            kernel[(1,)](out)
            see(options, out.tolist(), cache_of(kernel))
        kernel.cache.clear()
        kernel[(1,)](out=out)
        see(out.tolist())


@row
def hooks_of_an_autotuner(see: See) -> None:
    def before(given: dict[str, Any], reset_only: bool = False) -> None:
        see("before", list(given), reset_only)

    def after(given: dict[str, Any], exception: Any) -> None:
        see("after", list(given), exception)

    kernel = tuned(pre_hook=before, post_hook=after)
    for n in (100, 100, 50):
        see(launch(kernel, n))
        see(on_grid(kernel, n))


@row
def pruned_configs(see: See) -> None:
    def early(given: list[Any], named: dict[str, Any], **options: Any) -> list[Any]:
        see("early", len(given), list(named), sorted(options))
        return given[1:]

    def model(**given: Any) -> float:
        see("model", sorted(given))
        return float(given["BLOCK"])

    for pruning in (
        {"early_config_prune": early},
        {"perf_model": model, "top_k": 1},
        {"perf_model": model, "top_k": 0.5},
        {"perf_model": model, "top_k": "one"},
        {"early_config_prune": lambda given, named, **options: []},
    ):
        kernel = tuned(prune_configs_by=pruning)
        for n in (100, 100, 20):
            see(said(lambda n=n, kernel=kernel: see(launch(kernel, n))), cache_of(kernel))


@row
def results_kept_on_disk(see: See) -> None:
    with knobs.cache.scope(), tempfile.TemporaryDirectory() as folder:
        knobs.cache.dir = folder
        for _ in range(2):
            kernel = tuned(cache_results=True)
            see(launch(kernel), launch(kernel), cache_of(kernel))
            see(bench.runs)  # type: ignore[attr-defined]


# -- autotuners: the hook of a config --------------------------------------------------------------


@row
def a_hook_sees_all_arguments_and_the_autotuner(see: See) -> None:
    def hook(given: dict[str, Any]) -> None:
        see(list(given), kernel.nargs and list(kernel.nargs), given["n"], given["BLOCK"])
        given["BLOCK"] = 1  # a copy

    kernel = tuned(configs=configs(pre_hook=hook))
    for _ in range(3):
        see(launch(kernel), on_grid(kernel), on_grid(kernel, TIMES=2))
        see(kernel.nargs)


@row
def a_hook_that_changes_its_config(see: See) -> None:
    def changing(change: Callable[[Any, Any], Any]) -> None:
        calls: list[int] = []

        def hook(given: dict[str, Any]) -> None:
            calls.append(1)
            if len(calls) > 1:
                change(kernel, kernel.configs[0])

        config = triton.Config({"BLOCK": 32}, pre_hook=hook)
        kernel = triton.autotune([config], key=[])(plain())
        for _ in range(3):
            see(said(lambda: see(on_grid(kernel))), calls, str(kernel.nargs)[:5])

    changing(lambda kernel, config: config.kwargs.update(BLOCK=64))
    changing(lambda kernel, config: config.kwargs.update(TIMES=2))
    changing(lambda kernel, config: config.kwargs.update(n=2))
    changing(lambda kernel, config: config.kwargs.update(num_warps=2))
    changing(lambda kernel, config: config.kwargs.update(nonsense=2))
    changing(lambda kernel, config: config.kwargs.clear())
    changing(lambda kernel, config: config.kwargs.update({f"k{k}": k for k in range(70)}))
    changing(lambda kernel, config: setattr(config, "kwargs", collections.OrderedDict(BLOCK=16)))
    changing(lambda kernel, config: setattr(config, "kwargs", None))
    changing(lambda kernel, config: setattr(config, "all_kwargs", lambda: {"BLOCK": 128}))
    changing(lambda kernel, config: setattr(config, "pre_hook", None))
    changing(lambda kernel, config: setattr(kernel, "fn", triton.jit(_sub)))
    changing(lambda kernel, config: setattr(kernel, "nargs", 5))
    changing(lambda kernel, config: kernel.configs.clear())
    changing(lambda kernel, config: delattr(kernel, "fn"))
    changing(lambda kernel, config: 1 // 0)


# -- heuristics ------------------------------------------------------------------------------------


@row
def heuristics_around_and_inside_an_autotuner(see: See) -> None:
    def times(given: dict[str, Any]) -> int:
        see(list(given), given["n"], given.get("BLOCK"))
        return 1 + given["n"] // 80

    outside = triton.heuristics({"TIMES": times})(tuned())
    inside = tuned(triton.heuristics({"TIMES": times})(plain()))
    for kernel in (outside, inside):
        for n in (100, 100, 60):
            see(launch(kernel, n), on_grid(kernel, n))
            see(said(lambda kernel=kernel: launch(kernel, TIMES=9)))
            see(said(lambda kernel=kernel: launch(kernel, nonsense=9)))


@row
def heuristics_that_depend_on_each_other(see: See) -> None:
    values = {
        "TIMES": lambda given: see(list(given)) or 2,
        "BLOCK": lambda given: see(list(given)) or 16 * given["TIMES"],
        "n": lambda given: given["n"] - 1,
    }
    kernel = triton.heuristics(values)(plain())
    x = torch.arange(64.0, device=DEVICE)
    for _ in range(3):
        out = torch.zeros_like(x)
        kernel[(2,)](x=x, y=x, out=out, n=64)
        see(out.tolist())
        see(said(lambda: kernel[(2,)](x, x, x, 64)))
    kernel.values = {"BLOCK": lambda given: 8}
    kernel[(2,)](x, x, out.zero_(), 64)
    see(out.tolist())
    kernel.values = collections.OrderedDict(BLOCK=lambda given: 4)
    kernel[(2,)](x, x, out.zero_(), 64)
    see(out.tolist())


@row
def heuristics_that_change_what_they_are_part_of(see: See) -> None:
    def run(change: Callable[[Any], Any]) -> None:
        calls: list[int] = []

        def block(given: dict[str, Any]) -> int:
            calls.append(1)
            if len(calls) == 3:
                change(kernel)
            return 32

        kernel = triton.heuristics({"BLOCK": block})(plain())
        for _ in range(4):
            see(said(lambda: see(on_grid(kernel))), calls)

    run(lambda kernel: setattr(kernel, "fn", triton.jit(_sub)))
    run(lambda kernel: kernel.values.update(TIMES=lambda given: 2))
    run(lambda kernel: kernel.values.clear())
    run(lambda kernel: setattr(kernel, "values", {}))
    run(lambda kernel: setattr(kernel, "arg_names", ["a"]))
    run(lambda kernel: delattr(kernel, "arg_names"))
    run(lambda kernel: kernel.fn.device_caches.clear())
    run(lambda kernel: 1 // 0)


# -- subclasses and copies -------------------------------------------------------------------------


@row
def a_subclass_with_a_run_of_its_own(see: See) -> None:
    class Cached(Autotuner):
        def run(self, *args: Any, **kwargs: Any) -> Any:
            see("run", len(args), sorted(kwargs))
            self.cache.setdefault(("mine",), self.configs[0])
            return super().run(*args, **kwargs)

    class Hidden(Autotuner):
        @property
        def best_config(self) -> Any:
            return "mine"

        @best_config.setter
        def best_config(self, value: Any) -> None:
            see("best", str(value))

    class Asked(Autotuner):
        def __getattr__(self, name: str) -> Any:
            see("asked", name)
            raise AttributeError(name)

    for kind in (Cached, Hidden, Asked):
        kernel = tuned()
        kernel.__class__ = kind
        for n in (100, 100, 50):
            see(launch(kernel, n), on_grid(kernel, n), cache_of(kernel), str(kernel.best_config))


@row
def copies(see: See) -> None:
    for kernel in (tuned(), triton.heuristics({"BLOCK": lambda given: 32})(plain())):
        launch(kernel), launch(kernel)
        other = copy.copy(kernel)
        see(launch(other), on_grid(other), launch(kernel))
        other.fn = copy.copy(kernel.fn)
        see(launch(other), launch(kernel), other.fn.device_caches is kernel.fn.device_caches)
        other.fn.device_caches.clear()
        see(launch(other), launch(kernel))
        see(said(lambda kernel=kernel: copy.deepcopy(kernel)))
        see(said(lambda kernel=kernel: copy.deepcopy(kernel.fn)))
        see(said(lambda kernel=kernel: pickle.dumps(kernel.fn)))
        other.fn = triton.jit(_sub)
        see(launch(other), launch(kernel))


# -- kernels ---------------------------------------------------------------------------------------


@row
def two_kernels_of_one_name_and_cells_run_again(see: See) -> None:
    world: dict[str, Any] = {"tl": tl, "triton": triton, "FACTOR": tl.constexpr(1)}
    x = torch.ones(1, device=DEVICE)
    for number, by in enumerate((2, 3, 2, 5)):
        cell = (
            "@triton.jit\ndef scale(x):\n    tl.store(x, inner(tl.load(x)) * FACTOR)\n"
            f"@triton.jit\ndef inner(x):\n    return x * {by}\n"
        )
        name = f"<cell {number}>"
        linecache.cache[name] = (len(cell), None, cell.splitlines(keepends=True), name)
        before = world.get("scale")
        exec(compile(cell, name, "exec"), world)
        for kernel in filter(None, (before, world["scale"], before)):
            for _ in range(2):
                see(said(lambda kernel=kernel: kernel[(1,)](x)), x.item())
    world["FACTOR"] = tl.constexpr(2)
    see(said(lambda: world["scale"][(1,)](x)))


@row
def parameters_that_are_specialized_from_now_on(see: See) -> None:
    out = torch.zeros(1, dtype=torch.int32, device=DEVICE)

    def run(kernel: Any, numbers: tuple[int, ...]) -> None:
        for number in numbers:
            made = kernel[(1,)](out, number)
            see(out.item(), made.src.signature, sorted(made.src.attrs))

    def switch(kernel: Any, name: str, value: bool) -> None:
        for each in kernel.params:
            setattr(each, name, value)

    for name in ("do_not_specialize", "do_not_specialize_on_alignment"):
        for first in (True, False):
            kernel = triton.jit(_put, **({name: ["value"]} if first else {}))
            run(kernel, (1, 16, 17))
            switch(kernel, name, not first)
            run(kernel, (17, 1, 16))
            kernel.device_caches.clear()
            run(kernel, (1, 17, 16, 1, 17))
            switch(kernel, name, first)
            kernel.device_caches.clear()
            run(kernel, (1, 17, 16, 1, 17))


@row
def options_of_a_launch_reach_the_compiler(see: See) -> None:
    options: tuple[dict[str, Any], ...] = (
        {"num_ctas": 1},
        {"num_ctas": 2},
        {"maxnreg": 32},
        {"launch_cooperative_grid": True},
        {"launch_pdl": True},
        {"cluster_dims": (1, 1, 1)},
        {"num_warps": 3},
        {"num_stages": 7, "debug": True},
        {"enable_fp_fusion": False},
        {"nonsense": 1},
        {"num_warps": "four"},
        {"stream": 3},
    )
    inside = plain()
    makers = (lambda: inside, lambda: tuned(inside), lambda: tuned(inside, configs=configs()[:1]))
    for make in makers:
        kernel = make()
        for given in options * 2:
            block = {"BLOCK": 32} if kernel is inside else {}
            launching = functools.partial(_metadata, see, kernel, {**given, **block})
            see(given, said(launching))
        see(len(next(iter(inside.device_caches.values()))[0]))


def _metadata(see: See, kernel: Any, options: dict[str, Any]) -> None:
    x = torch.ones(8, device=DEVICE)
    made = kernel[(1,)](x, x, x, 8, **options)
    known = made.metadata._asdict()
    see({name: str(known[name]) for name in sorted(known) if name != "cpu_seal"})


# -- hooks and knobs -------------------------------------------------------------------------------


@row
def hooks_that_come_and_go(see: See) -> None:
    runtime = knobs.runtime

    def started(name: str, metadata: Any) -> None:
        see(name, metadata.get()["name"])

    enter, leave = functools.partial(started, "enter"), functools.partial(started, "exit")
    kinds = (tuned(), triton.heuristics({"BLOCK": lambda given: 32})(plain()))
    for kernel in kinds:
        launch(kernel), launch(kernel)
        for chain, each in ((runtime.launch_enter_hook, enter), (runtime.launch_exit_hook, leave)):
            chain.add(each)
            see(launch(kernel), on_grid(kernel))
            chain.remove(each)
            see(launch(kernel), on_grid(kernel))
        with runtime.scope():
            runtime.launch_enter_hook = enter
            see(launch(kernel), on_grid(kernel))
        with runtime.scope():
            runtime.launch_enter_hook = runtime.launch_exit_hook = None
            see(launch(kernel), on_grid(kernel))
        see(launch(kernel))
        ran = functools.partial(_ran, see)
        kernel.fn.add_pre_run_hook(ran)
        see(launch(kernel), on_grid(kernel, debug=False))
        kernel.fn.pre_run_hooks.remove(ran)
        see(launch(kernel), on_grid(kernel))
        kernel.fn.pre_run_hooks = [ran]
        see(launch(kernel))
        kernel.fn.pre_run_hooks = ()
        see(launch(kernel))


def _ran(see: See, *args: Any, **kwargs: Any) -> None:
    see("run", len(args), sorted(kwargs.items(), key=str))


@row
def hooks_on_compiling_are_called_for_new_binaries_alone(see: See) -> None:
    def told(**given: Any) -> None:
        see(given["repr"], given["already_compiled"], given["compile"]["num_warps"])

    kernel = tuned()
    with knobs.runtime.scope():
        knobs.runtime.jit_post_compile_hook = told
        for n in (100, 100, 16, 1):
            see(launch(kernel, n), on_grid(kernel, n, debug=False))
        knobs.runtime.jit_cache_hook = lambda **given: True  # it has it: nothing is launched
        see(said(lambda: launch(kernel, 48)), launch(kernel, 100))


# -- code that runs during a launch ----------------------------------------------------------------


@row
def an_argument_whose_dtype_changes_the_autotuner(see: See) -> None:
    class Odd:
        def __init__(self, tensor: Any) -> None:
            self.tensor = tensor

        def data_ptr(self) -> int:
            return int(self.tensor.data_ptr())

        @property
        def dtype(self) -> Any:
            change()
            return self.tensor.dtype

    kernel, done = tuned(), []

    def change() -> None:
        if len(done) < 40:
            done.append(1)
            kernel.keys = list(kernel.keys)
            kernel.arg_names = list(kernel.arg_names)
            kernel.cache = dict(kernel.cache)
            launch(kernel, 100)

    x, out = torch.ones(64, device=DEVICE), torch.zeros(64, device=DEVICE)
    kernel[(4,)](x, x, out, 64)  # while an autotuner tunes, it cannot launch
    launch(kernel, 100)
    for _ in range(4):
        kernel[(4,)](Odd(x), x, out, 64)
        see(out.sum().item(), cache_of(kernel))


@row
def grids_and_hooks_that_launch(see: See) -> None:
    inner, outer = tuned(), tuned(plain())
    launch(outer, 64), launch(outer, 100)

    def grid(given: dict[str, Any]) -> tuple[int, ...]:
        see(list(given), outer.nargs and list(outer.nargs), launch(inner, 64), launch(outer, 64))
        return (triton.cdiv(100, given["BLOCK"]),)

    x, out = torch.ones(100, device=DEVICE), torch.zeros(100, device=DEVICE)
    for _ in range(3):
        outer[grid](x, x, out, 100)
        see(out.sum().item(), outer.nargs)
    see(said(lambda: outer[lambda given: 1 // 0](x, x, out, 100)), str(outer.nargs)[:3])
    see(said(lambda: outer[lambda given: ()](x, x, out, 100)))
    see(said(lambda: outer[lambda given: ("one",)](x, x, out, 100)))
    see(launch(outer))


@row
def a_run_that_the_program_replaces_for_a_while(see: See) -> None:
    kernel = tuned()
    launch(kernel), launch(kernel)
    before = Autotuner.run

    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        see("replaced", len(args))
        return before(self, *args, **kwargs)

    Autotuner.run = run
    try:
        see(launch(kernel))
    finally:
        Autotuner.run = before
    see(launch(kernel))
    kernel.run = lambda *args, **kwargs: see("own", len(args), sorted(kwargs))
    launch(kernel)
    del kernel.run
    see(launch(kernel))
    kernel.fn.run = lambda *args, **kwargs: see("inner", len(args), sorted(kwargs))
    launch(kernel)
    del kernel.fn.run
    see(launch(kernel))
