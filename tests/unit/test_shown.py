"""What notebooks and the interpreter show of values fits a cell, and a line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import triton
import triton.language as tl

import tzero


@triton.jit
def add_kernel(x, y, out, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.load(x + at, mask=at < n) + tl.load(y + at, mask=at < n)
    tl.store(out + at, total, mask=at < n)


@tzero.kernel
def add(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    add_kernel[(triton.cdiv(x.numel(), 64),)](x, y, out, x.numel(), BLOCK=64)
    return out


class Printer:
    """What IPython gives to ``_repr_pretty_``."""

    def __init__(self) -> None:
        self.shown = ""

    def text(self, words: str) -> None:
        assert "\n" not in words, "IPython counts columns"
        self.shown += words

    def break_(self) -> None:
        self.shown += "\n"


X = torch.ones(100)


def recorded() -> Any:
    with tzero.measure.recording() as record:
        add(X, X)
    return record


def launched() -> Any:
    tzero.install()
    try:
        add_kernel[(2,)](X, X, torch.empty_like(X), 100, BLOCK=64)
        return tzero.installed()
    finally:
        tzero.uninstall()


VALUES: dict[str, Callable[[], Any]] = {
    "Explanation": lambda: add.explain(X, X),
    "Plan": lambda: add.explain(X, X).plan,
    "Stats": add.stats,
    "Record": recorded,
    "Installed": launched,
    "Coverage": tzero.coverage,
    "Warmed": lambda: add.warmup(X, X),
}


@pytest.mark.parametrize("name", VALUES)
def test_a_value_is_its_text_in_a_cell_and_a_line_elsewhere(name: str) -> None:
    for _ in range(3):
        add(X, X)
    value = VALUES[name]()
    assert type(value).__name__ == name
    printer = Printer()
    value._repr_pretty_(printer, False)
    assert printer.shown == "\n".join(str(value).splitlines())
    assert "\n" not in repr(value) and len(repr(value)) < 200 and name in repr(value)


def test_kernels_that_compile_say_how_many_are_done() -> None:
    ahead = add.precompile(X, X)
    ahead.wait()
    assert repr(ahead) == "<Precompiled 1 of 1 kernels>"
