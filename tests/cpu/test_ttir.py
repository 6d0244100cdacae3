"""The parser of Triton's IR, on modules of the installed Triton."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import pytest
import triton
import triton.language as tl
from triton._C.libtriton import ir
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.compiler.compiler import make_backend

from tzero.cpu import ttir


@triton.jit
def branches_and_reductions(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    if n < 3:
        return
    x = tl.load(x_ptr + at, mask=at < n, other=0.5)
    peak, where = tl.max(x, axis=0, return_indices=True)
    for _ in range(n):
        x += peak
    tl.store(out_ptr + at, x.to(tl.float16), mask=at < n)
    tl.device_print('say "so" \\ and', where)


@triton.jit(noinline=True)
def halved(x, BY: tl.constexpr):
    return x / BY


@triton.jit
def calls(x_ptr, out_ptr):
    tl.store(out_ptr, halved(tl.load(x_ptr), 2.0))


def read(
    kernel: Any, signature: Mapping[str, str], constants: Mapping[tuple[int, ...], Any]
) -> ttir.Module:
    """A kernel's IR after the backend's first stage, as this Triton prints it."""
    target = GPUTarget("cpu", "any", 1)
    backend = make_backend(target)
    options = backend.parse_options({})
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    source = ASTSource(kernel, dict(signature), dict(constants), {})
    module = source.make_ir(
        target,
        options,
        backend.get_codegen_implementation(options),
        backend.get_module_map(),
        context,
    )
    stages: dict[str, Any] = {}
    backend.add_stages(stages, options)
    return ttir.read_module(stages["ttir"](module, {}))


@pytest.fixture(scope="module")
def entry() -> ttir.Op:
    signature = {"x_ptr": "*fp32", "out_ptr": "*fp16", "n": "i32", "BLOCK": "constexpr"}
    module = read(branches_and_reductions, signature, {(3,): 64})
    assert module.entry == "branches_and_reductions"
    return module.functions[module.entry]


def operations(entry: ttir.Op, name: str) -> list[ttir.Op]:
    return [op for op in ttir.walk(entry.regions[0]) if op.name == name]


def test_parameters_have_names_and_types(entry: ttir.Op) -> None:
    args = entry.regions[0][0].args
    assert [a.name for a in args] == ["%x_ptr", "%out_ptr", "%n"]
    assert [str(a.type) for a in args] == ["ptr<f32>", "ptr<f16>", "i32"]


def test_an_early_return_makes_blocks_and_successors(entry: ttir.Op) -> None:
    (branch,) = operations(entry, "cf.cond_br")
    labels = {block.label for block in entry.regions[0]}
    assert len(branch.successors) == 2 and set(branch.successors) <= labels


def test_segments_tell_mask_and_other_apart(entry: ttir.Op) -> None:
    (load,) = operations(entry, "tt.load")
    pointer, mask, other = load.segments()
    assert [str(v.type) for v in (*pointer, *mask, *other)] == ["64xptr<f32>", "64xi1", "64xf32"]


def test_every_operation_knows_the_line_the_user_wrote(entry: ttir.Op) -> None:
    lines, first = inspect.getsourcelines(branches_and_reductions.fn)
    wanted = first + next(k for k, line in enumerate(lines) if "tl.load" in line)
    (load,) = operations(entry, "tt.load")
    assert (load.location.file, load.location.line) == (__file__, wanted)


def test_an_operation_inside_the_library_is_placed_at_its_call(entry: ttir.Op) -> None:
    lines, first = inspect.getsourcelines(branches_and_reductions.fn)
    wanted = first + next(k for k, line in enumerate(lines) if "tl.max" in line)
    (reduce,) = operations(entry, "tt.reduce")
    assert (reduce.location.file, reduce.location.line) == (__file__, wanted)


def test_values_know_their_users(entry: ttir.Op) -> None:
    for op in ttir.walk(entry.regions[0]):
        for value in op.operands:
            assert op in value.uses
        for value in op.results:
            assert value.op is op


def test_strings_come_back_with_quotes_and_backslashes(entry: ttir.Op) -> None:
    (print_,) = operations(entry, "tt.print")
    assert 'say "so" \\ and' in print_.string("prefix")


def test_symbols_with_odd_characters_name_their_functions() -> None:
    module = read(calls, {"x_ptr": "*fp32", "out_ptr": "*fp32"}, {})
    entry = module.functions[module.entry]
    (call,) = operations(entry, "tt.call")
    assert call.symbol("callee") in module.functions


def test_text_that_is_not_generic_is_refused() -> None:
    with pytest.raises(ttir.MalformedIR, match="generic"):
        ttir.parse("module { }")


@pytest.mark.parametrize(
    ("text", "shape", "elem", "pointee"),
    [
        ("i32", (), "i32", ""),
        ("tensor<64x32xf32>", (64, 32), "f32", ""),
        ("!tt.ptr<f16>", (), "ptr", "f16"),
        ("!tt.ptr<f16, 1>", (), "ptr", "f16"),
        ("tensor<8x!tt.ptr<f8E4M3FN>>", (8,), "ptr", "f8E4M3FN"),
        ('tensor<8x!tt.ptr<f32, "constant">>', (8,), "ptr", "f32"),
        ("!tt.ptr<!tt.ptr<i32>>", (), "ptr", "ptr"),
    ],
)
def test_types(text: str, shape: tuple[int, ...], elem: str, pointee: str) -> None:
    assert ttir.parse_type(text) == ttir.Type(shape, elem, pointee)
