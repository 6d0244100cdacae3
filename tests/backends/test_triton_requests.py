"""Requests for Triton kernels: equal where the result is, another where it may be; or a reason."""

from __future__ import annotations

import ast
import gc
import os
import platform
import subprocess
import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

import tzero
from tests import warm
from tests.backends import triton_zoo as zoo
from tests.backends import triton_zoo_deeper, triton_zoo_helpers
from tests.backends.test_triton_faithful import executed
from tzero.adapters import triton_compile, triton_launch
from tzero.adapters.triton_launch import ASTSource, GPUTarget
from tzero.backends import triton as backend
from tzero.backends.triton import names as triton_names
from tzero.backends.triton import write_request
from tzero.cache.digest import parse
from tzero.compile import Request

HOPPER = GPUTarget("cuda", 90, 32)
CPU = GPUTarget("cpu", platform.machine(), 1)
ROOT = Path(__file__).parents[2]


def asked(
    kernel: Any,
    constants: dict[str, Any] | None = None,
    target: GPUTarget = CPU,
    options: dict[str, Any] | None = None,
    types: dict[str, Any] | None = None,
    attributes: Any = None,
) -> Request | backend.NotTransportable:
    constants = constants or {}
    signature = {
        name: "constexpr" if name in constants else (types or {}).get(name, "*fp32")
        for name in kernel.arg_names
    }
    return backend.request(ASTSource(kernel, signature, constants, attributes), target, options)


def digest(*args: Any, **options: Any) -> str:
    found = asked(*args, **options)
    assert isinstance(found, Request), found
    parse(found.program)  # it is canonical
    return found.digest


def reason(*args: Any, **options: Any) -> str:
    found = asked(*args, **options)
    assert isinstance(found, backend.NotTransportable)
    return found.reason


# -- what is in a digest -----------------------------------------------------------------------

CHANGES: dict[str, Callable[[pytest.MonkeyPatch], Any]] = {
    "a global": lambda patch: patch.setattr(zoo, "SCALE", tl.constexpr(2.25)),
    "the sign of zero": lambda patch: patch.setattr(zoo, "ZERO", tl.constexpr(0.0)),
    "the value in a global": lambda patch: patch.setattr(zoo.SCALE, "value", 3.0),
    "a type": lambda patch: patch.setattr(zoo, "KIND", tl.float16),
    "a variable that passes read": lambda patch: patch.setenv("DISABLE_LLVM_OPT", "1"),
    "a variable of a knob": lambda patch: patch.setenv("TRITON_DISABLE_LINE_INFO", "1"),
    "a knob": lambda patch: patch.setitem(vars(triton.knobs.compilation), "enable_asan", True),
    "storing the binary only": lambda patch: patch.setenv("TRITON_STORE_BINARY_ONLY", "1"),
    "the compiler's version": lambda patch: patch.setattr(triton_compile, "compiler_digest", str),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_what_may_change_the_code_changes_the_digest(
    change: Callable[[pytest.MonkeyPatch], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def ask() -> str:
        write_request._toolchains.clear()  # they hold the compiler's version
        return digest(zoo.uses_constants, {"BLOCK": 4})

    before = ask()
    with monkeypatch.context() as patch:
        change(patch)
        assert ask() != before
    assert ask() == before


def test_what_helpers_read_changes_the_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    before = digest(zoo.through_modules, {"BLOCK": 4})
    for module, name, value in (
        (triton_zoo_helpers, "FACTOR", 4.0),
        (triton_zoo_deeper, "OFFSET", 0.25),
        (triton_zoo_deeper, "squared", zoo.twice),
        (triton_zoo_helpers, "deeper", triton_zoo_helpers),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(module, name, value)
            if name == "deeper":
                patch.setattr(module, "OFFSET", 1.0, raising=False)
                patch.setattr(module, "squared", zoo.twice, raising=False)
            assert digest(zoo.through_modules, {"BLOCK": 4}) != before, name
    monkeypatch.setattr(triton_zoo_helpers, "NEVER_READ", 1)
    assert digest(zoo.through_modules, {"BLOCK": 4}) == before


def test_constants_types_attributes_options_and_targets_are_told_apart() -> None:
    kernel = zoo.gives_itself_a_name
    values = [1, 1.0, True, "1", None, (1,), [1], 0.0, -0.0, float("nan"), float("inf"), tl.int32]
    values += [tl.constexpr(1), zoo.twice, zoo.thrice, zoo.Mode.FAST, zoo.Pair(1, 2), 2**70]
    values += [tl.pointer_type(tl.int8), tl.pointer_type(tl.int8, const=True)]
    found = {digest(kernel, {"N": value}) for value in values}
    found |= {digest(kernel, {"N": 1}, types={"out": each}) for each in ("*fp16", "*kfp32")}
    found.add(digest(kernel, {"N": 1}, attributes={(0,): [["tt.divisibility", 16]]}))
    found.add(digest(kernel, {"N": 1}, options={"num_warps": 8}))
    found |= {digest(kernel, {"N": 1}, HOPPER), digest(kernel, {"N": 1}, GPUTarget("cuda", 80, 32))}
    assert len(found) == len(values) + 6


def test_options_are_written_as_the_backend_reads_them() -> None:
    kernel = zoo.gives_itself_a_name
    assert digest(kernel, {"N": 1}, HOPPER, {}) == digest(
        kernel, {"N": 1}, HOPPER, {"num_warps": 4}
    )
    checked = digest(kernel, {"N": 1}, CPU, {"cpu_check": True})
    with tzero.settings.override(cpu_check=True):
        assert digest(kernel, {"N": 1}, CPU) == checked != digest(kernel, {"N": 1}, HOPPER)


def test_places_are_no_part_of_a_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    before = asked(zoo.evaluates, {"N": 4}, HOPPER)
    monkeypatch.setenv("CUDA_HOME", "/somewhere")
    after = asked(zoo.evaluates, {"N": 4}, HOPPER)
    assert isinstance(before, Request) and isinstance(after, Request)
    assert before.digest == after.digest
    assert after.environment["CUDA_HOME"] == "/somewhere"


def test_a_replaced_text_is_written_anew() -> None:
    kernel = executed("@triton.jit\ndef kernel(out):\n    tl.store(out, 1)\n", "<new>")["kernel"]
    before = digest(kernel)
    kernel._unsafe_update_src(kernel.src.replace("1", "2"))
    assert digest(kernel) != before


HELPED = """
@triton.jit
def helper(x):
    return x + 1

@triton.jit
def kernel(out):
    tl.store(out, helper(1))
"""


def test_each_function_is_parsed_once_for_a_request(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[str] = []
    parse_text = ast.parse

    def noting(text: Any, *args: Any, **kwargs: Any) -> Any:
        parsed.append(str(text))
        return parse_text(text, *args, **kwargs)

    kernel = executed(HELPED, "<helped>")["kernel"]
    digest(executed(HELPED, "<before>")["kernel"])  # what is read of Triton's own modules is kept
    monkeypatch.setattr(ast, "parse", noting)
    digest(kernel)
    assert [text.split("(")[0] for text in parsed] == ["def kernel", "def helper"]


def test_a_text_that_changes_after_it_was_hashed_is_read_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kernel = executed(HELPED, "<helped>")["kernel"]
    hashed = triton_launch.hashed

    def changing(function: Any) -> Any:
        found = hashed(function)
        kernel._unsafe_update_src(kernel.src.replace("helper(1)", "tl.abs(-1)"))
        return found

    monkeypatch.setattr(triton_launch, "hashed", changing)
    found = asked(kernel)
    assert isinstance(found, Request)
    tables = parse(found.program)["tables"]
    assert [row["name"] for row in tables["functions"]] == ["kernel"]
    assert set(tables["scopes"][0]) == {"tl"}


def test_a_list_that_changes_in_place_is_written_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton.knobs.compilation, "allow_non_constexpr_globals", True)
    text = "SIZES = [1, 2]\n@triton.jit\ndef kernel(out):\n    tl.store(out, SIZES[0])\n"
    names = executed(text, "<list>")
    before = digest(names["kernel"])
    names["SIZES"][0] = 3
    assert digest(names["kernel"]) != before


def digests() -> list[str]:
    return [
        digest(kernel, constants, **target)
        for target in ({}, {"target": HOPPER})
        for kernel, constants in (
            (zoo.evaluates, {"N": 4}),
            (zoo.through_modules, {"BLOCK": 4}),
            (zoo.takes_mode, {"MODE": zoo.Mode.FAST}),
        )
    ]


def test_digests_are_the_same_in_every_process() -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "from tests.backends import test_triton_requests as t; print(*t.digests())",
        ],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": warm.other_hash_seed(), "TZERO_CPU": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == digests()
    assert len(set(digests())) == 6


def test_only_what_is_read_goes_along() -> None:
    found = asked(zoo.shadows, {"BLOCK": 4})
    assert isinstance(found, Request)
    tables = parse(found.program)["tables"]
    assert [set(scope) for scope in tables["scopes"]] == [{"tl"}]
    assert len(tables["functions"]) == 1
    found = asked(zoo.through_modules, {"BLOCK": 4})
    assert isinstance(found, Request)
    held = {each["name"]: set(each["holds"]) for each in parse(found.program)["tables"]["modules"]}
    assert held == {
        "tests.backends.triton_zoo_helpers": {"FACTOR", "deeper"},
        "tests.backends.triton_zoo_deeper": {"OFFSET", "squared"},
    }


def test_a_kernel_is_not_kept_alive_by_what_was_written_of_it() -> None:
    kernel = zoo.closing_over(tl.constexpr(3), zoo.twice)
    digest(kernel, {"BLOCK": 4})
    gone = weakref.ref(kernel)
    triton_compile._registry.pop(f"{kernel.module}:{kernel.__qualname__}", None)  # Triton 3.9's own
    del kernel
    gc.collect()
    assert gone() is None


# -- what cannot travel ------------------------------------------------------------------------


def test_values_that_cannot_be_written_are_named() -> None:
    kernel = zoo.gives_itself_a_name
    assert reason(kernel, {"N": torch.float32}) == "it reads a torch.dtype"
    assert reason(kernel, {"N": np.int64(3)}) == "it reads a numpy.int64"
    assert "the function" in reason(kernel, {"N": executed})


REFUSED = {
    "printing": ("tl.static_print('n')", "static_print"),
    "a module as a value": ("tl.store(out, getattr(helpers, 'FACTOR'))", "as a value"),
    "a builtin of one's own": ("tl.store(out, mine(1))", "mine"),
    "what someone put into Triton": ("tl.store(out, tl.put_there(1))", "not Triton's own"),
    "a constant of another kind": ("tl.store(out, STRANGE)", "numpy.int64"),
}


@pytest.mark.parametrize(("line", "words"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_travel_has_a_reason(
    line: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tl, "put_there", zoo.twice, raising=False)
    text = (
        "from tests.backends import triton_zoo_helpers as helpers\nimport numpy\n"
        "STRANGE = tl.constexpr(numpy.int64(3))\n"
        "@tl.core.builtin\ndef mine(x, _semantic=None):\n    return x\n"
        f"@triton.jit\ndef kernel(out):\n    {line}\n"
    )
    kernel = executed(text, f"<refused {words}>")["kernel"]
    assert words in reason(kernel)


@pytest.mark.parametrize(
    ("group", "name", "value"),
    [
        ("compilation", "always_compile", True),
        ("compilation", "override", True),
        ("compilation", "dump_ir", True),
        ("compilation", "use_ir_loc", "ttir"),
        ("compilation", "listener", print),
        ("runtime", "add_stages_inspection_hook", print),
        ("cache", "manager_class", object),
    ],
)
def test_knobs_that_want_triton_itself_are_left_to_it(
    group: str, name: str, value: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = zoo.gives_itself_a_name
    with monkeypatch.context() as patch:
        patch.setitem(vars(getattr(triton.knobs, group)), name, value)
        assert reason(kernel, {"N": 1})
    digest(kernel, {"N": 1})


def test_variables_and_options_that_want_triton_itself_are_left_to_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kernel = zoo.gives_itself_a_name
    assert "ir_override" in reason(kernel, {"N": 1}, options={"ir_override": "x.ttir"})
    monkeypatch.setenv("MLIR_ENABLE_DUMP", "1")
    assert reason(kernel, {"N": 1}).startswith("MLIR_ENABLE_DUMP is set")


def test_a_function_whose_text_is_not_its_code_stays_here() -> None:
    text = "@triton.constexpr_function\ndef f(x):\n    return x + 1\n"
    text += "@triton.jit\ndef kernel(out):\n    tl.store(out, f(1))\n"
    names = executed(text, "<stale>")
    names["f"].fn.__code__ = (lambda x: x + 2).__code__
    assert "is not that of its text" in reason(names["kernel"])


# -- names -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "names"),
    [
        ("y = x\n  y = y + 1", ""),
        ("y = y + 1", "y"),
        ("y += 1", "y"),
        ("if x:\n    y = 1\n  return y", "y"),
        ("if x:\n    y = 1\n  else:\n    y = 2\n  return y", ""),
        ("for i in range(a):\n    b = i\n  return b", "range a b"),
        ("while x:\n    x = c\n  return x", "c"),
        ("return [y for y in z if y < w]", "z w"),
        ("a, (b, c) = x\n  return a + b + c + d", "d"),
        ("x[y] = z", "z y"),
        ("return 1\n  print(x, q)", ""),
        ("(y := z)\n  return y", "z"),
        ("return x.shape[0] + q.a.b", "q"),
        ("with a as b:\n    return b", "a"),
    ],
)
def test_names_are_a_kernel_s_own_from_where_they_are_assigned(body: str, names: str) -> None:
    tree = ast.parse(f"def f(x):\n  {body}").body[0]
    assert [read.name for read in triton_names.of_kernel(tree)] == names.split()


def test_a_function_given_as_a_constant_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was written of a kernel is remembered for the functions that came with it."""
    kernel = zoo.gives_itself_a_name
    before = digest(kernel, {"N": zoo.thrice})
    assert digest(kernel, {"N": zoo.twice}) != before == digest(kernel, {"N": zoo.thrice})
    with monkeypatch.context() as patch:
        patch.setattr(zoo, "twice", zoo.apart)  # which `thrice` calls
        assert digest(kernel, {"N": zoo.thrice}) != before
    assert digest(kernel, {"N": zoo.thrice}) == before
