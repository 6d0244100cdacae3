"""Evaluates many one-line expressions with few kernels.

Enters: input tensors by name (`x`, `y`, ...), and rows `key -> (expression, output dtype)` in
Triton's language over those names. Leaves: the output or the error of each row. Compiling costs far
more than running, so rows share a kernel. If it does not compile, each row gets its own kernel, so
that a bad expression fails only its own case.
"""

from __future__ import annotations

import hashlib
import importlib.util
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from tests.cpu.cases import empty

ROWS_PER_KERNEL = 10


class Row(NamedTuple):
    """One expression and the dtype of the tensor it is stored to."""

    expression: str
    out: str


_directory = tempfile.TemporaryDirectory(prefix="tzero-kernels-")
_HEADER = """\
import triton
import triton.language as tl
from triton.language.extra import libdevice
"""


def kernel_from_text(body: str, name: str) -> Any:
    """The function `name` of a module with this text, on disk because Triton reads its source."""
    digest = hashlib.sha256(body.encode()).hexdigest()[:16]
    path = Path(_directory.name) / f"rows_{digest}.py"
    path.write_text(_HEADER + body)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, name)


Inputs = Mapping[str, torch.Tensor]
Job = tuple[Row, Inputs]


def _text(jobs: Sequence[Job], names: Mapping[int, str]) -> str:
    outs = [f"out{i}" for i in range(len(jobs))]
    parameters = ", ".join([*names.values(), *outs])
    lines = [
        "@triton.jit",
        f"def rows_kernel({parameters}, BLOCK: tl.constexpr):",
        "    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)",
    ]
    for out, (row, inputs) in zip(outs, jobs, strict=True):
        lines += [f"    {i} = tl.load({names[id(t)]} + at)" for i, t in inputs.items()]
        lines += [f"    tl.store({out} + at, {row.expression})"]
    return "\n".join(lines) + "\n"


def _run(jobs: Sequence[Job], block: int) -> list[torch.Tensor]:
    tensors = {id(t): t for _, inputs in jobs for t in inputs.values()}
    names = {key: f"in{i}" for i, key in enumerate(tensors)}
    size = next(iter(tensors.values())).numel()
    assert size % block == 0 and all(t.numel() == size for t in tensors.values())
    kernel = kernel_from_text(_text(jobs, names), "rows_kernel")
    outs = [empty(size, row.out) for row, _ in jobs]
    kernel[(size // block,)](*tensors.values(), *outs, BLOCK=block)
    return outs


def evaluate(
    inputs: Inputs, rows: Mapping[str, Row], block: int = 256
) -> dict[str, torch.Tensor | Exception]:
    """Evaluate all rows over the same inputs, with `block` elements per program."""
    return evaluate_each({key: (row, inputs) for key, row in rows.items()}, block)


def evaluate_each(jobs: Mapping[str, Job], block: int = 256) -> dict[str, torch.Tensor | Exception]:
    """Evaluate each row over its own inputs, which must all have the same size."""
    found: dict[str, torch.Tensor | Exception] = {}
    keys = list(jobs)
    for start in range(0, len(keys), ROWS_PER_KERNEL):
        chunk = keys[start : start + ROWS_PER_KERNEL]
        found.update(_evaluate_chunk({key: jobs[key] for key in chunk}, block))
    return found


def _evaluate_chunk(jobs: Mapping[str, Job], block: int) -> dict[str, torch.Tensor | Exception]:
    try:
        return dict(zip(jobs, _run(list(jobs.values()), block), strict=True))
    except Exception as error:  # raised again by `result`
        if len(jobs) == 1:
            return {next(iter(jobs)): error}
    found: dict[str, torch.Tensor | Exception] = {}
    for key, job in jobs.items():
        found.update(_evaluate_chunk({key: job}, block))
    return found


def result(found: Mapping[str, torch.Tensor | Exception], key: str) -> torch.Tensor:
    """One row's output, or its error raised."""
    value = found[key]
    if isinstance(value, Exception):
        raise value
    return value
