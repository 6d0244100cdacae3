"""Captures the parts of plans as CUDA graphs, and finds the inputs in them.

    a part, its tensors ── captured four times ──► nodes, and where each holds an input's address
                                               └ an error: the part runs step by step

Enters: a part of a plan, and the tensors of a call. Leaves: a `GraphDescription`, which native code
launches with the addresses of later calls. It must not know when a plan is valid.

Nothing of a capture runs, so that the addresses in it need not be those of the call. Two captures
have each input elsewhere, each moved by a distance of its own. A word of a node's parameters that
differs from the capture of the call itself must be an address in the memory of one input, and
differ by just what that input was moved by, in both. An input that some word depends on in another
way is copied into memory of the graph first, if nothing changes it; otherwise it is fixed: the
graph is for this address of it. So are tensors of the world, such as weights, which rarely move.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any, NamedTuple

import torch

from tzero import locks
from tzero.adapters import torch_graphs
from tzero.adapters.cuda_graphs import COPY, FILL, KERNEL, CannotRead, Node, nodes
from tzero.fallbacks import Fallbacks
from tzero.launches.native import NotNative
from tzero.plans.in_order import InOrder, Stopped
from tzero.plans.plan import Part, Plan
from tzero.plans.words import Odd, Words
from tzero.plans.wrapper import Drifted

__all__ = ["Capturing", "GraphDescription", "NodeDescription"]

_MOST_CAPTURES = 16
"""How often a part is captured, for other addresses of what is fixed or other alignments."""

_MOST_REPEATED = 2
"""How often all captures are repeated if they differ in something."""

_MOST_SEARCHES = 6
"""How often inputs are moved to find those that must be fixed."""

_MOST_COPIED = 1 << 24
"""An input with more bytes is not copied into the graph's memory."""

_MOST_SET = 3
"""An input that more steps read is copied, if it is only read: one copy is set, not each kernel."""

_MOST_ROOM = 1 << 30
"""Inputs with more bytes are moved only a little."""

_ALIGNMENT = 512
"""Addresses are moved by multiples of it, so that libraries choose the same kernels."""


class NodeDescription(NamedTuple):
    """A node of a graph whose parameters hold addresses of inputs: `places` are the number of the
    input, the block, the offset there, and the distance from the input's own address."""

    kind: int
    handle: int
    params: bytes
    blocks: tuple[bytes, ...]
    places: tuple[tuple[int, int, int, int], ...]


class GraphDescription(NamedTuple):
    """A graph, and what it is for: `fixed` inputs have these addresses, `aligned` ones are divided
    by these powers of two, up to 256. `apart` are pairs of inputs whose memory must not overlap,
    each with its bytes. `addresses` are those in the graph; `kept` owns it."""

    graph: int
    kept: Any
    fixed: tuple[tuple[int, int], ...]
    aligned: tuple[tuple[int, int], ...]
    apart: tuple[tuple[int, int, int, int], ...]
    nodes: tuple[NodeDescription, ...]
    addresses: tuple[int, ...]


class Capturing:
    """The captured parts of one kernel's plans. `odd` are the names of functions that cannot be
    captured, and why: from then on they are between parts. `forget` ends the plan of a part, so
    that the next call is recorded again; `drifted` raises if a torch function returns something
    else.

    ::

        Capturing(native, Fallbacks("step"), {}, forget, drifted)
    """

    def __init__(
        self,
        native: ModuleType,
        fallbacks: Fallbacks,
        odd: dict[str, str],
        forget: Callable[[Plan], None],
        drifted: Drifted,
    ) -> None:
        self._native = native
        self.fallbacks = fallbacks
        self.odd = odd
        self.forget = forget
        self.drifted = drifted
        self._made: list[weakref.ref[Any]] = []
        self._parts: weakref.WeakValueDictionary[tuple[int, int], _Graphs]
        self._parts = weakref.WeakValueDictionary()

    def of(self, plan: Plan, part: Part) -> Any:
        """What launches the graphs of a part: an object of native code."""
        graphs = _Graphs(self, plan, part)
        self._parts[id(plan), part.first] = graphs
        device = next(plan.slots[k].device for k in (*part.inputs, *part.outputs))
        count = len(part.inputs) + len(part.outputs)
        try:
            made = self._native.Captures(device.index or 0, count, graphs.make, graphs.failed)
        except RuntimeError as error:
            raise NotNative(f"not as a CUDA graph: {error}") from error
        self._made = [*map(weakref.ref, self.made()), weakref.ref(made)]
        return made

    def made(self) -> list[Any]:
        """What launches graphs, as far as it is in use."""
        found = [each() for each in self._made]
        self._made = [each for each in self._made if each() is not None]
        return [each for each in found if each is not None]

    def ways(self, plan: Plan) -> Iterator[str]:
        """Which way each input of the captured parts takes, as lines of text."""
        for part in plan.parts:
            graphs = self._parts.get((id(plan), part.first))
            if graphs is not None:
                yield from graphs.ways()


class _Graphs:
    """The graphs of one part."""

    def __init__(self, owner: Capturing, plan: Plan, part: Part) -> None:
        self.owner = owner
        self.plan = plan
        self.part = part
        self.slots = (*part.inputs, *part.outputs)
        self.in_order = InOrder(plan, part, owner.drifted)
        self.pinned = {
            k for k, slot in enumerate(part.inputs) if plan.slots[slot].guard is not None
        }
        self.buffers: dict[int, torch.Tensor] = {}
        self.captures = 0
        self._lock = locks.lock()  # of what is kept here while a graph is captured
        self.places: dict[int, int] = {}  # how many words hold each input's address

    def failed(self, name: str) -> None:
        """Native code has dropped a graph."""
        self.owner.fallbacks.lasting(f"not as a CUDA graph: CUDA refused it ({name})")

    def make(self, tensors: tuple[torch.Tensor, ...]) -> GraphDescription | bool | None:
        """A graph for tensors like these. None if there is none now, False if there will be
        none."""
        if torch.cuda.is_current_stream_capturing():
            return None
        if any(each is None for each in tensors):
            return self._refused("an input is not made as a tensor")
        # Meanwhile the calls of other threads, and those of finalizers, are made step by step.
        if locks.owned(self._lock) or not self._lock.acquire(blocking=False):
            return None
        try:
            return self._capture(tensors)
        finally:
            self._lock.release()

    def _capture(self, tensors: tuple[torch.Tensor, ...]) -> GraphDescription | bool:
        self.captures += 1
        if self.captures > _MOST_CAPTURES:
            return self._refused("what must stay in its place moves all the time")
        try:
            return self._made(tensors)
        except CannotRead as why:
            return self._refused(str(why))
        except Stopped as stopped:
            return self._cut(stopped)
        except RuntimeError as error:  # torch, or CUDA
            return self._refused((str(error).splitlines() or ["an error"])[0][:200])

    def _refused(self, reason: str) -> bool:
        self.owner.fallbacks.lasting(f"not as a CUDA graph: {reason}")
        return False

    def _cut(self, stopped: Stopped) -> bool:
        """A step cannot be captured: from now on it is between two parts."""
        reason = f"it cannot be captured ({stopped.reason})"
        self.owner.fallbacks.lasting(f"{stopped.name} is not in a CUDA graph: {reason}")
        self.owner.odd[stopped.name] = reason
        self.owner.forget(self.plan)
        return False

    # -- capturing -----------------------------------------------------------------------------

    def _made(self, tensors: tuple[torch.Tensor, ...]) -> GraphDescription:
        self._buffers(tensors, self._worth_copying(tensors))
        try:
            found = self._compared(tensors, self._moving(tensors))
        except Odd:
            culprits = self._culprits(tensors, self._moving(tensors))
            copied = {k for k in culprits if k in self._readable(tensors)}
            self.pinned.update(culprits - copied)
            self._buffers(tensors, copied | set(self.buffers))
            try:
                found = self._compared(tensors, self._moving(tensors))
            except Odd as odd:
                raise CannotRead(str(odd)) from odd
        return self._described(tensors, found)

    def _moving(self, tensors: Sequence[torch.Tensor]) -> list[int]:
        """The inputs and outputs whose addresses may be others in each call."""
        return [k for k, each in enumerate(tensors) if k not in self.pinned and each.numel() > 0]

    def _readable(self, tensors: Sequence[torch.Tensor]) -> dict[int, int]:
        """The inputs that may be copied into the graph's memory, and how many steps read each."""
        readers = dict(self.part.read)
        return {
            k: readers[slot]
            for k, slot in enumerate(self.part.inputs)
            if slot in readers and k not in self.pinned and _is_copyable(tensors[k])
        }

    def _worth_copying(self, tensors: Sequence[torch.Tensor]) -> set[int]:
        """The inputs that take less time to copy than to set in each kernel."""
        found = self._readable(tensors).items()
        return {k for k, count in found if count > _MOST_SET}

    def _buffers(self, tensors: Sequence[torch.Tensor], which: Iterable[int]) -> None:
        self.buffers = {k: _like(tensors[k]) for k in sorted(which)}

    def _compared(self, tensors: Sequence[torch.Tensor], moving: Sequence[int]) -> _Compared:
        """A graph, and the places of the inputs in it; `Odd` if these do not explain in what it
        differs from graphs with the inputs elsewhere."""
        spans = {k: _span(tensors[k]) for k in moving}
        arena = _arena([tensors[k] for k in moving])
        one, other = (_distances(spans, arena, each) for each in (False, True))
        here = dict.fromkeys(moving, 0)
        kept: list[Any] = []  # so that no two captures have objects at the same place

        def captured(by: Mapping[int, int]) -> tuple[torch_graphs.Captured, list[Node]]:
            scattered.scatter()
            kept.append(_moved(tensors, by))
            return self._captured(kept[-1])

        with torch_graphs.Scattered() as scattered:
            first = captured(here)[1]  # it allocates what the others find
            moved = captured(one)[1]
            graph, last = captured(here)
            further = captured(other)[1]
            words = Words(last, spans)
            words.repeated(first)
            words.moved(moved, one)
            words.moved(further, other)
            for _ in range(_MOST_REPEATED):  # what nobody has set may differ by chance
                if not words.odd():
                    break
                words.repeated(captured(here)[1])
                words.repeated_moved(moved, captured(one)[1])
                words.repeated_moved(further, captured(other)[1])
        if words.odd():
            raise Odd(words.odd())
        return _Compared(graph, last, words.places())

    def _culprits(self, tensors: Sequence[torch.Tensor], moving: Sequence[int]) -> set[int]:
        """The inputs on whose addresses words depend that are no such address, by halves."""
        found: set[int] = set()
        rest, left = [list(moving)], _MOST_SEARCHES
        while rest:
            some = rest.pop()
            left -= 1
            if left < 0:
                raise CannotRead("it is not found which input must stay in its place")
            try:
                if len(some) < len(moving):
                    self._compared(tensors, some)
                    continue
            except Odd:
                pass
            if len(some) == 1:
                found.update(some)
            else:
                rest += [some[: len(some) // 2], some[len(some) // 2 :]]
        return found

    def _captured(
        self, tensors: Sequence[torch.Tensor]
    ) -> tuple[torch_graphs.Captured, list[Node]]:
        device = tensors[0].device
        graph = torch_graphs.capture(device, lambda: self._run(tensors))
        return graph, nodes(graph.handle)

    def _run(self, tensors: Sequence[torch.Tensor]) -> None:
        """Make the steps of the part with these tensors, or with copies of them."""
        used = list(tensors)
        for k, buffer in self.buffers.items():
            used[k] = buffer.copy_(tensors[k])
        self.in_order(used)

    def _described(self, tensors: Sequence[torch.Tensor], found: _Compared) -> GraphDescription:
        graph, before, places = found
        moving = self._moving(tensors)
        addresses = tuple(tensor.data_ptr() for tensor in tensors)
        self.places = dict.fromkeys(moving, 0)
        for each in places.values():
            for place in each:
                self.places[place[0]] += 1
        sizes = [_span(each)[1] - _span(each)[0] if each.numel() else 0 for each in tensors]
        read = {slot for slot, _ in self.part.read}
        others = [k for k, slot in enumerate(self.slots) if slot not in read and sizes[k]]
        return GraphDescription(
            graph.handle,
            (graph, dict(self.buffers)),
            tuple((k, addresses[k]) for k in sorted(self.pinned)),
            tuple((k, _alignment(addresses[k])) for k in moving),
            tuple((k, sizes[k], other, sizes[other]) for k in self.buffers for other in others),
            tuple(_described(before[k], each) for k, each in places.items()),
            addresses,
        )

    # -- for `explain` -------------------------------------------------------------------------

    def ways(self) -> Iterator[str]:
        """Which way each input takes."""
        if not self.captures:
            return
        names = [self.plan.slots[slot].name for slot in self.slots]
        fixed = [k for k in self.pinned if self.plan.slots[self.slots[k]].guard is None]
        for k in self.buffers:
            yield f"{names[k]}: it is copied into the graph's memory"
        for k, count in self.places.items():
            if k not in self.pinned and k not in self.buffers:
                places = f"{count} place{'' if count == 1 else 's'}"
                yield f"{names[k]}: its address is set in {places}"
        for k in sorted(fixed):
            yield f"{names[k]}: the graph is for its address"
        held = len(self.pinned) - len(fixed)
        if held:
            yield f"{held} tensors of the world: the graph is for their addresses"


class _Compared(NamedTuple):
    """A graph, its nodes, and the places of the inputs in them, by node."""

    graph: torch_graphs.Captured
    nodes: list[Node]
    places: dict[int, tuple[tuple[int, int, int, int], ...]]


# -- moving inputs ---------------------------------------------------------------------------------


def _span(tensor: torch.Tensor) -> tuple[int, int]:
    """The addresses at which a tensor's memory begins and ends."""
    pairs = zip(tensor.size(), tensor.stride(), strict=True)
    last = sum((size - 1) * stride for size, stride in pairs)
    start = tensor.data_ptr()
    return start, start + (last + 1) * tensor.element_size()


def _is_copyable(tensor: torch.Tensor) -> bool:
    """Whether a tensor is small, and its elements are at places of their own, without gaps."""
    start, end = _span(tensor)
    return 0 < tensor.nbytes == end - start and tensor.nbytes <= _MOST_COPIED


def _like(tensor: torch.Tensor) -> torch.Tensor:
    """New memory with the geometry of a tensor, and its alignment: kernels are chosen by it."""
    start, end = _span(tensor)
    memory = torch.empty(end - start + _ALIGNMENT, dtype=torch.uint8, device=tensor.device)
    skipped = (start - memory.data_ptr()) % _ALIGNMENT
    room = memory[skipped : skipped + end - start].view(tensor.dtype)
    return room.as_strided(tensor.size(), tensor.stride())


def _arena(tensors: Sequence[torch.Tensor]) -> torch.Tensor | None:
    """Memory that has room for the largest of some tensors, at some distances from its beginning.
    Copies may be captured of no other memory. None if that would be too much: then what is captured
    is at the tensors' own memory, or a little further on."""
    most = max((_span(each)[1] - _span(each)[0] for each in tensors), default=0)
    room = _ALIGNMENT * 16 * (len(tensors) + 2)
    if not tensors or most > _MOST_ROOM:
        return None
    return torch.empty(most + room, dtype=torch.uint8, device=tensors[0].device)


def _distances(
    spans: Mapping[int, tuple[int, int]], arena: torch.Tensor | None, other: bool
) -> dict[int, int]:
    """How far each input is moved: each by a distance of its own, which keeps its alignment. There
    are two ways, of which `other` is the second."""
    found: dict[int, int] = {}
    for n, (k, (start, _)) in enumerate(spans.items()):
        at = _ALIGNMENT * (5 * (len(spans) - n) + 1 if other else 7 * n + 3)
        if arena is not None:
            first = arena.data_ptr()
            at += first - start - (first - start) % _ALIGNMENT
        while at in found.values():
            at += _ALIGNMENT
        found[k] = at
    return found


def _moved(tensors: Sequence[torch.Tensor], by: Mapping[int, int]) -> list[torch.Tensor]:
    """The same tensors, some of them so many bytes further on."""
    return [
        torch_graphs.placed(each, each.data_ptr() + by[k]) if k in by else each
        for k, each in enumerate(tensors)
    ]


def _described(node: Node, places: tuple[tuple[int, int, int, int], ...]) -> NodeDescription:
    kinds = {KERNEL: 0, COPY: 1, FILL: 2}
    if node.kind not in kinds:
        raise CannotRead("a node of an unknown type holds an address")
    return NodeDescription(kinds[node.kind], node.handle, node.params, node.blocks, places)


def _alignment(address: int) -> int:
    """The power of two that divides an address, at most 256."""
    bits = address | 256
    return bits & -bits
