"""Random programs of launches: kernels with what Triton puts around them, and changes of their
world, made without and with `tzero.install`.

    seed ──► steps: launches with random arguments, and changes between them
             the same steps in two worlds ──► results, errors, binaries, caches, calls of hooks

Enters: seeds. Leaves: how many launches were compared, and how many were native; or `Wrong`, with
the steps so far and both observations. It must not know how tzero launches.
"""

from __future__ import annotations

import copy
import dataclasses
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl
from triton import knobs
from triton.runtime.autotuner import Autotuner

import tzero
from tests.hostile.search import Wrong
from tests.launches.looking import restored
from tzero.launches import counted

__all__ = ["Counts", "run_seed"]

STEPS = 40
OPTIONS = ("num_warps", "num_stages", "debug", "extern_libs")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

FACTOR = tl.constexpr(3)


def scale(x, out, n, by, BLOCK: tl.constexpr, PLUS: tl.constexpr = 0):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    tl.store(out + at, tl.load(x + at, mask=inside) * by * FACTOR + PLUS, mask=inside)


class Buffer:
    """No tensor, but what Triton takes for one."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor, self.dtype, self.device = tensor, tensor.dtype, tensor.device

    def data_ptr(self) -> int:
        return self.tensor.data_ptr()


class Marked(torch.Tensor):
    """A subclass that changes nothing."""


def as_marked(tensor: torch.Tensor) -> Any:
    return tensor.as_subclass(Marked)


class Own(Autotuner):
    """An autotuner with a `run` of its own."""

    def run(self, *args: Any, **kwargs: Any) -> Any:
        return super().run(*args, **kwargs)


@dataclasses.dataclass
class Counts:
    """What was done so far."""

    programs: int = 0
    launches: int = 0
    failed: int = 0
    native: int = 0
    changes: int = 0


# -- one world -------------------------------------------------------------------------------------


class World:
    """Kernels, and what is seen of them. The same random numbers make the same steps."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.seen: list[str] = []
        self.steps: list[str] = []
        self.made: list[Any] = []
        self.benched = 0
        self.launches = self.failed = self.changes = 0
        self.kernels = [self.new_kernel() for _ in range(3)]
        globals()["FACTOR"] = tl.constexpr(3)

    def see(self, *values: Any) -> None:
        self.seen.append(repr(values).split(" at 0x")[0])

    def run(self) -> None:
        for _ in range(STEPS):
            if self.chance.random() < 0.6:
                again = self.chance.getstate()
                for _ in range(3):  # the same launch, which is native at last
                    self.chance.setstate(again)
                    self.launch(self.chance.choice(self.kernels))
            else:
                self.change(self.chance.choice(self.kernels))

    # -- kernels -------------------------------------------------------------------------------

    def new_kernel(self) -> Any:
        flags = self.chance.choice(({}, {"do_not_specialize": ["n", "by"]}))
        inside: Any = triton.jit(scale, **flags)
        self.made.append(inside)
        kind = self.chance.randrange(6)
        if kind == 1:
            return self.tuned(inside)
        if kind == 2:
            return self.heuristics(inside, "BLOCK")
        if kind == 3:
            return self.heuristics(self.tuned(inside), "PLUS")
        if kind == 4:
            return self.tuned(self.heuristics(inside, "PLUS"))
        if kind == 5:
            made = self.tuned(inside)
            made.__class__ = Own
            return made
        return inside

    def tuned(self, inside: Any) -> Any:
        hook = self.hook("config") if self.chance.random() < 0.3 else None
        blocks = self.chance.choice(((32,), (32, 64), (32, 64)))
        configs = [triton.Config({"BLOCK": block}, pre_hook=hook) for block in blocks]
        key = self.chance.choice((["n"], [], ["n", "by"], ["by"]))
        return triton.autotune(configs, key=list(key), do_bench=self.bench)(inside)

    def heuristics(self, inside: Any, name: str) -> Any:
        by = self.chance.randrange(2)
        values: dict[str, Callable[[Any], Any]] = {
            "BLOCK": lambda given: 32 if given["n"] > 20 else 64,
            "PLUS": lambda given: by,
        }
        return triton.heuristics({name: values[name]})(inside)

    def bench(self, call: Callable[[], Any], quantiles: Any) -> list[float]:
        call()
        self.benched += 1
        return [float(self.benched % 3)] * 3

    def hook(self, name: str) -> Callable[..., None]:
        def hook(*args: Any, **kwargs: Any) -> None:
            given = args[0] if name == "config" else kwargs
            self.see(name, len(args), sorted(given))

        return hook

    # -- launches ------------------------------------------------------------------------------

    def launch(self, kernel: Any, by: Any = None) -> None:
        chance = self.chance
        n = chance.choice((16, 17, 100, 100))
        dtype = chance.choice((torch.float32, torch.float32, torch.int32))
        whole = torch.arange(1000, device=DEVICE).to(dtype)  # whatever is given for `n`, it fits
        start = chance.choice((0, 0, 0, 1, 4))
        x, out = whole[start:], torch.zeros(1000, dtype=dtype, device=DEVICE)
        drawn = chance.choice((1, 2, 2, 16, 2.5, np.float64(2.5), True, -(2**40), 2**63))
        by = drawn if by is None else by
        wrap = chance.choice((*[torch.Tensor.detach] * 8, Buffer, as_marked))
        given: dict[str, Any] = {"x": wrap(x), "out": out, "n": n, "by": by}
        if not has_block(kernel):
            given["BLOCK"] = chance.choice((32, 64))
        if chance.random() < 0.2:
            given["PLUS"] = chance.choice((0, 1))
        positional = chance.randrange(len(given) + 1)
        if self.disturb(given):
            positional = 0  # no argument takes the place of another
        args, named = list(given.values())[:positional], dict(list(given.items())[positional:])
        if chance.random() < 0.15:
            chosen = chance.choice((*OPTIONS, "grid", "colour", "n"))
            named[chosen] = () if chosen == "extern_libs" else chance.choice((2, 4, None))
        grid = self.grid(n)
        told = [*map(brief, args), *(f"{name}={brief(value)}" for name, value in named.items())]
        self.steps.append(f"launch {self.kernels.index(kernel)}[{brief(grid)}]({', '.join(told)})")
        self.launches += 1
        try:
            made = self.made_by(kernel, grid, args, named)
        except Exception as error:
            self.failed += 1
            self.see(type(error).__name__, str(error))
            return
        self.see(out[:128].tolist(), out[128:].sum().item())
        self.see(made and (made.src.signature, made.src.attrs, made.src.constants))
        self.see(made and (made.metadata.num_warps, made.metadata.num_stages))
        for each in around(kernel):
            if isinstance(each, Autotuner):
                self.see([(key, str(config)) for key, config in each.cache.items()])
                self.see(str(each.best_config), each.nargs)

    def made_by(self, kernel: Any, grid: Any, args: list[Any], named: dict[str, Any]) -> Any:
        """Launch in one of the ways that there are."""
        way = self.chance.randrange(16)
        if way == 0:
            return kernel.run(*args, grid=grid, warmup=False, **named)
        if way == 1:
            return kernel.run(*args, **named, warmup=self.chance.random() < 0.5, grid=grid)
        if way == 2:
            launcher = kernel[grid]
            launcher(*args, **named)
            return launcher(*args, **named)
        if way == 3 and isinstance(kernel, triton.JITFunction):
            made = kernel[grid](*args, **named)
            names = [each.name for each in kernel.params]
            defaults = {each.name: each.default for each in kernel.params}
            given = {**defaults, **dict(zip(names, args, strict=False)), **named}
            made[(2, 1, 1)](*(given[name] for name in names))
            return made
        return kernel[grid](*args, **named)

    def disturb(self, given: dict[str, Any]) -> bool:
        """Give something else for an argument, or nothing, rarely."""
        if self.chance.random() > 0.12:
            return False
        name = self.chance.choice(list(given))
        other = self.chance.choice((None, "text", object, 0, -1, 2.0, np.int64(7), [1], (1, 2)))
        if self.chance.random() < 0.2:
            del given[name]
            return True
        if name not in ("x", "out") or isinstance(other, str):
            given[name] = other
        return False

    def grid(self, n: int) -> Any:
        size = -(-n // 16)
        kind = self.chance.randrange(12)
        if kind < 3:
            return lambda given: (triton.cdiv(n, given["BLOCK"]),)
        if kind == 3:
            return lambda given: self.see("grid", sorted(given)) or [size]
        odd = {4: [size], 5: (np.int32(size),), 6: torch.Size((size,)), 7: (size, 1, 1), 8: ()}
        return odd.get(kind, (size,))

    # -- changes -------------------------------------------------------------------------------

    def change(self, kernel: Any) -> None:
        """Change something at random, in the kernel or around it."""
        changes = [each for each in CHANGES if each.applies(kernel)]
        chosen = self.chance.choice(changes)
        self.steps.append(f"{chosen.name} {self.kernels.index(kernel)}")
        self.changes += 1
        try:
            chosen.make(self, kernel)
        except (KeyError, IndexError) as error:
            self.see(chosen.name, type(error).__name__)


@dataclasses.dataclass(frozen=True)
class Change:
    """A change of the world: of kernels of a kind, or of any."""

    make: Callable[[World, Any], Any]
    kind: type | None = None

    @property
    def name(self) -> str:
        return self.make.__name__

    def applies(self, kernel: Any) -> bool:
        return self.kind is None or isinstance(kernel, self.kind)


def brief(value: Any) -> str:
    """A value in a few words."""
    if isinstance(value, torch.Tensor):
        return f"{value.dtype}{list(value.shape)} + {value.storage_offset()}"
    if isinstance(value, Buffer):
        return "a buffer"
    return "a function" if callable(value) else repr(value)


def around(kernel: Any) -> Iterator[Any]:
    """A kernel, and all that is around it, from the outside."""
    while kernel is not None:
        yield kernel
        kernel = None if isinstance(kernel, triton.JITFunction) else kernel.fn


def innermost(kernel: Any) -> Any:
    return list(around(kernel))[-1]


def has_block(kernel: Any) -> bool:
    return any(
        isinstance(each, Autotuner) or "BLOCK" in getattr(each, "values", {})
        for each in around(kernel)
    )


CHANGES: list[Change] = []


def change(kind: type | None = None) -> Callable[[Any], Any]:
    def add(function: Any) -> Any:
        CHANGES.append(Change(function, kind))
        return function

    return add


@change()
def a_new_kernel(world: World, kernel: Any) -> None:
    world.kernels[world.kernels.index(kernel)] = world.new_kernel()


@change()
def a_copy(world: World, kernel: Any) -> None:
    other = copy.copy(kernel)
    if world.chance.random() < 0.5 and not isinstance(other, triton.JITFunction):
        other.fn = copy.copy(other.fn)
    world.kernels[world.chance.randrange(3)] = other


@change()
def cleared_binaries(world: World, kernel: Any) -> None:
    innermost(kernel).device_caches.clear()


@change()
def other_specializations(world: World, kernel: Any) -> None:
    inside = innermost(kernel)
    name = world.chance.choice(("do_not_specialize", "do_not_specialize_on_alignment"))
    value = world.chance.random() < 0.5
    for each in inside.params[2:4]:
        setattr(each, name, value)
    if world.chance.random() < 0.7:
        inside.device_caches.clear()
    again = world.chance.getstate()
    for by in (16, 1, 17):  # all else is the same
        world.chance.setstate(again)
        world.launch(kernel, by)


@change()
def a_flag(world: World, kernel: Any) -> None:
    innermost(kernel).debug = world.chance.choice((None, True, False))


@change()
def a_knob(world: World, kernel: Any) -> None:
    knobs.runtime.debug = world.chance.random() < 0.3


@change()
def a_knob_of_the_compiler(world: World, kernel: Any) -> None:
    with knobs.compilation.scope():
        knobs.compilation.instrumentation_mode = world.chance.choice(("", "none"))
        world.launch(kernel)
    world.launch(kernel)


@change()
def a_hook_that_raises(world: World, kernel: Any) -> None:
    def hook(metadata: Any) -> None:
        raise ValueError("the hook")

    chain = getattr(knobs.runtime, world.chance.choice(("launch_enter_hook", "launch_exit_hook")))
    chain.add(hook)
    world.launch(kernel)
    chain.remove(hook)
    world.launch(kernel)


@change()
def launches_of_a_thread(world: World, kernel: Any) -> None:
    thread = threading.Thread(target=lambda: [world.launch(kernel) for _ in range(2)])
    thread.start()
    thread.join()


@change()
def a_profiler(world: World, kernel: Any) -> None:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
        world.launch(kernel)


@change()
def a_new_installation(world: World, kernel: Any) -> None:
    """Nothing to a world without one."""
    packages = tzero.installed().packages
    if packages is not None:
        tzero.uninstall()
        tzero.install(*packages)


@change()
def a_global(world: World, kernel: Any) -> None:
    globals()["FACTOR"] = tl.constexpr(4)
    world.launch(kernel)
    globals()["FACTOR"] = tl.constexpr(3)


@change()
def a_hook_on_the_kernel(world: World, kernel: Any) -> None:
    innermost(kernel).add_pre_run_hook(world.hook("run"))
    world.launch(kernel)
    if world.chance.random() < 0.8:
        innermost(kernel).pre_run_hooks.clear()


@change()
def a_hook_on_launches(world: World, kernel: Any) -> None:
    name = world.chance.choice(("launch_enter_hook", "launch_exit_hook"))
    chain = getattr(knobs.runtime, name)
    chain.add(lambda metadata: world.see(name, metadata.get()["name"]))
    world.launch(kernel)
    if world.chance.random() < 0.8:
        chain.calls.clear()


@change(Autotuner)
def a_cleared_cache(world: World, kernel: Any) -> None:
    kernel.cache.clear()


@change(Autotuner)
def a_filled_cache(world: World, kernel: Any) -> None:
    key = world.chance.choice(sorted(kernel.cache, key=str))
    kernel.cache[key] = triton.Config({"BLOCK": world.chance.choice((32, 64))}, num_warps=2)


@change(Autotuner)
def an_entry_less(world: World, kernel: Any) -> None:
    kernel.cache.pop(world.chance.choice(sorted(kernel.cache, key=str)))


@change(Autotuner)
def another_config(world: World, kernel: Any) -> None:
    config = world.chance.choice(kernel.configs)
    kind = world.chance.randrange(4)
    if kind == 0:
        config.kwargs["BLOCK"] = world.chance.choice((32, 64))
    elif kind == 1:
        config.kwargs["PLUS"] = 1
    elif kind == 2:
        config.kwargs.pop("PLUS")
    else:
        config.num_warps = world.chance.choice((2, 4))


@change(Autotuner)
def configs_that_come_and_go(world: World, kernel: Any) -> None:
    if len(kernel.configs) > 1:
        kernel.configs.pop()
    else:
        kernel.configs.append(triton.Config({"BLOCK": 64}))


@change(Autotuner)
def other_keys(world: World, kernel: Any) -> None:
    kernel.keys = list(world.chance.choice((["n"], ["by"], ["by", "n"], ["x"], [])))


@change(Autotuner)
def the_hook_of_a_config(world: World, kernel: Any) -> None:
    config = world.chance.choice(kernel.configs)
    config.pre_hook = None if config.pre_hook else world.hook("config")


@change(triton.runtime.autotuner.Heuristics)
def other_heuristics(world: World, kernel: Any) -> None:
    name = world.chance.choice(sorted(kernel.values))
    number = world.chance.choice((32, 64)) if name == "BLOCK" else world.chance.randrange(2)
    kernel.values[name] = lambda given: number


# -- both worlds -----------------------------------------------------------------------------------


@contextmanager
def _installed(seed: int) -> Iterator[None]:
    tzero.install(*(("tests",) if seed % 3 == 0 else ()))
    try:
        yield
    finally:
        tzero.uninstall()


def run_seed(seed: int, counts: Counts) -> None:
    """Run the program of a seed in both worlds; raises `Wrong` at the first difference."""
    with restored():
        plain = World(seed)
        plain.run()
    with restored(), _installed(seed):
        mine = World(seed)
        mine.run()
    for number, (one, other) in enumerate(zip(plain.seen, mine.seen, strict=False)):
        if one != other:
            raise Wrong(
                f"seed {seed}: observation {number} differs with tzero.install\n\nplain: {one}\n"
                f"installed: {other}\n\nsteps: " + "\n".join(mine.steps)
            )
    if len(plain.seen) != len(mine.seen) or plain.steps != mine.steps:
        raise Wrong(f"seed {seed}: the steps differ: {plain.steps} and {mine.steps}")
    counts.programs += 1
    counts.launches += mine.launches
    counts.failed += mine.failed
    counts.changes += mine.changes
    made = set(map(id, mine.made))
    counts.native += sum(each.native for each in counted.launched() if id(each.kernel) in made)
