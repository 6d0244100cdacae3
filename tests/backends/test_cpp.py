"""C++ kernels for the CPU: what is read of a source, what is checked, and what runs."""

from __future__ import annotations

import gc
import importlib.util
import shutil
import sys
import threading
import weakref
from typing import Any

import pytest
import torch

import tzero
from tzero import events, settings
from tzero.backends import c_source, cpp
from tzero.compile.backend import find
from tzero.compile.service import service

SCALE = """
// void not_this(float *x, tzero::Program program) {}
#include <cmath>
#include "factor.h"
namespace inner { void nor_this(float *x, tzero::Program program) {} }
static float twice(float value) { return FACTOR * value; }
void scale(const float *x, float *__restrict__ out, int64_t n, float by, tzero::Program program) {
    for (int64_t i = program.id[0]; i < n; i += program.grid[0]) out[i] = by * twice(x[i]);
}
"""
HEADERS = {"factor.h": "#define FACTOR 2\n"}


@pytest.fixture(scope="module")
def scale() -> cpp.CppKernel:
    return cpp.kernel(SCALE, headers=HEADERS)


# -- what is read ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("declared", "type_"),
    [
        ("float x", "fp32"),
        ("const double x", "fp64"),
        ("int x", "i32"),
        ("unsigned x", "u32"),
        ("long x", "i64"),
        ("unsigned long long int x", "u64"),
        ("long unsigned x", "u64"),
        ("short int x", "i16"),
        ("unsigned char x", "u8"),
        ("std::int64_t x", "i64"),
        ("size_t x", "u64"),
        ("bool x", "i1"),
        ("const float* x", "*fp32"),
        ("float * const __restrict__ x", "*fp32"),
        ("const int64_t x[]", "*i64"),
        ("void *x", "*void"),
        ("const std::complex<float> *x", "*c64"),
        ("__nv_bfloat16 *x", "*bf16"),
        ("const std::string &x", "str"),
        ("std::string_view x", "str"),
        ("std::string &x", ""),
        ("float **x", ""),
        ("float &x", ""),
        ("Shape x", ""),
        ("std::vector<int> x", ""),
    ],
)
def test_a_declaration_is_read_as_c_means_it(declared: str, type_: str) -> None:
    (function,) = c_source.functions(f"void f({declared}, int last) {{}}")
    first = function.parameters[0]
    assert (first.name, first.type) == ("x", type_)


def test_comments_strings_and_bodies_are_not_taken_for_functions() -> None:
    text = """
    /* void a() {} */ // void b() {}
    const char *text = "void c() { ";  int table[] = {1, 2};
    struct S { void d() {} };
    template <typename T> void e(T x) {}
    #define F(x) void f() {}
    extern "C" { void g(int x) { if (x) { for (;;) {} } } }
    char brace = '{'; const char *raw = R"(void h() {)";
    __attribute__((noinline)) void i() noexcept { }
    """
    assert [each.name for each in c_source.functions(text)] == ["g", "i"]


def test_a_source_with_several_kernels_needs_a_name() -> None:
    two = "void a(tzero::Program p) {} void b(int n, tzero::Program p) {}"
    with pytest.raises(tzero.InvalidKernel, match=r"several kernels \(a, b\).*entry="):
        cpp.kernel(two)
    assert [each.name for each in cpp.kernel(two, entry="b").params] == ["n"]
    with pytest.raises(tzero.InvalidKernel, match="no definition of a kernel called 'c'"):
        cpp.kernel(two, entry="c")


def test_a_source_without_a_kernel_says_how_one_is_written() -> None:
    with pytest.raises(tzero.InvalidKernel, match="tzero::Program program"):
        cpp.kernel("void add(float *x) {}")


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("int f(tzero::Program p) {}", "returns void"),
        ("void f(Shape s, tzero::Program p) {}", "parameter 's' is declared as 'Shape'"),
        ("void f(float &x, tzero::Program p) {}", "parameter 'x'"),
        ("void f(float *, tzero::Program p) {}", "parameter '#0'"),
    ],
)
def test_a_kernel_that_cannot_be_launched_is_refused_when_it_is_made(
    source: str, words: str
) -> None:
    with pytest.raises(tzero.InvalidKernel, match=words):
        cpp.kernel(source)


# -- what runs ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "grid", [(4,), 4, (2, 3), (2, 2, 2), [5], lambda given: (given["n"] // 4,)]
)
def test_a_kernel_runs_over_its_grid(scale: cpp.CppKernel, grid: Any) -> None:
    x, out = torch.arange(100.0), torch.zeros(100)
    scale[grid](x, out, 100, 1.5)
    assert torch.equal(out, 3 * x)


def test_each_program_is_told_its_place() -> None:
    places = cpp.kernel("""
    void places(int32_t *out, tzero::Program p) {
        int64_t at = p.id[0] + p.grid[0] * (p.id[1] + int64_t(p.grid[1]) * p.id[2]);
        for (int k = 0; k < 3; k++) out[3 * at + k] = p.id[k];
    }
    """)
    out = torch.full((4, 3, 2, 3), -1, dtype=torch.int32)
    places[(2, 3, 4)](out)
    expected = torch.stack(
        torch.meshgrid(torch.arange(4), torch.arange(3), torch.arange(2), indexing="ij"), -1
    ).flip(-1)
    assert torch.equal(out, expected.int())


def test_an_empty_grid_runs_nothing(scale: cpp.CppKernel) -> None:
    out = torch.zeros(3)
    scale[(0, 4)](torch.ones(3), out, 3, 1.0)
    assert out.sum() == 0


def test_every_type_of_number_arrives_as_it_is() -> None:
    types = ["bool", "int8_t", "uint8_t", "int16_t", "uint16_t", "int32_t", "uint32_t"]
    types += ["int64_t", "uint64_t", "float", "double"]
    parameters = ", ".join(f"{each} a{k}" for k, each in enumerate(types))
    body = " ".join(f"out[{k}] = a{k};" for k in range(len(types)))
    take = cpp.kernel(f"void take(double *out, {parameters}, tzero::Program p) {{ {body} }}")
    out = torch.zeros(len(types), dtype=torch.float64)
    values = [True, -128, 255, -32768, 65535, -(2**31), 2**32 - 1, -(2**52), 2**53, 0.5, 1e300]
    take[(1,)](out, *values)
    assert out.tolist() == [float(each) for each in values]


def test_arguments_may_be_given_by_name(scale: cpp.CppKernel) -> None:
    x, out = torch.ones(8), torch.zeros(8)
    scale[(2,)](x, by=2.0, n=8, out=out)
    assert out.tolist() == [4.0] * 8


def test_a_pointer_to_void_takes_any_tensor_and_none_is_null() -> None:
    look = cpp.kernel(
        "void look(const void *x, bool *out, tzero::Program p) { *out = x == nullptr; }"
    )
    out = torch.zeros(1, dtype=torch.bool)
    look[(1,)](None, out)
    assert out.item()
    for dtype in (torch.float16, torch.int64, torch.complex64):
        look[(1,)](torch.zeros(2, dtype=dtype), out)
        assert not out.item()


def test_what_is_launched_is_returned_and_told(scale: cpp.CppKernel) -> None:
    seen: list[events.Event] = []
    with events.observe(seen.append):
        loaded = scale[(3,)](torch.ones(2), torch.zeros(2), 2, 1.0)
    assert loaded.name == "scale"
    launches = [event for event in seen if event.kind == "launch"]
    assert [(each.kernel, each.facts["grid"]) for each in launches] == [("scale", (3, 1, 1))]


def test_an_exception_in_a_program_is_an_error_and_the_next_launch_works() -> None:
    picky = cpp.kernel("""
    #include <stdexcept>
    void picky(int n, tzero::Program p) {
        if (p.id[0] == n) throw std::runtime_error("not this one");
        if (n == -1) throw 7;
    }
    """)
    with pytest.raises(RuntimeError, match=r"picky: program \(5, 0, 0\) threw: not this one"):
        picky[(64,)](5)
    with pytest.raises(RuntimeError, match="no std::exception"):
        picky[(2,)](-1)
    picky[(4,)](5)


def test_threads_may_launch_at_once(scale: cpp.CppKernel) -> None:
    fresh, wrong = cpp.kernel(SCALE, headers=HEADERS), []
    start = threading.Barrier(8)

    def launch(k: int) -> None:
        x, out = torch.full((1000,), float(k)), torch.zeros(1000)
        start.wait()
        for _ in range(20):
            fresh[(8,)](x, out, 1000, 1.0)
        if not torch.equal(out, 2 * x):
            wrong.append(k)

    threads = [threading.Thread(target=launch, args=(k,)) for k in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert wrong == []


def test_a_kernel_that_is_gone_is_unloaded() -> None:
    k = cpp.kernel("void gone(int n, tzero::Program p) {}")
    seen = weakref.ref(k[(1,)](1))
    del k
    gc.collect()
    assert seen() is None


# -- what is refused ------------------------------------------------------------------------------

X = torch.ones(4)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ((X.double(), X, 4, 1.0), "'x' is a tensor of torch.float64.*'const float \\*'"),
        (([1.0], X, 4, 1.0), "'x' is of type list"),
        ((X.to("meta"), X, 4, 1.0), "'x' is on meta, and this kernel runs on the CPU"),
        ((X, X, 4.0, 1.0), "'n' is of type float.*Pass an int"),
        ((X, X, 1 << 63, 1.0), "'n' is 9223372036854775808, which a 'int64_t' does not hold"),
        ((X, X, 4, "1"), "'by' is of type str"),
        ((X, X, 4), "given 3 arguments, without by.*takes 4: x, out, n, by"),
        ((X, X, 4, 1.0, 5), "given 5 arguments"),
    ],
)
def test_a_wrong_argument_is_named(scale: cpp.CppKernel, args: Any, words: str) -> None:
    with pytest.raises(tzero.InvalidArgument, match=f"scale: .*{words}"):
        scale[(1,)](*args)


def test_unknown_options_and_doubled_arguments_are_named(scale: cpp.CppKernel) -> None:
    with pytest.raises(tzero.InvalidArgument, match="no parameter or option 'num_warps'"):
        scale[(1,)](X, X, 4, 1.0, num_warps=4)
    with pytest.raises(tzero.InvalidArgument, match="'n' is given twice"):
        scale[(1,)](X, X, 4, 1.0, n=4)


@pytest.mark.parametrize("grid", [(), (1, 2, 3, 4), (-1,), (1.5,), "a", (1 << 31,), None])
def test_a_wrong_grid_is_shown(scale: cpp.CppKernel, grid: Any) -> None:
    with pytest.raises(tzero.InvalidArgument, match="scale: the grid is"):
        scale[grid](X, X, 4, 1.0)


# -- compiling ------------------------------------------------------------------------------------


def test_the_compilers_words_name_the_kernel_and_its_own_lines() -> None:
    wrong = cpp.kernel("\n\nvoid wrong(int n, tzero::Program p) { return undefined_name; }")
    with pytest.raises(tzero.CompileFailed) as caught:
        wrong[(1,)](1)
    assert caught.value.kernel == "wrong"
    assert "wrong.cpp:3" in caught.value.problem and "undefined_name" in caught.value.problem
    assert "-std=gnu++17" in caught.value.trace


def test_a_failed_compile_is_tried_again() -> None:
    wrong = cpp.kernel("void wrong(int n, tzero::Program p) { return undefined_name; }")
    for _ in range(2):
        with pytest.raises(tzero.CompileFailed):
            wrong[(1,)](1)


def test_a_missing_compiler_says_what_to_install() -> None:
    k = cpp.kernel("void f(int n, tzero::Program p) {}")
    with (
        settings.override(cc=("no-such-compiler",)),
        pytest.raises(tzero.ToolchainMissing, match=r"cpp backend.*no-such-compiler.*g\+\+"),
    ):
        k[(1,)](1)


def test_a_kernel_is_compiled_once_for_equal_sources() -> None:
    text = "void once(int n, tzero::Program p) { n = 12345; }"
    before = service().stats()
    cpp.kernel(text).precompile().result()
    cpp.kernel(text)[(1,)](1)
    after = service().stats()
    assert sum(after.compiled.values()) - sum(before.compiled.values()) == 1


def test_flags_headers_and_text_are_part_of_what_is_asked_for() -> None:
    text = "void f(int n, tzero::Program p) {}"
    asked = [
        cpp.kernel(text),
        cpp.kernel(text + " "),
        cpp.kernel(text, flags=["-O1"]),
        cpp.kernel(text, headers={"a.h": ""}),
    ]
    assert len({each.request().digest for each in asked}) == 4
    assert cpp.kernel(text).request().digest == asked[0].request().digest


def test_flags_reach_the_compiler() -> None:
    k = cpp.kernel("void f(int *out, tzero::Program p) { *out = VALUE; }", flags=["-DVALUE=42"])
    out = torch.zeros(1, dtype=torch.int32)
    k[(1,)](out)
    assert out.item() == 42


def test_a_header_does_not_take_the_place_of_the_kernel() -> None:
    with pytest.raises(tzero.InvalidKernel, match=r"a header is called 'f\.cpp'"):
        cpp.kernel("void f(tzero::Program p) {}", headers={"f.cpp": ""})


@pytest.mark.parametrize("name", ["../a.h", "/etc/a.h", "a b.h", ""])
def test_a_header_stays_in_the_compilers_directory(name: str) -> None:
    with pytest.raises(tzero.InvalidKernel, match="no name for a header"):
        cpp.kernel("void f(tzero::Program p) {}", headers={name: ""})


@pytest.mark.skipif(shutil.which("clang") is None, reason="clang is not installed")
def test_clang_compiles_as_gcc_does() -> None:
    x, out = torch.arange(50.0), torch.zeros(50)
    with settings.override(cc=("clang",)):
        cpp.kernel(SCALE, headers=HEADERS)[(4,)](x, out, 50, 0.5)
    assert torch.equal(out, x)


@pytest.mark.soak  # it builds its C++ library first, which takes a minute
@pytest.mark.skipif(
    importlib.util.find_spec("ziglang") is None,
    reason="the ziglang wheel is not installed (pip install 'tzero-runtime[zig]')",
)
def test_zig_compiles_cpp_with_its_own_library() -> None:
    text = """
    #include <stdexcept>
    #include <string>
    void f(int n, tzero::Program p) { if (n < 0) throw std::runtime_error(std::to_string(n)); }
    """
    with settings.override(cc=(sys.executable, "-m", "ziglang", "cc")):
        k = cpp.kernel(text)
        k[(2,)](1)
        with pytest.raises(RuntimeError, match="threw: -5"):
            k[(2,)](-5)


def test_the_backend_is_found_by_its_name() -> None:
    assert find("cpp") is cpp.backend
    artifact = cpp.backend.compile(cpp.kernel(SCALE, headers=HEADERS).request())
    assert artifact.files["kernel.so"].startswith(b"\x7fELF")
