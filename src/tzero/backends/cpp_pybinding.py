"""C++ functions called with Python values.

    f("text", 3, x) ── checked, packed ──► tz_call(arguments, result) ── C++ ──► value, or an error

Enters: C++ text with one function to call. Leaves: a Python function that takes numbers, bools,
strings and tensors, and returns a number, a string or nothing. It must not know grids or threads.

ctypes calls the generated C++, so compiling needs no headers of Python, and one shared object works
with every Python version.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from tzero import locks
from tzero.backends import c_source, cpp, source_kernel
from tzero.compile.request import Artifact, Request
from tzero.errors import InvalidArgument, InvalidKernel

__all__ = ["CppFunction", "CppPybinding", "backend", "function"]

_RULE = (
    "A function takes numbers (bool, int, int64_t, float, double, ...), strings (const std::string "
    "&, std::string_view) and pointers to numbers, for tensors; it returns a number, a std::string "
    "or void."
)

# A type -> its layout in a struct.
_CODES = {
    "i1": "?",
    "i8": "b",
    "u8": "B",
    "i16": "h",
    "u16": "H",
    "i32": "i",
    "u32": "I",
    "i64": "q",
    "u64": "Q",
    "fp32": "f",
    "fp64": "d",
}

_PRELUDE = """\
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <string>
#include <string_view>

namespace {
struct tz_text {
    const char *data;
    size_t size;
};
}
"""

_SHIM = """
namespace {{
struct tz_arguments {{
{members}
    char end;
}};

char tz_no_memory[] = "no memory";

char *tz_said(const char *text) {{
    char *copy = strdup(text);
    return copy != nullptr ? copy : tz_no_memory;
}}
}}

// Calls the function. Returns null and writes the result, or returns the message of an exception,
// which the caller frees with tz_free.
extern "C" __attribute__((visibility("default"))) char *
tz_call(const void *arguments, void *result)
{{
    const tz_arguments &a = *static_cast<const tz_arguments *>(arguments);
    (void)a;
    (void)result;
    try {{
        {call}
        return nullptr;
    }} catch (const std::exception &error) {{
        return tz_said(error.what());
    }} catch (...) {{
        return tz_said("an exception that is no std::exception");
    }}
}}

extern "C" __attribute__((visibility("default"))) void tz_free(void *text)
{{
    if (text != tz_no_memory) free(text);
}}
"""

_TEXT_RESULT = """const std::string made = {called};
        char *copy = static_cast<char *>(malloc(made.size() + 1));
        if (copy == nullptr) return tz_no_memory;
        memcpy(copy, made.data(), made.size());
        *static_cast<tz_text *>(result) = {{copy, made.size()}};"""


def function(
    source: str,
    *,
    entry: str | None = None,
    headers: Mapping[str, str] | None = None,
    flags: Sequence[str] = (),
    release_gil: bool = False,
) -> CppFunction:
    """A C++ function as a Python function.

    `source` defines it at the top level; `entry` names it if there are several. `release_gil` lets
    other Python threads run during a call: the function must then not use Python objects, and no
    other thread may change the tensors that it was given.

    >>> count = function('''
    ... int64_t count(const std::string &text, const std::string &letter) {
    ...     int64_t found = 0;
    ...     for (char each : text) found += each == letter[0];
    ...     return found;
    ... }
    ... ''')
    >>> count
    <C++ function count(text, letter)>
    """
    what = "the function as `result name(...) { ... }`"
    chosen = c_source.choose(source, entry, _is_function, what)
    return CppFunction(chosen, c_source.Program(source, headers or {}, tuple(flags)), release_gil)


def _is_function(function: c_source.Function) -> bool:
    return not {"static", "inline"} & set(function.head.split())


class CppFunction:
    """A C++ function, called with Python values; `function` makes it. The first call or
    `precompile` compiles it.

    ::

        count("hello", "l")
    """

    def __init__(
        self, declared: c_source.Function, program: c_source.Program, release_gil: bool
    ) -> None:
        self.__name__ = declared.name
        self._parameters = declared.parameters
        self._result = c_source.result_of(declared)
        self._check()
        own = f"{declared.name}.cpp"
        text = _text(declared, self._result, own)
        headers = c_source.beside(program.headers, own, program.text)
        self._program = c_source.Program(text, headers, program.flags)
        self._release_gil = release_gil
        self._checks = [
            _text_check(declared.name, each)
            if each.type == "str"
            else source_kernel.check(declared.name, each, "cpu")
            for each in declared.parameters
        ]
        codes = ["PN" if p.type == "str" else _code(p.type) for p in declared.parameters]
        self._pack = struct.Struct("@" + "".join(codes) + "b").pack
        self._library: Any = None
        self._loading = locks.lock()  # protects `_library` while it is loaded

    def _check(self) -> None:
        for each in self._parameters:
            kind = each.type.removeprefix("*")
            known = each.type[:1] == "*" or kind in _CODES or kind == "str"
            if not known or each.name.startswith("#"):
                problem = f"its parameter {each.name!r} is declared as {each.spelled!r}"
                raise InvalidKernel(kernel=self.__name__, problem=problem, advice=_RULE)
        if self._result not in (*_CODES, "str", "void"):
            raise InvalidKernel(
                kernel=self.__name__, problem="its result is no value of Python's", advice=_RULE
            )

    def request(self) -> Request:
        """The request that compiles it."""
        return cpp.request_for(backend.name, self.__name__, self._program)

    def precompile(self) -> Any:
        """Start compiling in the background; returns a future."""
        from tzero.compile.service import service

        return service().submit(self.request())

    def __call__(self, *args: Any) -> Any:
        """Call it with positional arguments."""
        if len(args) != len(self._checks):
            names = ", ".join(each.name for each in self._parameters)
            raise InvalidArgument(
                kernel=self.__name__,
                problem=f"it is given {len(args)} arguments",
                advice=f"It takes {len(self._checks)}: {names or 'none'}.",
            )
        values: list[Any] = []
        kept: list[Any] = []  # buffers that must live until the function has returned
        for check, arg in zip(self._checks, args, strict=True):
            value = check(arg)
            if isinstance(value, bytes):
                buffer = ctypes.c_char_p(value)
                kept.append(buffer)
                values += (ctypes.cast(buffer, ctypes.c_void_p).value, len(value))
            elif value is None:
                values.append(0)
            else:
                values.append(value.data_ptr() if hasattr(value, "data_ptr") else value)
        return self._run(self._pack(*values, 0))

    def _run(self, packed: bytes) -> Any:
        library = self._library or self._load()
        result = _Text() if self._result == "str" else ctypes.create_string_buffer(16)
        said = library.tz_call(packed, ctypes.byref(result))
        if said:
            words = ctypes.string_at(said).decode(errors="replace")
            library.tz_free(ctypes.c_void_p(said))
            raise RuntimeError(f"{self.__name__} threw: {words}")
        if isinstance(result, _Text):
            text = ctypes.string_at(result.data, result.size).decode(errors="surrogateescape")
            library.tz_free(ctypes.c_void_p(result.data))
            return text
        if self._result == "void":
            return None
        return struct.unpack_from(f"@{_CODES[self._result]}", result.raw)[0]

    def _load(self) -> Any:
        from tzero.compile.service import service
        from tzero.cpu import loading

        artifact = service().compile(self.request())
        with self._loading:
            if self._library is None:
                library = loading.open_object(artifact.files["function.so"], self.__name__)
                kind = ctypes.CDLL if self._release_gil else ctypes.PyDLL
                loaded: Any = kind(library._name, handle=library._handle)
                loaded.tz_call.restype = ctypes.c_void_p
                loaded.tz_free.restype = None
                self._library = loaded
        return self._library

    def __repr__(self) -> str:
        names = ", ".join(each.name for each in self._parameters)
        return f"<C++ function {self.__name__}({names})>"


class _Text(ctypes.Structure):
    """``tz_text`` of the generated code."""

    _fields_ = (("data", ctypes.c_void_p), ("size", ctypes.c_size_t))


def _code(kind: str) -> str:
    return "P" if kind[0] == "*" else _CODES[kind]


def _text_check(name: str, parameter: c_source.Parameter) -> Callable[[Any], bytes]:
    def check(value: Any) -> bytes:
        if type(value) is bytes:
            return value
        if not isinstance(value, str):
            raise InvalidArgument(
                kernel=name,
                argument=parameter.name,
                problem=f"is of type {type(value).__name__}, and the parameter is declared as "
                f"{parameter.spelled!r}",
                advice="Pass a str, which arrives as UTF-8, or bytes, which arrive as they are.",
            )
        return value.encode("utf-8", "surrogateescape")

    return check


def _text(function: c_source.Function, result: str, source: str) -> str:
    """The text that is compiled, which includes the function's own."""
    members, given = [], []
    for k, each in enumerate(function.parameters):
        if each.type == "str":
            members.append(f"    tz_text p{k};")
            view = "std::string_view" if "string_view" in each.spelled else "std::string"
            given.append(f"{view}(a.p{k}.data, a.p{k}.size)")
        else:
            members.append(f"    {each.spelled} p{k};")
            given.append(f"a.p{k}")
    called = f"::{function.name}({', '.join(given)})"
    if result == "void":
        call = f"{called};"
    elif result == "str":
        call = _TEXT_RESULT.format(called=called)
    else:
        call = f"const auto made = {called};\n        memcpy(result, &made, sizeof made);"
    shim = _SHIM.format(members="\n".join(members), call=call)
    return f'{_PRELUDE}\n#include "{source}"\n{shim}'


class CppPybinding:
    """The backend ``cpp_pybinding``: a shared object with ``tz_call`` and ``tz_free``.

    ::

        backend.compile(count.request()).files["function.so"]
    """

    name = "cpp_pybinding"
    runs: Literal["process", "thread"] = "thread"

    def compile(self, request: Request) -> Artifact:
        """Run the compiler."""
        return Artifact({"function.so": cpp.shared_object(request)})

    def source(self, request: Request) -> str:
        """The texts of the program."""
        return c_source.source_of(request)

    def for_this_machine(self, request: Request) -> Request:
        """The request with the compiler of this machine, if it is the same."""
        return cpp.for_this_machine(request)


backend = CppPybinding()
