"""Finds the addresses of inputs among the parameters of captured graphs.

Enters: the nodes of several captures of the same work, some with inputs at other addresses. Leaves:
the words that are addresses of inputs; or `Odd`, if these do not explain in what the captures
differ. It must not know how graphs are captured.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tzero.adapters.cuda_graphs import Node

__all__ = ["Odd", "Words"]

_WORD = 8


class Odd(Exception):
    """Some words of a graph are not explained by the addresses of its inputs.

    >>> str(Odd("a parameter has another size in another capture"))
    'a parameter has another size in another capture'
    """


_OTHERWISE = "a parameter depends on an address in a way that is not known"
Place = tuple[int, int, int]
"""A word of a graph: the number of the node, of the block of its parameters, and the offset."""


class Words:
    """The words of a captured graph, compared with those of other captures of the same work.
    `spans` are the memory of the inputs that may move.

    A word that differs although no input has moved is one that nobody has set, such as the padding
    of a structure, or the address of memory that belongs to the graph. It must not be an address in
    the memory of an input; otherwise it does not matter.
    """

    def __init__(self, nodes: Sequence[Node], spans: Mapping[int, tuple[int, int]]) -> None:
        self._nodes = nodes
        self._spans = spans
        self._noise: set[Place] = set()
        # The differences, and the inputs by how far they were moved.
        self._moved: list[tuple[dict[Place, tuple[int, int]], Mapping[int, int]]] = []
        self._found: dict[Place, int | None] = {}  # what `_input` has found

    def repeated(self, others: Sequence[Node]) -> None:
        """A capture with the inputs at the same addresses."""
        self._noise.update(_differences(self._nodes, others))

    def repeated_moved(self, some: Sequence[Node], others: Sequence[Node]) -> None:
        """Two captures with the inputs at the same other addresses."""
        self._noise.update(_differences(some, others))

    def moved(self, others: Sequence[Node], by: Mapping[int, int]) -> None:
        """A capture with each input `by` so many bytes further on, by which it is recognized."""
        self._found.clear()
        found = {distance: k for k, distance in reversed(list(by.items()))}
        self._moved.append((_differences(self._nodes, others), found))

    def _input(self, place: Place) -> int | None:
        """The input whose address a word holds: it moves by just as much. None if there is none."""
        if place not in self._found:
            found = set()
            for differences, moved in self._moved:
                was, now = differences.get(place, (0, 0))
                found.add(moved.get(now - was))
            k = found.pop() if len(found) == 1 else None
            is_there = k is not None and self._is_in(self._word(place), k)
            self._found[place] = k if is_there else None
        return self._found[place]

    def _is_in(self, word: int, k: int) -> bool:
        return self._spans[k][0] <= word <= self._spans[k][1]

    def _word(self, place: Place) -> int:
        node, block, at = place
        return int.from_bytes(self._nodes[node].blocks[block][at : at + _WORD], "little")

    def odd(self) -> str:
        """What is not explained; usually empty."""
        for place in {place for differences, _ in self._moved for place in differences}:
            if self._input(place) is None and place not in self._noise:
                return f"{_OTHERWISE}: {self._told(place)}"
        for place in self._noise:
            word = self._word(place)
            if self._input(place) is None and any(self._is_in(word, k) for k in self._spans):
                return "a parameter may be an address, and differs from capture to capture"
        return ""

    def _told(self, place: Place) -> str:
        """A word in all captures, for messages."""
        node, block, at = place
        now = [each.get(place, (0, 0))[1] for each, _ in self._moved]
        values = ", ".join(hex(value) for value in (self._word(place), *now) if value >= 0)
        size = len(self._nodes[node].blocks[block])
        return (
            f"node {node} of {len(self._nodes)}, parameter {block}, byte {at} of {size}: {values}"
        )

    def places(self) -> dict[int, tuple[tuple[int, int, int, int], ...]]:
        """Where each node holds addresses: the input, the block, the offset there, and how far the
        word is from the input's own address."""
        found: dict[int, list[tuple[int, int, int, int]]] = {}
        for place in sorted({place for differences, _ in self._moved for place in differences}):
            k = self._input(place)
            if k is not None:
                node, block, at = place
                found.setdefault(node, []).append(
                    (k, block, at, self._word(place) - self._spans[k][0])
                )
        return {node: tuple(each) for node, each in found.items()}


def _differences(some: Sequence[Node], others: Sequence[Node]) -> dict[Place, tuple[int, int]]:
    """The words in which two captures differ, with both values; `Odd` if they do other work."""
    if len(some) != len(others):
        raise Odd(f"another capture of it has {len(others)} nodes, not {len(some)}")
    found: dict[Place, tuple[int, int]] = {}
    for number, (one, other) in enumerate(zip(some, others, strict=True)):
        if (one.kind, one.shape) != (other.kind, other.shape):
            raise Odd("another capture of it launches other kernels")
        if one.blocks == other.blocks:
            continue
        for block, (before, after) in enumerate(zip(one.blocks, other.blocks, strict=True)):
            if len(before) != len(after):
                raise Odd("a parameter has another size in another capture")
            for at in range(0, len(before), _WORD) if before != after else ():
                pair = before[at : at + _WORD], after[at : at + _WORD]
                if pair[0] != pair[1]:
                    was, now = (int.from_bytes(each, "little") for each in pair)
                    # What is shorter than an address is none: no distance explains it.
                    found[number, block, at] = (was, now) if len(pair[0]) == _WORD else (0, -1)
    return found
