"""Halide pipelines: built and compiled in a worker, called with tensors."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import tzero
from tests import warm
from tzero.backends import halide
from tzero.compile.backend import find

if importlib.util.find_spec("halide") is None:
    pytest.skip(
        "halide is not installed (pip install 'tzero-runtime[halide]')", allow_module_level=True
    )

import halide as hl

SHIFT = 3


TAKES = {"x": "float32[2]", "by": "float32", "times": "int32"}


@halide.function(takes=TAKES, gives="float32[2]")
def brightened(x: Any, by: Any, times: Any) -> Any:
    # A comment, which is no part of what is compiled.
    i, j, out = hl.Var("i"), hl.Var("j"), hl.Func("out")
    out[i, j] = x[i, j] * by + SHIFT * times
    out.parallel(j)
    return out


@halide.function(takes={"x": "int32[1]", "y": "int32[1]"}, gives=["int32[1]", "bool[1]"])
def both(x: Any, y: Any) -> Any:
    i, total, larger = hl.Var("i"), hl.Func("total"), hl.Func("larger")
    total[i] = x[i] + y[i]
    larger[i] = x[i] > y[i]
    return total, larger


def test_a_pipeline_runs_on_tensors() -> None:
    x, out = torch.rand(7, 5), torch.zeros(7, 5)
    brightened(x, 2.0, 4, out)
    torch.testing.assert_close(out, 2 * x + 12)


def test_tensors_are_not_copied_and_may_have_gaps_between_rows() -> None:
    whole, out = torch.rand(6, 10), torch.zeros(6, 10)
    brightened(whole[::2, 2:7], 1.0, 0, out[::2, 2:7])
    expected = torch.zeros(6, 10)
    expected[::2, 2:7] = whole[::2, 2:7]
    torch.testing.assert_close(out, expected)


def test_a_pipeline_may_have_several_results() -> None:
    x, y = torch.tensor([1, 5, 3], dtype=torch.int32), torch.tensor([2, 2, 3], dtype=torch.int32)
    total, larger = torch.zeros(3, dtype=torch.int32), torch.zeros(3, dtype=torch.bool)
    both(x, y, total, larger)
    assert total.tolist() == [3, 7, 6]
    assert larger.tolist() == [False, True, False]


@pytest.mark.parametrize(
    "dtype", ["bool", "int8", "uint8", "int16", "uint16", "int64", "uint64", "float16", "float64"]
)
def test_dtypes_are_those_of_torch(dtype: str) -> None:
    @halide.function(takes={"x": f"{dtype}[1]"}, gives=f"{dtype}[1]")
    def same(x: Any) -> Any:
        i, out = hl.Var("i"), hl.Func("out")
        out[i] = x[i]
        return out

    x = torch.tensor([0, 1, 1, 0]).to(getattr(torch, dtype))
    out = torch.zeros(4, dtype=x.dtype)
    same(x, out)
    assert torch.equal(out, x)


def test_what_halides_runtime_refuses_is_an_error_and_not_the_end() -> None:
    x = torch.rand(4, 4)
    with pytest.raises(RuntimeError, match=r"brightened: .*x is accessed at"):
        brightened(x, 1.0, 0, torch.zeros(4, 9))
    with pytest.raises(RuntimeError, match="stride"):
        brightened(x, 1.0, 0, torch.zeros(4, 4).t())
    brightened(x, 1.0, 0, torch.zeros(4, 4))


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ((torch.rand(2, 2).double(), 1.0, 0, torch.zeros(2, 2)), "'x' is a float64\\[2\\]"),
        ((torch.rand(2), 1.0, 0, torch.zeros(2, 2)), "'x' is a float32\\[1\\]"),
        ((None, 1.0, 0, torch.zeros(2, 2)), "'x' is of type NoneType"),
        ((torch.rand(2, 2), "1", 0, torch.zeros(2, 2)), "'by' is of type str"),
        ((torch.rand(2, 2), 1.0, 1 << 31, torch.zeros(2, 2)), "'times' is 2147483648"),
        ((torch.rand(2, 2).to("meta"), 1.0, 0, torch.zeros(2, 2)), "'x' is on meta"),
        ((torch.rand(2, 2), 1.0, 0), "given 3 arguments. It takes 4: x, by, times, out"),
    ],
)
def test_a_wrong_argument_is_named(args: Any, words: str) -> None:
    with pytest.raises(tzero.InvalidArgument, match=f"brightened: .*{words}"):
        brightened(*args)


def test_what_a_builder_raises_is_told_with_its_traceback() -> None:
    @halide.function(takes={"x": "float32[1]"}, gives="float32[1]")
    def wrong(x: Any) -> Any:
        return hl.NoSuchThing(x)

    with pytest.raises(tzero.CompileFailed, match=r"wrong: .*NoSuchThing") as caught:
        wrong(torch.ones(2), torch.ones(2))
    assert "<the builder of wrong>" in caught.value.trace


def test_a_result_that_is_not_what_was_said_is_refused() -> None:
    @halide.function(takes={"x": "float32[1]"}, gives="int32[2]")
    def wrong(x: Any) -> Any:
        i, out = hl.Var("i"), hl.Func("out")
        out[i] = x[i]
        return out

    with pytest.raises(tzero.CompileFailed, match=r"returns float32\[1\].*said to give int32\[2\]"):
        wrong(torch.ones(2), torch.ones(2, 2, dtype=torch.int32))


def _plain(x: Any) -> Any:
    return x


def _helped(x: Any) -> Any:
    return _plain(x)


X = {"x": "float32[1]"}


@pytest.mark.parametrize(
    ("build", "takes", "gives", "words"),
    [
        (_helped, X, "float32[1]", "uses '_plain', a function, from outside"),
        (_plain, X, "float32", "results are not tensors"),
        (_plain, X, [], "results are not tensors"),
        (_plain, {"x": "complex64[1]"}, "float32[1]", "'x' is said to be 'complex64"),
        (_plain, {"x": "float32[a]"}, "float32[1]", "'x' is said to be 'float32"),
        (
            _plain,
            {"y": "float32"},
            "float32[1]",
            r"parameters are \['x'\], and takes names \['y'\]",
        ),
        (len, X, "float32[1]", "no plain function"),
    ],
)
def test_a_builder_that_does_not_stand_alone_is_refused(
    build: Any, takes: Any, gives: Any, words: str
) -> None:
    with pytest.raises(tzero.InvalidKernel, match=words):
        halide.function(takes=takes, gives=gives)(build)


def test_comments_do_not_matter_and_numbers_around_do() -> None:
    def made(shift: int) -> str:
        @halide.function(takes=X, gives="float32[1]")
        def build(x: Any) -> Any:
            i, out = hl.Var("i"), hl.Func("out")
            out[i] = x[i] + shift
            return out

        return build.request().digest

    assert made(1) == made(1)
    assert made(1) != made(2)
    assert "comment" not in brightened.request().program


def test_a_missing_halide_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    with pytest.raises(tzero.ToolchainMissing, match=r"pip install 'tzero-runtime\[halide\]'"):
        brightened.request()


def test_a_pipeline_from_the_main_module_compiles_in_a_worker(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import torch, halide as hl\n"
        "from tzero.backends import halide\n"
        "from tzero.compile import service\n"
        "@halide.function(takes={'x': 'float32[1]'}, gives='float32[1]')\n"
        "def more(x):\n"
        "    i, out = hl.Var('i'), hl.Func('out')\n"
        "    out[i] = x[i] + 1\n"
        "    return out\n"
        "if __name__ == '__main__':\n"
        "    service().warm_pool(); assert service().wait_pool_ready(60)\n"
        "    more.precompile().result()\n"
        "    out = torch.zeros(3)\n"
        "    more(torch.ones(3), out)\n"
        "    print(out.tolist(), service().stats().compiled['process'])\n"
    )
    done = warm.run([sys.executable, str(program)])
    assert done.stdout.strip() == "[2.0, 2.0, 2.0] 1", done.stderr


def test_importing_the_backend_imports_neither_torch_nor_halide() -> None:
    code = (
        "import sys, tzero.backends.halide, tzero.backends.cutedsl, tzero.backends.cpp, "
        "tzero.backends.cuda, tzero.backends.hip, tzero.backends.cpp_pybinding; "
        "print(*sorted({'torch', 'triton', 'halide', 'cutlass'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_the_backend_is_found_by_its_name() -> None:
    assert find("halide") is halide.backend
