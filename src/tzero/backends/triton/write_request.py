"""What is sent to a compile worker: a Triton kernel, its types, options and target, as a `Request`.

::

    ASTSource, target, options ── written ──► Written ── requested ──► Request
                                  needs no compiler      finds the compilers

Enters: what Triton's launches give to ``triton.compile``. Leaves: a `Request` that another process
can compile without the kernel's module, torch or a device; or `NotTransportable`, with the reason.
It must not know how requests travel or are cached. `program` writes the kernel itself down.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from tzero import ownership, settings
from tzero.adapters import triton_compile, triton_launch
from tzero.adapters.triton_launch import ASTSource, GPUTarget, JITCallable
from tzero.backends.triton.program import Checks, Trees, Unwritable, Writer
from tzero.cache.digest import Unwritable as NoText
from tzero.cache.digest import canonical, file_digest, parse, toolchain
from tzero.compile.backend import OtherTools
from tzero.compile.request import Request

__all__ = [
    "NAME",
    "PATH_VARIABLES",
    "STAMP",
    "NotTransportable",
    "Written",
    "for_this_machine",
    "request",
    "requested",
    "retargeted",
    "signature_of",
    "sources",
    "written",
]

NAME = "triton"
STAMP = "TRITON_COMPILER_STAMP"
"""The entry of a request's environment that tells whether the worker has the same compiler."""
PATH_VARIABLES = (
    "PATH",
    "LD_LIBRARY_PATH",
    "HOME",
    "TMPDIR",
    "CC",
    "TZERO_CC",
    "CUDA_HOME",
    "CUDA_PATH",
    "ROCM_PATH",
    "TRITON_HOME",
    "TRITON_PTXAS_PATH",
    "TRITON_PTXAS_BLACKWELL_PATH",
    "TRITON_CUOBJDUMP_PATH",
    "TRITON_NVDISASM_PATH",
    "TRITON_LIBDEVICE_PATH",
    *settings.COMPILER_VARIABLES["c"],
)
"""Variables that a worker takes over. They are not part of the digest. The files found at paths
are, and so is what the C compiler reads, by its fingerprint."""


@dataclass(frozen=True, slots=True)
class NotTransportable:
    """Why a kernel cannot be compiled in another process.

    >>> NotTransportable("it prints while it compiles (static_print)").reason
    'it prints while it compiles (static_print)'
    """

    reason: str


@dataclass(frozen=True, slots=True)
class Written:
    """A kernel with its functions, constants, options and target, as text. It is written without
    looking for a compiler.

    ::

        made = written(ASTSource(add, {"x": "*fp32", "n": "i32"}), GPUTarget("cuda", 90, 32))
        made.parts["target"]  # '["cuda",90,32]'
    """

    name: str
    target: GPUTarget
    parts: Mapping[str, str]
    """Canonical texts by name: what the kernel compiles to depends on these."""
    places: Mapping[str, str]
    """Likewise: where the source files and libraries are. Messages and line tables name them."""


def request(
    source: ASTSource, target: GPUTarget, options: Mapping[str, Any] | None = None
) -> Request | NotTransportable:
    """Write down a kernel as a request.

    ::

        asked = request(ASTSource(add, {"x": "*fp32", "n": "i32"}), GPUTarget("cuda", 90, 32))
        artifact = service().compile(asked)

    Errors that Triton raises before it compiles a kernel are raised here, unchanged.
    """
    made = written(source, target, options)
    return made if isinstance(made, NotTransportable) else requested(made)


def requested(made: Written) -> Request:
    """The request for a kernel that was written down, with the compilers that are found now.

    ::

        service().submit(requested(made))
    """
    tools = _toolchain_of(made.target)
    # Each part is canonical and the keys are sorted, so the whole is canonical too.
    parts = sorted({**made.parts, **made.places}.items())
    program = ",".join(f'"{key}":{text}' for key, text in parts)
    return Request(NAME, made.name, f"{{{program}}}", tools.toolchain, tools.places)


def written(
    source: ASTSource, target: GPUTarget, options: Mapping[str, Any] | None = None
) -> Written | NotTransportable:
    """Write down a kernel with its functions, constants, options and target; no compiler is
    needed. Errors that Triton raises before it compiles a kernel are raised here, unchanged.

    ::

        made = written(ASTSource(add, {"x": "*fp32", "n": "i32"}), GPUTarget("cuda", 90, 32))
    """
    if type(source) is not ASTSource:
        return NotTransportable("it has no source text")
    function = source.fn
    trees = triton_launch.hashed(function)
    around = _environment(target)
    if around.reason:
        return NotTransportable(around.reason)
    try:
        chosen, libraries = around.normalised(options or {})
        tables, files, constants = _tables(function, source.constants, trees)
        parts = {
            "attributes": canonical({path: list(each) for path, each in source.attrs.items()}),
            "constants": constants,
            "knobs": around.knobs,
            "name": canonical(triton_compile.repr_of(source)),
            "options": chosen,
            "signature": canonical(signature_of(source)),
            "tables": tables,
            "target": canonical([target.backend, target.arch, target.warp_size]),
            "variables": around.variables,
        }
    except (Unwritable, NoText) as problem:
        return NotTransportable(str(problem))
    return Written(source.name, target, parts, {"files": files, "libraries": libraries})


def retargeted(made: Written, target: GPUTarget) -> Written | NotTransportable:
    """A kernel for another target, with the options that the launch gave: those that differ from
    the defaults of the target for which it was written.

    ::

        retargeted(made, GPUTarget("cuda", 90, 32))
    """
    if _key(target) == _key(made.target):
        return made
    around = _environment(target)
    if around.reason:
        return NotTransportable(around.reason)
    usual = parse(_environment(made.target).normalised({})[0])
    given = parse(made.parts["options"])
    if given["extern_libs"] != usual["extern_libs"]:
        return NotTransportable(f"{made.name} is linked with libraries for {made.target.backend}")
    own = {key: value for key, value in given.items() if key not in usual or usual[key] != value}
    chosen, libraries = around.normalised(own)
    parts = {
        **made.parts,
        "options": chosen,
        "target": canonical([target.backend, target.arch, target.warp_size]),
    }
    return Written(made.name, target, parts, {**made.places, "libraries": libraries})


def signature_of(source: ASTSource) -> list[list[Any]]:
    """The names and types of a kernel's arguments."""
    return [[name, _type_of(each)] for name, each in source.signature.items()]


def _type_of(written: Any) -> Any:
    """The type of an argument: text for most, a tuple of types for tuples."""
    if type(written) is str:
        return written
    if isinstance(written, tuple):
        fields = getattr(written, "_fields", None)
        types = [_type_of(each) for each in written]
        return tuple(types) if fields is None else {"fields": list(fields), "types": types}
    raise Unwritable(f"the type of an argument is {written!r}")


class _Memo(NamedTuple):
    """The tables of a kernel and of the functions among its constants, as text, with the reads that
    they depend on."""

    owner: Any  # the kernel: a copy of it also copies its attributes, and this memo
    tables: str
    files: str  # of the functions, in the order of their table
    functions: dict[int, tuple[Any, Any]]  # by id: the function, and its form among the constants
    checks: Checks
    allows: bool  # this knob decides which globals may be left out

    def holds(self, owner: Any, allows: bool) -> bool:
        """Whether every read would still return the same object."""
        return self.owner is owner and self.allows == allows and self.checks.hold()


# An attribute of the kernel: the checks in a memo refer to the kernel, so both are freed together.
_KEPT = "_tzero_written"
_MOST_KEPT = 16


def _tables(
    function: Any, constants: Mapping[tuple[int, ...], Any], trees: Trees
) -> tuple[str, str, str]:
    """The tables of a kernel and of the functions among its constants, the files of these, and the
    constants."""
    called = {id(each): each for each in constants.values() if isinstance(each, JITCallable)}
    memo = _remembered(function, called, trees)
    writer = Writer()
    plain = {
        path: memo.functions[id(each)][1] if id(each) in called else writer.value(each)
        for path, each in constants.items()
    }
    if not (writer.functions or writer.classes):
        return memo.tables, memo.files, canonical(plain)
    # Some constants need rows in the tables: enumerations, and functions within tuples.
    writer = Writer()
    writer.function(function)  # the first of the functions
    values = canonical({path: writer.value(each) for path, each in constants.items()})
    return (*_texts(writer), values)


def _texts(writer: Writer) -> tuple[str, str]:
    """The tables without the names of files, and these. The same kernel in another directory has
    the same tables."""
    tables = writer.tables()
    files = [row.pop("file") for row in tables["functions"]]
    return canonical(tables), canonical(files)


def _remembered(function: Any, called: Mapping[int, Any], trees: Trees) -> _Memo:
    """The memo for a kernel and these functions; a new one if there is none that is still valid."""
    allows = triton_launch.knobs.compilation.allow_non_constexpr_globals
    kept: dict[tuple[int, ...], _Memo] = vars(function).setdefault(_KEPT, {})
    key = tuple(called)
    memo = kept.get(key)
    if memo is None or not memo.holds(function, allows):
        writer = Writer(trees)
        writer.function(function)
        functions = {place: (each, writer.value(each)) for place, each in called.items()}
        if len(kept) >= _MOST_KEPT:
            kept.clear()
        memo = kept[key] = _Memo(function, *_texts(writer), functions, writer.checks, allows)
    return memo


@dataclass
class _Environment:
    """What all kernels for a target share until the environment or the knobs change."""

    state: Any
    reason: str = ""
    backend: Any = None
    knobs: str = ""
    variables: str = ""
    options: dict[str, tuple[list[tuple[str, str, str]], str, str]] = field(default_factory=dict)

    def normalised(self, options: Mapping[str, Any]) -> tuple[str, str]:
        """The options as the backend reads them, with its defaults, and the paths of libraries in
        them, both as canonical text. The options have the digests of libraries."""
        key = repr(options)
        libraries, found, paths = self.options.get(key, ([], "", ""))
        # The content of a library may change under the same path.
        if not found or any(_content(path) != content for _, path, content in libraries):
            chosen = dict(vars(self.backend.parse_options(dict(options))))
            if chosen.get("ir_override"):
                raise Unwritable("the option ir_override replaces what it compiles to")
            libraries = [(name, path, _content(path)) for name, path in _libraries(chosen)]
            contents = tuple((name, content) for name, _, content in libraries)
            found = canonical({**chosen, "extern_libs": contents})
            paths = canonical([path for _, path, _ in libraries])
            if len(self.options) > 256:
                self.options.clear()
            self.options[key] = (libraries, found, paths)
        return found, paths


def _libraries(options: Mapping[str, Any]) -> list[tuple[str, str]]:
    found = options.get("extern_libs") or ()
    pairs = found.items() if isinstance(found, dict) else found
    return [(str(name), str(path)) for name, path in pairs]


def _content(path: str) -> str:
    key = (path, ownership.identity(path))
    if key not in _contents:
        _contents[key] = hashlib.sha256(Path(path).read_bytes()).hexdigest()
    return _contents[key]


_contents: dict[tuple[str, tuple[int, ...]], str] = {}

_environments: dict[tuple[str, Any, int], _Environment] = {}


def _key(target: GPUTarget) -> tuple[str, Any, int]:
    return (target.backend, target.arch, target.warp_size)


def _state() -> Any:
    variables = settings.raw_variables()
    return (variables, triton_compile.knob_state(), settings.current(), settings.now())


def _environment(target: GPUTarget) -> _Environment:
    """The environment of a target as it is now."""
    key, state = _key(target), _state()
    found = _environments.get(key)
    if found is None or found.state != state:
        found = _environments[key] = _read_environment(target, settings.variables(), state)
    return found


def _read_environment(target: GPUTarget, variables: Mapping[str, str], state: Any) -> _Environment:
    reason = triton_compile.own_compiling(variables)
    if reason:
        return _Environment(state, reason)
    return _Environment(
        state,
        backend=triton_launch.make_backend(target),
        knobs=canonical(triton_compile.code_knobs()),
        variables=canonical(triton_compile.code_environment()),
    )


class _Tools(NamedTuple):
    """The compilers of a target."""

    state: Any
    toolchain: str
    places: dict[str, str]


_toolchains: dict[tuple[str, Any, int], _Tools] = {}


def _toolchain_of(target: GPUTarget) -> _Tools:
    """The compilers of a target as they are now."""
    key, state = _key(target), (_state(), _tools(target))
    found = _toolchains.get(key)
    if found is None or found.state != state:
        found = _Tools(state, _toolchain(target), _places(settings.variables()))
        _toolchains[key] = found
    return found


def _tools(target: GPUTarget) -> Any:
    """Changes when one of the programs that a compile runs is replaced."""
    if target.backend == "cpu":
        from tzero.cpu import toolchain as c

        return c.find().fingerprint
    assembler = triton_compile.ptxas_path(target)
    if assembler is None:
        return None
    return assembler, *ownership.identity(assembler)


def _places(variables: Mapping[str, str]) -> dict[str, str]:
    places = {name: variables[name] for name in PATH_VARIABLES if name in variables}
    compiler = settings.now().cc
    if compiler is not None:
        places["TZERO_CC"] = shlex.join(compiler)
    for tool in ("ptxas", "ptxas_blackwell"):
        chosen = vars(triton_launch.knobs.nvidia).get(tool)
        if isinstance(chosen, str):
            places[f"TRITON_{tool.upper()}_PATH"] = chosen
    places[STAMP] = triton_compile.compiler_stamp()
    return places


def for_this_machine(asked: Request) -> Request:
    """A request that another machine made, with the places of this one; raises `OtherTools` where
    its compilers or libraries would make something else.

    ::

        compile(for_this_machine(asked))
    """
    program = parse(asked.program)
    target = GPUTarget(*program["target"])
    around = _environment(target)
    if around.reason:
        raise OtherTools(around.reason)
    tools = _toolchain_of(target)
    if tools.toolchain != asked.toolchain:
        ours, theirs = parse(tools.toolchain), parse(asked.toolchain)
        other = sorted(name for name in {*ours, *theirs} if ours.get(name) != theirs.get(name))
        raise OtherTools(f"the tools of this machine are others than there: {', '.join(other)}")
    given = zip(program["libraries"], program["options"]["extern_libs"], strict=True)
    for path, (_, content) in given:
        if not os.path.isfile(path) or _content(path) != content:
            raise OtherTools(f"the library {path} is missing here, or another one")
    return dataclasses.replace(asked, environment=tools.places)


def sources(asked: Request) -> list[str]:
    """The source texts of a kernel and of the functions that it calls.

    ::

        print(*sources(asked), sep="\\n")
    """
    return [row["source"] for row in parse(asked.program)["tables"]["functions"]]


def _toolchain(target: GPUTarget) -> str:
    assembler = triton_compile.ptxas_path(target)
    made = triton_launch.make_backend(target)
    return toolchain(
        triton=triton_compile.compiler_version(),
        compiler=triton_compile.compiler_digest(),
        # Not the CPU backend's hash, which also says whose entry in Triton's cache it is.
        backend=str(getattr(made, "identity", made.hash)()),
        assembler=None if assembler is None else file_digest(assembler),
        python=sys.version_info[:2],  # its parser reads the source text
    )
