"""Runs random programs over sizes with each kind of plan, and compares calls with plain ones.

    seed ──► Program ──► the plain host function, and one kernel for each kind
                         each call with copies of the same arguments ──► results, arguments

Enters: seeds. Leaves: counts of what was compared and replayed; or `Wrong`, with a script that
shows it, as short as it could be made. It must not know how tzero replays.

    python -m tests.sizes.search 17            run the program of a seed, and shorten it if wrong
    python -m tests.sizes.search 0 5000        run many
"""

from __future__ import annotations

import contextlib
import dataclasses
import linecache
import math
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import Any

import torch

import tzero
from tests.plans.tiers import Raised, assert_same, outcome
from tests.sizes.programs import Call, Program, Tensor, generate
from tzero import settings

__all__ = ["KINDS", "Counts", "Wrong", "run", "run_seed", "search", "shortened"]

KINDS: Mapping[str, Mapping[str, Any]] = {
    "default": {},
    "static_shapes=False": {"static_shapes": False},
    "pool=True": {"pool": True},
}
"""The options of each kernel that a program's host function gets."""


class Wrong(AssertionError):
    """A call gave another answer than the plain function."""

    def __init__(self, kind: str, call: int, text: str) -> None:
        self.kind, self.call = kind, call
        super().__init__(text)


@dataclasses.dataclass
class Counts:
    """What a search did so far. `fresh` are calls with sizes never seen; `sized` of them were
    replayed natively."""

    programs: int = 0
    calls: int = 0
    raised: int = 0
    replayed: int = 0
    recorded: int = 0
    fresh: int = 0
    sized: int = 0


# -- arguments -------------------------------------------------------------------------------------


def made(tensor: Tensor) -> torch.Tensor:
    """A tensor of this geometry, with the numbers 1, 1.5, 2..."""
    with torch.inference_mode(tensor.inference):
        found = _laid_out(list(tensor.sizes), tensor.layout, getattr(torch, tensor.dtype))
    return found.requires_grad_() if tensor.grad else found


def _laid_out(sizes: list[int], layout: str, dtype: torch.dtype) -> torch.Tensor:
    def numbers(sizes: list[int], skipped: int = 0) -> torch.Tensor:
        total = skipped + math.prod(sizes)
        return (torch.arange(total) * 0.5 + 1).to(dtype)[skipped:].view(sizes)

    *front, last = sizes
    if layout == "turned":
        return numbers(sizes[::-1]).permute(*reversed(range(len(sizes))))
    if layout == "steps":
        return numbers([*front, 2 * last])[..., ::2]
    if layout == "wide":
        return numbers([*front, last + 3])[..., :last]
    if layout == "spread":
        return numbers([1, *sizes[1:]]).expand(sizes)
    return numbers(sizes, skipped=1 if layout == "shifted" else 0)


def arguments(call: Call) -> tuple[Any, ...]:
    """New arguments for a call."""
    found: list[Any] = []
    for each in call.args:
        if isinstance(each, int):
            found.append(each)
        elif isinstance(each, list):
            found.append([made(one) for one in each])
        else:
            first = next((one for one in found if isinstance(one, torch.Tensor)), None)
            found.append(made(each) if first is None else _beside(first, each))
    return tuple(found)


def _beside(first: torch.Tensor, tensor: Tensor) -> torch.Tensor:
    """A tensor that may share memory with the first one."""
    if tensor.layout == "alias":
        return first
    if tensor.layout == "part":
        return first.detach()[: first.shape[0] // 2]
    return made(tensor)


@contextlib.contextmanager
def _around(context: str) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        if context == "no_grad":
            stack.enter_context(torch.no_grad())
        if context == "inference":
            stack.enter_context(torch.inference_mode())
        yield


# -- one program -----------------------------------------------------------------------------------


def _module(program: Program) -> Callable[..., Any]:
    """The host function, with its source where `inspect` finds it."""
    source = program.source()
    module = ModuleType("sized_program")
    file = f"<sized {hash(source)}>"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    sys.modules[module.__name__] = module
    exec(compile(source, file, "exec"), vars(module))
    host: Callable[..., Any] = vars(module)["host"]
    return host


def _outcome(function: Callable[..., Any], call: Call) -> tuple[Any, Any]:
    args = arguments(call)
    with _around(call.context):
        found = outcome(lambda: function(*args))
    return args, found


def run(program: Program, counts: Counts, kinds: Mapping[str, Any] = KINDS) -> None:
    """Make the calls of a program; raises `Wrong` at the first difference."""
    host = _module(program)
    with settings.override(tier=2):
        kernels = {name: tzero.kernel(**options)(host) for name, options in kinds.items()}
    seen: set[Call] = set()
    for number, call in enumerate(program.calls):
        expected = _outcome(host, call)
        counts.raised += isinstance(expected[1], Raised)
        fresh = repr(call) not in seen
        seen.add(repr(call))
        counts.fresh += fresh * len(kernels)
        for name, kernel in kernels.items():
            before = kernel.stats().native_replays
            found = _outcome(kernel, call)
            counts.calls += 1
            counts.sized += fresh and kernel.stats().native_replays > before
            try:
                assert_same(found, expected)
            except AssertionError as error:
                said = (expected[1], found[1], error)
                raise Wrong(name, number, "\n".join(str(each)[:500] for each in said)) from None
    counts.programs += 1
    for kernel in kernels.values():
        stats = kernel.stats()
        counts.replayed += stats.native_replays
        counts.recorded += stats.recordings


def run_seed(seed: int, counts: Counts, kinds: Mapping[str, Any] = KINDS) -> None:
    """Run the program of a seed; raises `Wrong`, with a short program that shows it."""
    program = generate(seed)
    try:
        run(program, counts, kinds)
    except Wrong as error:
        short, last = shortened(program, error, kinds)
        raise Wrong(
            last.kind, last.call, f"seed {seed}, {last.kind}:\n\n{script(short, last)}"
        ) from None


def search(
    seeds: Iterator[int], seconds: float, clock: Callable[[], float] = time.process_time
) -> Counts:
    """Run programs until this much processor time is spent."""
    counts, until = Counts(), clock() + seconds
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for seed in seeds:
            if clock() >= until:
                break
            run_seed(seed, counts)
    return counts


# -- what is wrong, in short -----------------------------------------------------------------------


def shortened(program: Program, error: Wrong, kinds: Mapping[str, Any]) -> tuple[Program, Wrong]:
    """The program without the calls and statements that are not needed to see a difference."""
    kinds = {error.kind: kinds[error.kind]}
    program = program._replace(calls=program.calls[: error.call + 1])
    changed = True
    while changed:
        changed = False
        for field in ("calls", "statements"):
            k = 0
            while k < len(items := getattr(program, field)):
                less = program._replace(**{field: items[:k] + items[k + 1 :]})
                found = _wrong(less, kinds)
                if found is None:
                    k += 1
                else:
                    program, error, changed = less, found, True
    return program, error


def _wrong(program: Program, kinds: Mapping[str, Any]) -> Wrong | None:
    try:
        run(program, Counts(), kinds)
    except Wrong as error:
        return error
    return None


def script(program: Program, error: Wrong) -> str:
    """The program and its calls, as they may be pasted."""
    lines = [program.source().split("    pass\n", 1)[-1].strip(), ""]
    lines += [f"kernel = tzero.kernel(**{dict(KINDS[error.kind])})(host)"]
    lines += [f"{each!r}" for each in program.calls]
    return "\n".join([*lines, "", "plain, then found, then the difference:", str(error)])


def main(first: int, last: int) -> int:
    """Run the programs of these seeds, and print what is wrong."""
    counts, wrong = Counts(), 0
    warnings.simplefilter("ignore")
    for seed in range(first, last):
        try:
            run_seed(seed, counts)
        except Wrong as error:
            wrong += 1
            print(f"{'=' * 80}\n{error}\n", flush=True)
    print(counts, f"{wrong} wrong")
    return int(wrong > 0)


if __name__ == "__main__":
    given = [int(each) for each in sys.argv[1:]]
    sys.exit(main(given[0], given[-1] + (len(given) == 1)))
