"""What decides the code of a kernel and is easily overlooked: it is in the digest, or the kernel is
refused with a reason, and Triton compiles it in this process."""

from __future__ import annotations

import copy
import enum
import functools
import math
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import triton
import triton.language as tl
from triton.language.extra import libdevice
from triton.language.extra.cuda import libdevice as of_cuda

import tzero
from tests import warm
from tests.backends.test_triton_faithful import executed
from tests.backends.test_triton_requests import asked, digest, reason
from tzero.backends.triton import names as triton_names
from tzero.backends.triton.program import Maker, Writer
from tzero.compile import Request

ROOT = Path(__file__).parents[2]


def kernel_of(line: str, before: str = "", **names: Any) -> dict[str, Any]:
    """The names of a text that has a kernel with one line."""
    text = f"{before}\n@triton.jit\ndef kernel(out):\n    tl.store(out, {line})\n"
    found = executed(text, f"<hidden {hash((line, before))}>")
    found.update(names)
    return found


# -- modules that go by name -------------------------------------------------------------------


@triton.jit
def exp(x):
    return x * 0 + 42


@functools.wraps(tl.exp)
def wrapping(x: Any, **options: Any) -> Any:
    return tl.exp2(x, **options)


PATCHES: dict[str, tuple[Any, str, Any, str]] = {
    "another function of Triton's": (tl, "exp", tl.exp2, "tl.exp(1.0)"),
    "one's own function of that name": (tl, "exp", exp, "tl.exp(1.0)"),
    "a wrapper that takes the name": (tl, "exp", wrapping, "tl.exp(1.0)"),
    "one of that name from another module": (tl, "exp", of_cuda.exp, "tl.exp(1.0)"),
    "one of a module inside": (tl.math, "exp", tl.math.exp2, "tl.math.exp(1.0)"),
    "an additional one": (tl.math, "tanh", of_cuda.tanh, "tl.math.tanh(0.5)"),
    "a library's": (libdevice, "tanh", of_cuda.tanh, "tl.extra.libdevice.tanh(0.5)"),
    "a module": (tl, "math", math, "tl.math.exp(1.0)"),
    "a library": (tl.extra, "libdevice", of_cuda, "tl.extra.libdevice.tanh(0.5)"),
    "a type": (tl, "float32", tl.float16, "tl.full((), 1, tl.float32)"),
    "a constant of Python's": (math, "pi", 3.0, "math.pi"),
    "a function of Python's": (math, "sqrt", math.exp, "math.sqrt(2)"),
}


@pytest.mark.parametrize(("module", "name", "value", "line"), PATCHES.values(), ids=PATCHES)
def test_what_was_put_into_a_module_is_not_taken_for_what_belongs_there(
    module: Any, name: str, value: Any, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fresh, known = kernel_of(line, math=math)["kernel"], kernel_of(line, math=math)["kernel"]
    before = asked(known)
    monkeypatch.setattr(module, name, value, raising=False)
    assert "'s own" in reason(fresh)
    assert "'s own" in reason(known)
    monkeypatch.undo()
    if isinstance(before, Request):
        assert digest(known) == digest(fresh) == before.digest


def test_all_that_triton_s_language_has_belongs_there() -> None:
    modules = (tl, tl.math, tl.standard, tl.random, libdevice, tl.extra.cuda, of_cuda, copy, math)
    for module in modules:
        for name in getattr(module, "__all__", None) or dir(module):
            if not name.startswith("_"):
                if module is copy and name == "error":
                    continue  # a class of another name
                assert triton_names.belongs(module, name, getattr(module, name)), (module, name)


def test_a_module_is_not_followed_as_a_value() -> None:
    before = "@triton.constexpr_function\ndef f():\n    m = math\n    return m.pi"
    assert "the module math as a value" in reason(kernel_of("f()", before, math=math)["kernel"])


def test_a_patched_process_does_not_leave_its_kernel_for_others(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import sys, torch, triton.language as tl\n"
        "if sys.argv[1:]:\n    tl.exp = tl.exp2\n"
        "import tzero\n@tzero.jit\ndef k(o):\n    tl.store(o, tl.exp(1.0))\n"
        "o = torch.zeros(1)\nk[(1,)](o)\nprint(round(o.item(), 3))\n"
    )
    command = [sys.executable, str(program)]
    patched = subprocess.run([*command, "patched"], cwd=ROOT, capture_output=True, text=True)
    assert patched.stdout.strip() == "2.0", patched.stderr
    done = warm.run(command, cwd=ROOT)
    assert done.stdout.strip() == "2.718", done.stderr


# -- functions that run while kernels compile --------------------------------------------------

HIDDEN = {
    "an import": ("import math\n    return 1", "has an import"),
    "an import of a name": ("from math import pi\n    return 1", "has an import"),
    "a global that it assigns": ("global N\n    N = 1\n    return N", "assigns 'N'"),
    "a file": ("return len(open('/dev/null').read())", "reads 'open'"),
    "a file, from a function inside": ("return (lambda: len(open('x').read()))()", "reads 'open'"),
    "its globals": ("return globals()['N']", "reads 'globals'"),
    "text that it runs": ("return eval('N')", "reads 'eval'"),
    "an import by name": ("return __import__('os').getpid()", "reads '__import__'"),
    "an address": ("return id(None)", "reads 'id'"),
    "a hash": ("return hash('a')", "reads 'hash'"),
    "output": ("print(1)\n    return 1", "reads 'print'"),
}


@pytest.mark.parametrize(("body", "words"), HIDDEN.values(), ids=HIDDEN)
def test_a_function_with_hidden_inputs_is_refused(body: str, words: str) -> None:
    before = f"N = 1\n@triton.constexpr_function\ndef f():\n    {body}\n"
    assert f"'f', which runs while it compiles, {words}" in reason(
        kernel_of("f()", before)["kernel"]
    )


def test_a_variable_called_like_a_hidden_input_is_fine() -> None:
    before = "@triton.constexpr_function\ndef f():\n    id = 3\n    return id"
    digest(kernel_of("f()", before)["kernel"])


def test_code_that_was_replaced_is_seen() -> None:
    before = "@triton.constexpr_function\ndef f():\n    return 1\n"
    names = kernel_of("f()", before + "@triton.constexpr_function\ndef g():\n    return 2\n")
    digest(names["kernel"])
    names["f"].fn.__code__ = names["g"].fn.__code__
    assert "the code of 'f' is not that of its text" in reason(names["kernel"])


def test_a_default_that_changed_in_place_is_seen() -> None:
    names = kernel_of("f()", "@triton.constexpr_function\ndef f(*, x=3):\n    return x\n")
    before = digest(names["kernel"])
    names["f"].fn.__kwdefaults__["x"] = 9
    changed = digest(names["kernel"])
    names["f"].fn.__kwdefaults__["x"] = 3
    assert digest(names["kernel"]) == before != changed


# -- classes and helpers -----------------------------------------------------------------------


class Base(NamedTuple):
    x: int

    def size(self) -> int:
        return self.x * 2


class Derived(Base):
    pass


class Scaled(NamedTuple):
    x: int
    SCALE = 5  # type: ignore[misc]


class Plain(NamedTuple):
    x: int


class Holding(enum.Enum):
    A = 1
    X = enum.nonmember(5)


class Bits(enum.IntFlag):
    A = 1
    B = 2


class Flags(enum.Flag):
    A = 1
    B = 2


class Keeping(enum.Flag, boundary=enum.KEEP):
    A = 1


REFUSED: dict[str, tuple[Any, str]] = {
    "a method of a base": (Derived(3), "has other bases than tuple"),
    "an attribute of a named tuple": (Scaled(3), "has the attribute 'SCALE'"),
    "an attribute of an enumeration": (Holding.A, "has the attribute 'X'"),
    "flags with a boundary": (Keeping.A, "a boundary of their own"),
}


@pytest.mark.parametrize(("value", "words"), REFUSED.values(), ids=REFUSED)
def test_a_class_that_is_more_than_its_fields_is_refused(value: Any, words: str) -> None:
    kernel = kernel_of("1")["kernel"]
    assert words in reason(kernel, {"out": value})


def test_a_class_that_changed_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    names = kernel_of("C.value.x", C=tl.constexpr(Plain(3)))
    digest(names["kernel"])
    monkeypatch.setattr(Plain, "SCALE", 3, raising=False)
    assert "has the attribute 'SCALE'" in reason(names["kernel"])


@pytest.mark.parametrize("value", [Bits.A | Bits.B, Bits(0), Bits(8), Flags.A | Flags.B, Flags(0)])
def test_flags_travel_together(value: Any) -> None:
    writer = Writer()
    written = writer.value(value)
    made = Maker(writer.tables()).value(written)
    assert (made.name, made.value) == (value.name, value.value)
    assert written != Writer().value(type(value).A)


def test_flags_are_what_triton_compiles() -> None:
    @tzero.jit
    def kernel(out, M: tl.constexpr):
        tl.store(out, M.value)

    out = torch.zeros(1)
    kernel[(1,)](out, Bits.A | Bits.B)
    assert out.item() == 3


def test_an_attribute_of_a_helper_is_refused() -> None:
    before = "@triton.jit\ndef helper(x):\n    return x + 1\nhelper.BLOCK = tl.constexpr(64)\n"
    kernel = kernel_of("helper(1.0) + helper.BLOCK", before)["kernel"]
    assert "an attribute of the function 'helper'" in reason(kernel)
