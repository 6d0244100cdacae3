"""`Kernel.explain`: why a call would hit or miss, whether it is replayed, and what that costs.

Enters: a kernel and the arguments of a call, in order. Leaves: an `Explanation`. It only computes
keys and checks guards.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any

from tzero import measure
from tzero.arguments.extract import unwrapped
from tzero.arguments.key import Key, difference
from tzero.arguments.text import resized
from tzero.calls.reports import Explanation
from tzero.errors import InvalidArgument

if TYPE_CHECKING:
    from tzero.calls.bound import BoundKernel
    from tzero.calls.kernel import Kernel
    from tzero.plans.planner import Planner

__all__ = ["explanation", "frames", "stages"]


def explanation(kernel: Kernel[..., Any], args: tuple[Any, ...]) -> Explanation:
    """Explain a call with these arguments.

    ::

        print(explanation(add, (x, y)))
    """
    try:
        key = kernel.table.key(kernel.extract(args), args)
    except InvalidArgument as error:
        if error.argument is None:
            raise
        why = f"argument {error.argument!r} {error.problem}"
        config = kernel.host.config
        return Explanation(kernel.name, Key(()), False, config, "", tier=kernel.tier, refusal=why)
    kernel.note_uses()
    entries = kernel.table.bound_kernels()
    own = next((each for each in entries if each.key == key), None)
    serving = _serving(kernel.planner, entries, unwrapped(args))
    here = serving if own is None else own
    others = [each.key for each in entries if each is not own]
    nearest = max(others, key=lambda other: _equal_parts(other, key), default=None)
    last = max(entries, key=lambda each: each.last_used, default=None)
    given, parameters = unwrapped(args), kernel.host.parameters
    plan, refusal = None, ""
    if kernel.planner is None:
        refusal = kernel.unplanned
    elif here is not None:
        plan, refusal = kernel.planner.look(here.variant(given), given)
    replay = None if plan is None or refusal else kernel.replaying(plan, args)
    return Explanation(
        kernel.name,
        key,
        hit=here is not None,
        config=kernel.host.config if here is None else here.variant(given).config,
        difference="" if nearest is None else difference(nearest, key, parameters),
        tier=kernel.tier,
        plan=plan,
        refusal=refusal,
        since="" if last in (None, own, serving) else _unlike(last, key, parameters),
        stages=kernel.stages(args, here),
        choice=_choice(kernel, here, given),
        replay=replay,
        graphs=kernel.graphs(plan),
    )


def _unlike(last: BoundKernel[Any], key: Key, parameters: Sequence[str]) -> str:
    """The first difference of a key from that of the last call that hit. If it hit a plan over
    sizes, its sizes are not known."""
    over_sizes = any(each.plan.sizing is not None for each in last.plans.plans())
    return difference(resized(last.key, key) if over_sizes else last.key, key, parameters)


def _serving(
    planner: Planner[Any] | None, entries: Sequence[BoundKernel[Any]], args: tuple[Any, ...]
) -> BoundKernel[Any] | None:
    """The bound kernel whose plan over sizes serves a call, if there is one."""
    planned = None if planner is None else planner.varied.find(args)
    return None if planned is None else next((e for e in entries if e is planned.bound), None)


def frames(call: Callable[[], object]) -> tuple[str, ...]:
    """The Python functions that a call runs, in order, each once.

    >>> frames(tuple), frames(lambda: None)
    ((), ('<lambda>',))
    """
    found: dict[CodeType, str] = {}

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            found.setdefault(frame.f_code, frame.f_code.co_qualname)

    outer = sys.getprofile()
    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(outer)
    return tuple(dict.fromkeys(found.values()))


def stages(
    kernel: Kernel[..., Any], args: tuple[Any, ...], here: BoundKernel[Any] | None
) -> dict[str, float]:
    """The cost of each stage of a hit in Python, in nanoseconds.

    ::

        stages(add, (x, y), add.bind(x, y))  # {"key": 800.0, "lookup": 60.0, ...}
    """
    base = kernel.extract(args)
    found: dict[str, Callable[[], object]] = {
        "key": lambda: kernel.extract.last(args),
        "lookup": lambda: kernel.table.table.get(base),
    }
    if here is not None and kernel.planner is not None:
        given = unwrapped(args)
        found |= kernel.planner.stages(here.variant(given), given)
    return {name: measure.nanoseconds(call) for name, call in found.items()}


def _choice(kernel: Kernel[..., Any], here: BoundKernel[Any] | None, args: tuple[Any, ...]) -> str:
    """Why a call uses its config."""
    if here is None or here.undecided or kernel.host.config_at is None:
        return "to be chosen at the first call" if kernel.has_choice else ""
    made = here.by_size(args) if here.by_size is not None else here.choice
    return "" if made is None else f"{made.how}: {made.why}"


def _equal_parts(one: Key, other: Key) -> int:
    return sum(a == b for a, b in zip(one, other, strict=False))
