"""C++ functions called with Python's values."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch

import tzero
from tzero.backends import cpp_pybinding
from tzero.compile.backend import find

GREET = """
#include <stdexcept>
static std::string part(const std::string &who) { return "hello " + who; }
std::string greet(const std::string &who, int times, bool loud) {
    if (times < 0) throw std::invalid_argument("times is " + std::to_string(times));
    std::string made;
    for (int k = 0; k < times; k++) made += part(who) + (loud ? "!" : ".");
    return made;
}
"""


@pytest.fixture(scope="module")
def greet() -> cpp_pybinding.CppFunction:
    return cpp_pybinding.function(GREET)


def test_strings_numbers_and_bools_go_in_and_a_string_comes_out(greet: Any) -> None:
    assert greet("you", 2, True) == "hello you!hello you!"
    assert greet("you", 0, True) == ""


@pytest.mark.parametrize("text", ["", "wörld ✓", "a\0b", "\udc80"])
def test_any_text_survives(greet: Any, text: str) -> None:
    assert greet(text, 1, False) == f"hello {text}."


@pytest.mark.parametrize(
    ("type_", "values"),
    [
        ("bool", [True, False]),
        ("int8_t", [-128, 127]),
        ("uint8_t", [0, 255]),
        ("int16_t", [-32768]),
        ("uint32_t", [2**32 - 1]),
        ("int64_t", [-(2**63), 2**63 - 1]),
        ("uint64_t", [2**64 - 1]),
        ("float", [0.5]),
        ("double", [1e300, float("inf")]),
    ],
)
def test_a_number_comes_back_as_it_went(type_: str, values: list[Any]) -> None:
    same = cpp_pybinding.function(f"{type_} same({type_} value) {{ return value; }}")
    for value in values:
        found = same(value)
        assert found == value and type(found) is type(value)


def test_a_function_of_nothing_returns_none_where_it_returns_void() -> None:
    assert cpp_pybinding.function("void nothing() {}")() is None


def test_tensors_are_passed_by_their_memory_and_none_is_null() -> None:
    total = cpp_pybinding.function("""
    double total(const float *x, int64_t n, double *kept) {
        double sum = 0;
        for (int64_t i = 0; i < n; i++) sum += x[i];
        if (kept != nullptr) *kept = sum;
        return sum;
    }
    """)
    kept = torch.zeros(1, dtype=torch.float64)
    assert total(torch.ones(5), 5, kept) == 5.0
    assert kept.item() == 5.0
    assert total(None, 0, None) == 0.0


def test_an_exception_is_raised_and_the_next_call_works(greet: Any) -> None:
    with pytest.raises(RuntimeError, match="greet threw: times is -1"):
        greet("you", -1, True)
    assert greet("you", 1, True) == "hello you!"


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ((3, 1, True), "'who' is of type int.*Pass a str"),
        (("you", 1.5, True), "'times' is of type float"),
        (("you", 1 << 31, True), "'times' is 2147483648, which a 'int' does not hold"),
        (("you", 1, 1), "'loud' is of type int.*True or False"),
        (("you", 1), "given 2 arguments. It takes 3: who, times, loud"),
    ],
)
def test_a_wrong_argument_is_named(greet: Any, args: Any, words: str) -> None:
    with pytest.raises(tzero.InvalidArgument, match=words):
        greet(*args)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("std::vector<int> f() {}", "its result"),
        ("int f(Shape x) {}", "parameter 'x' is declared as 'Shape'"),
        ("int f(std::string &x) {}", "parameter 'x'"),
        ("int f() {} int g() {}", "several"),
        ("static int f() {}", "no definition"),
    ],
)
def test_what_cannot_be_called_is_refused_when_it_is_made(source: str, words: str) -> None:
    with pytest.raises(tzero.InvalidKernel, match=words):
        cpp_pybinding.function(source)


WAITING = """
#include <atomic>
static std::atomic<int> inside{0};
// Whether two calls are ever inside at once; each waits long enough for another to come.
bool meet(int64_t spins) {
    inside++;
    bool met = false;
    for (int64_t k = 0; k < spins && !met; k++) met = inside > 1;
    if (met) for (int64_t k = 0; k < spins / 100; k++) (void)inside.load();
    inside--;
    return met;
}
"""


def met(release_gil: bool, spins: int) -> bool:
    meet = cpp_pybinding.function(WAITING, release_gil=release_gil)
    meet(1)
    found: list[bool] = []
    start = threading.Barrier(2)

    def call() -> None:
        start.wait()
        found.append(meet(spins))

    threads = [threading.Thread(target=call) for _ in range(2)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    return any(found)


def test_the_gil_is_released_where_that_is_asked_for_and_only_there() -> None:
    assert met(release_gil=True, spins=1 << 32)  # ends as soon as they have met
    assert not met(release_gil=False, spins=1 << 20)


def test_the_compilers_words_name_the_function() -> None:
    with pytest.raises(tzero.CompileFailed, match=r"wrong: .*wrong.cpp:1.*undefined_name"):
        cpp_pybinding.function("int wrong() { return undefined_name; }")()


def test_the_backend_is_found_by_its_name() -> None:
    assert find("cpp_pybinding") is cpp_pybinding.backend
    artifact = cpp_pybinding.function(GREET).precompile().result()
    assert artifact.files["function.so"].startswith(b"\x7fELF")
