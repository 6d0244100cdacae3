"""Shared by the backends for C-like languages, on the compiler's side.

    text ── declarations ──► which function is the kernel, and what it takes
    text, headers, flags ── written ──► Request.program ── build ──► a compiler's output

Enters: source text. Leaves: `Function`, the signature of each function that the text defines at the
top level; a `Program` as one text; and the bytes that a compiler process made from it. It must not
know which compiler that is, or how a kernel is launched. It imports neither torch nor triton.

This is not a C++ parser. It finds plain functions outside namespaces and templates, which is enough
for kernels.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from tzero import scratch, settings
from tzero.cache import digest
from tzero.compile import command
from tzero.compile.backend import OtherTools
from tzero.compile.request import Request
from tzero.errors import CompileFailed, InvalidKernel

__all__ = [
    "DTYPES",
    "Function",
    "Parameter",
    "Port",
    "Program",
    "beside",
    "build",
    "check_tools",
    "choose",
    "environment_of",
    "functions",
    "gist",
    "result_of",
    "run",
    "source_of",
    "toolchain_of",
]

_NAMED = {
    "bool": "i1",
    "int8_t": "i8",
    "uint8_t": "u8",
    "int16_t": "i16",
    "uint16_t": "u16",
    "int32_t": "i32",
    "uint32_t": "u32",
    "int64_t": "i64",
    "uint64_t": "u64",
    "size_t": "u64",
    "uintptr_t": "u64",
    "ptrdiff_t": "i64",
    "ssize_t": "i64",
    "intptr_t": "i64",
    "_Float16": "fp16",
    "__half": "fp16",
    "half": "fp16",
    "__bf16": "bf16",
    "__nv_bfloat16": "bf16",
    "nv_bfloat16": "bf16",
    "hip_bfloat16": "bf16",
    "__hip_bfloat16": "bf16",
    "float": "fp32",
    "double": "fp64",
    "complex<float>": "c64",
    "complex<double>": "c128",
    "void": "void",
    "string": "str",
    "string_view": "str",
}
_INTEGER_WORDS = {"signed", "unsigned", "char", "short", "int", "long"}
_QUALIFIERS = {"const", "volatile", "restrict", "__restrict", "__restrict__", "struct", "register"}

DTYPES = {
    "i1": "bool",
    "i8": "int8",
    "u8": "uint8",
    "i16": "int16",
    "u16": "uint16",
    "i32": "int32",
    "u32": "uint32",
    "i64": "int64",
    "u64": "uint64",
    "fp16": "float16",
    "bf16": "bfloat16",
    "fp32": "float32",
    "fp64": "float64",
    "c64": "complex64",
    "c128": "complex128",
}
"""Type -> the torch dtype of a tensor that a pointer to it accepts. ``void`` is missing: such a
pointer accepts any dtype."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter: its name, its type as Triton names it, and the declaration as written.

    >>> Parameter("x", "*fp32", "const float *")
    Parameter(name='x', type='*fp32', spelled='const float *')
    """

    name: str
    type: str
    """``i64``, ``fp32``, ``*fp32``, ``*void``, ``str``; empty for any other type."""

    spelled: str


@dataclass(frozen=True, slots=True)
class Function:
    """A function that a source text defines. `head` is everything before its name.

    >>> (add,) = functions("int add(int a, int b) { return a + b; }")
    >>> add.name, [parameter.type for parameter in add.parameters]
    ('add', ['i32', 'i32'])
    """

    name: str
    head: str
    parameters: tuple[Parameter, ...]


_TOKENS = re.compile(
    r"""(?P<comment>//[^\n]*|/\*.*?\*/)
      |(?P<directive>^[ \t]*\#(?:[^\n\\]|\\.)*$)
      |(?P<raw>R"(?P<mark>[^()\\\s]{0,16})\(.*?\)(?P=mark)")
      |(?P<string>"(?:[^"\\\n]|\\.)*")
      |(?P<letter>(?<!\w)'(?:[^'\\\n]|\\.)+')""",
    re.DOTALL | re.MULTILINE | re.VERBOSE,
)
_ATTRIBUTES = re.compile(
    r"__launch_bounds__\s*\([^()]*\)|__attribute__\s*\(\((?:[^()]|\([^()]*\))*\)\)"
    r"|alignas\s*\([^()]*\)|\[\[[^\]]*\]\]"
)
_DEFINITION = re.compile(r"([^;{}()]*?)\b(\w+)\s*\(([^()]*)\)\s*(?:noexcept\s*)?$", re.DOTALL)


def functions(source: str) -> list[Function]:
    """The functions that a text defines at the top level, in order.

    >>> [each.name for each in functions("// f() {}\\nstatic int f() {} void g(float *x) { f(); }")]
    ['f', 'g']
    """
    text = _ATTRIBUTES.sub(" ", _TOKENS.sub(_blank, source))
    found = []
    for opening in _top_level(text):
        match = _DEFINITION.search(opening)
        if match is None or "template" in match[1] or "=" in match[1]:
            continue
        head = " ".join(match[1].split())
        if head:
            found.append(Function(match[2], head, tuple(_parameters(match[3]))))
    return found


def choose(
    source: str,
    entry: str | None,
    is_kernel: Callable[[Function], bool],
    what: str,
) -> Function:
    """The kernel in a text: the function named `entry`, or the only candidate. `what` tells how a
    kernel is written, for errors.

    >>> choose("int f() {}", None, lambda function: True, "a function").name
    'f'
    """
    candidates = [each for each in functions(source) if is_kernel(each)]
    chosen = [each for each in candidates if entry in (None, each.name)]
    if len(chosen) == 1:
        return chosen[0]
    names = ", ".join(each.name for each in candidates) or "none"
    if not chosen:
        wanted = "a kernel" if entry is None else f"a kernel called {entry!r}"
        problem = f"the source has no definition of {wanted} (found: {names})"
    else:
        problem = f"the source defines several kernels ({names})"
    raise InvalidKernel(
        kernel=entry or "a kernel", problem=problem, advice=f"Write {what}, or name it with entry=."
    )


def _blank(match: re.Match[str]) -> str:
    """Replace comments, directives and strings, which could look like code; line numbers stay."""
    if match["string"] == '"C"':
        return '"C"'
    lines = "\n" * match[0].count("\n")
    return '""' + lines if match["string"] or match["raw"] else " " + lines


def _top_level(text: str) -> Iterator[str]:
    """The statement before each brace that opens at the top level."""
    depth, start = 0, 0
    for match in re.finditer(r"[{};]", text):
        if match[0] == "{":
            if depth == 0:
                opening = text[start : match.start()]
                if opening.split() == ["extern", '"C"']:  # a block: its content is still top level
                    start = match.end()
                    continue
                yield opening
            depth += 1
            continue
        if match[0] == "}":
            depth = max(depth - 1, 0)
        if depth == 0:
            start = match.end()


def _parameters(text: str) -> Iterator[Parameter]:
    parts = _split(text)
    if parts == ["void"]:
        return
    for place, part in enumerate(parts):
        yield _parameter(part.partition("=")[0].strip(), place)


def _split(text: str) -> list[str]:
    """Split at the commas outside angle brackets."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter == "<") - (letter == ">")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts if part.strip()]


def _parameter(text: str, place: int) -> Parameter:
    array = re.search(r"\[[^\]]*\]\s*$", text)
    stars = text.count("*") + (array is not None)
    plain = text[: array.start()] if array else text
    tokens = re.findall(r"[\w:]+(?:\s*<[^<>]*>)?", plain)
    words = [word for word in tokens if word not in _QUALIFIERS]
    kind, used = _kind(words)
    name = words[used] if len(words) == used + 1 else f"#{place}"
    if name[0] != "#" and plain.rstrip().endswith(name):
        plain = plain.rstrip()[: -len(name)]
    spelled = " ".join(plain.split()) + ("*" if array else "")
    by_reference = "&" in text and not (kind == "str" and "const" in tokens and "&&" not in text)
    if not kind or stars > 1 or by_reference or (kind == "void" and not stars):
        return Parameter(name, "", spelled)
    if kind == "str":
        return Parameter(name, "" if stars else "str", spelled)
    return Parameter(name, f"*{kind}" if stars else kind, spelled)


def _kind(words: Sequence[str]) -> tuple[str, int]:
    """The type at the start of a declaration, and how many words it takes."""
    count = next((k for k, word in enumerate(words) if word not in _INTEGER_WORDS), len(words))
    if count:
        return _integer(words[:count]), count
    if not words:
        return "", 0
    return _NAMED.get(re.sub(r"\s", "", words[0]).removeprefix("std::"), ""), 1


def _integer(words: Sequence[str]) -> str:
    sign = "u" if "unsigned" in words else "i"
    if "char" in words:
        return f"{sign}8"
    if "short" in words:
        return f"{sign}16"
    return f"{sign}{64 if 'long' in words else 32}"


def result_of(function: Function) -> str:
    """The return type, in the form of `Parameter.type`; ``void`` for none.

    >>> result_of(functions('extern "C" static inline std::string f() {}')[0])
    'str'
    """
    dropped = {"extern", "static", "inline", "constexpr", "noexcept"}
    words = [word for word in function.head.replace('"C"', "").split() if word not in dropped]
    text = " ".join(words)
    return "void" if text == "void" else _parameter(text, 0).type


# -- parameters of Halide and CuTe functions -------------------------------------------------------

_NUMBERS = {name for name in DTYPES.values() if not name.startswith(("complex", "bfloat"))} - {
    "float16"
}


class Port(NamedTuple):
    """A parameter or a result: its name, its dtype, and its rank; None for a number.

    >>> Port.read("x", "float32[2]")
    Port(name='x', dtype='float32', rank=2)
    """

    name: str
    dtype: str
    rank: int | None

    @staticmethod
    def read(name: str, text: str) -> Port:
        """Parse ``float32[2]`` (a tensor) or ``float32`` (a number)."""
        match = re.fullmatch(r"(\w+)(?:\[(\d+)\])?", text.strip())
        if match is None or match[1] not in (DTYPES.values() if match[2] else _NUMBERS):
            raise ValueError(text)
        return Port(name, match[1], int(match[2]) if match[2] else None)


# -- programs -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Program:
    """Everything that a compiler for a C-like language gets: the text, the headers that it includes
    by name, flags, and a target, whose meaning is the backend's.

    >>> Program.read(Program("int x;", flags=("-g",)).written()).flags
    ('-g',)
    """

    text: str
    headers: Mapping[str, str] = field(default_factory=dict)
    flags: tuple[str, ...] = ()
    target: str = ""

    def __post_init__(self) -> None:
        for name in self.headers:
            if not re.fullmatch(r"[\w.+-]+(/[\w.+-]+)*", name) or ".." in name.split("/"):
                raise InvalidKernel(
                    kernel="a kernel",
                    problem=f"{name!r} is no name for a header",
                    advice="Name it as it is included: 'sizes.h', or 'shapes/sizes.h'.",
                )

    def written(self) -> str:
        """The program as one text; equal programs are equal texts."""
        facts = [self.text, dict(self.headers), list(self.flags), self.target]
        return json.dumps(facts, sort_keys=True, ensure_ascii=False)

    @staticmethod
    def read(text: str) -> Program:
        """Parse what `written` returned."""
        source, headers, flags, target = json.loads(text)
        return Program(source, headers, tuple(flags), target)


def beside(headers: Mapping[str, str], name: str, text: str) -> dict[str, str]:
    """The headers plus the kernel's own text as a file, so that compiler errors show its lines.

    >>> sorted(beside({"sizes.h": ""}, "add.cpp", "void add() {}"))
    ['add.cpp', 'sizes.h']
    """
    if name in headers:
        raise InvalidKernel(
            kernel=name.partition(".")[0],
            problem=f"a header is called {name!r}, as its own source is",
            advice="Rename the header.",
        )
    return {**headers, name: text}


def toolchain_of(version: str, compiler: str = "c") -> str:
    """The `toolchain` text of a request for a compiler with this version: also tzero's version, and
    the variables that the compiler reads.

    >>> toolchain_of("nvcc 13.1", "nvcc").partition(" {")[0]
    'nvcc 13.1'
    """
    return f"{version} {digest.toolchain(variables=settings.compiler_variables(compiler))}"


def check_tools(request: Request, version: str, compiler: str = "c") -> None:
    """Raise `OtherTools` unless a request was made with a compiler of this version, with the
    variables that are set here.

    ::

        check_tools(request, "nvcc 13.1", "nvcc")
    """
    ours = toolchain_of(version, compiler)
    if request.toolchain == ours:
        return
    theirs = request.toolchain.partition(" {")[0]
    if theirs == version:
        theirs += ", but with other variables or another tzero"
    raise OtherTools(f"this machine has {version}, and the request was made with {theirs}")


def source_of(request: Request) -> str:
    """The texts of a program, headers first, as they are compiled.

    >>> source_of(Request("cpp", "f", Program("int f();", {"f.h": "int g();"}).written(), ""))
    '// f.h\\nint g();\\n\\nint f();'
    """
    program = Program.read(request.program)
    return "\n\n".join([*(f"// {k}\n{v}" for k, v in program.headers.items()), program.text])


def build(
    request: Request,
    program: Program,
    words: Sequence[str],
    *,
    source: str,
    made: str,
    compiler: str = "c",
) -> bytes:
    """Run a compiler on the program of a request, and return the file that it made. `words` is the
    command line; `source` and `made` are the names of input and output in the directory where it
    runs. The variables that `compiler` reads are those of the request.

    ::

        build(request, program, ["cc", "-shared", "add.c", "-o", "add.so"], source="add.c",
              made="add.so")
    """
    with scratch.folder() as folder:
        for name, text in {**program.headers, source: program.text}.items():
            path = Path(folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        run(request.name, words, folder, environment_of(request, compiler))
        out = Path(folder, made)
        if not out.exists():
            raise CompileFailed(
                kernel=request.name,
                problem="the compiler wrote neither its output nor a message",
                trace="",
            )
        return out.read_bytes()


def run(
    kernel: str,
    words: Sequence[str],
    folder: str | None = None,
    environment: Mapping[str, str] | None = None,
) -> str:
    """Run a compiler, and return its output; raises `CompileFailed` with that if it fails.

    >>> run("add", ["echo", "done"]).strip()
    'done'
    """
    try:
        done = command.run(words, cwd=folder, env=environment)
    except OSError as error:  # not executable, or removed since it was found
        problem = f"{words[0]} cannot be run: {error}"
        raise CompileFailed(kernel=kernel, problem=problem, trace="") from error
    said = (done.stdout + done.stderr).decode(errors="replace")
    if done.returncode != 0:
        problem = gist(Path(words[0]).name, done.returncode, said)
        raise CompileFailed(kernel=kernel, problem=problem, trace=f"{shlex.join(words)}\n{said}")
    return said


def environment_of(request: Request, compiler: str = "c") -> dict[str, str]:
    """The environment of this process, but with those variables that a compiler reads as they were
    when the request was made."""
    read = settings.COMPILER_VARIABLES[compiler]
    others = {name: value for name, value in settings.variables().items() if name not in read}
    asked = request.environment
    return others | {name: asked[name] for name in read if name in asked}


def gist(compiler: str, status: int, words: str) -> str:
    """The most important line of a compiler's output.

    >>> gist("cc", 1, "In function f:\\nf.c:3: error: unknown type name 'flaot'")
    "f.c:3: error: unknown type name 'flaot'"
    """
    if status < 0:
        return f"{compiler} was ended by signal {-status}"
    lines = [line.strip() for line in words.splitlines() if line.strip()]
    errors = [line for line in lines if re.search(r"\berror\b", line, re.IGNORECASE)]
    return (errors or lines or [f"{compiler} ended with status {status} and no message"])[0]
