"""Triton kernels through the compile service: for CUDA, HIP and the CPU.

::

    ASTSource ─ request ─► Request ─ service, worker: compile ─► Artifact ─ load ─► CompiledKernel

Enters: what Triton's launches hand to ``triton.compile``: a kernel with the types and constants of
its arguments, a target, and options. Leaves: a `Request` that a process can compile which has
neither the kernel's module, nor torch, nor a device; what that process makes of it; and, of that,
Triton's own ``CompiledKernel``. It must not know how requests travel or are kept, nor how kernels
are launched. How a kernel is written down is `triton_program`'s business.

A kernel that cannot be written down is compiled by Triton in this process, as is everything while
someone has asked Triton to print, dump or replace what it compiles; an event says why.
"""

from __future__ import annotations

import atexit
import builtins
import contextlib
import hashlib
import json
import os
import shlex
import shutil
import sys
import tempfile
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from tzero import events, settings
from tzero.adapters import triton_compile, triton_launch
from tzero.adapters.triton_launch import ASTSource, CompiledKernel, GPUTarget, JITCallable
from tzero.backends.triton.program import Check, Maker, NotFaithful, Unwritable, Writer
from tzero.cache.digest import Unwritable as NoText
from tzero.cache.digest import canonical, file_digest, parse, toolchain
from tzero.compile import service
from tzero.compile.request import Artifact, Malformed, Request
from tzero.compile.worker import inside
from tzero.errors import CompileFailed

__all__ = [
    "NotTransportable",
    "backend",
    "compile",
    "compiled",
    "load",
    "request",
    "take_over",
    "warm",
]

NAME = "triton"
_STAMP = "TRITON_COMPILER_STAMP"
_PLACES = (
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
)
"""Variables that say where things are; what is there is part of the toolchain."""


@dataclass(frozen=True, slots=True)
class NotTransportable:
    """Why a kernel cannot be compiled in another process.

    >>> NotTransportable("it prints while it compiles (static_print)").reason
    'it prints while it compiles (static_print)'
    """

    reason: str


# -- out ---------------------------------------------------------------------------------------


def request(
    source: ASTSource, target: GPUTarget, options: Mapping[str, Any] | None = None
) -> Request | NotTransportable:
    """A kernel, written down whole: its functions, constants and options, and the target.

    ::

        asked = request(ASTSource(add, {"x": "*fp32", "n": "i32"}), GPUTarget("cuda", 90, 32))
        artifact = service().compile(asked)

    Errors that Triton has for a kernel before it compiles are raised here, as Triton raises them.
    """
    if type(source) is not ASTSource:
        return NotTransportable("it does not come from a kernel's text")
    function = source.fn
    function.cache_key  # noqa: B018 - Triton checks what the kernel reads, and keeps it for launches
    world = _world(target)
    if world.reason:
        return NotTransportable(world.reason)
    try:
        chosen = world.normalised(options or {})
        tables, constants = _written(function, source.constants)
        parts = {
            "attributes": canonical({path: list(each) for path, each in source.attrs.items()}),
            "constants": constants,
            "knobs": world.knobs,
            "name": canonical(triton_compile.repr_of(source)),
            "options": chosen,
            "signature": canonical(_signature(source)),
            "tables": tables,
            "target": canonical([target.backend, target.arch, target.warp_size]),
            "variables": world.variables,
        }
    except (Unwritable, NoText) as problem:
        return NotTransportable(str(problem))
    # The keys are sorted, and each part is canonical: so is the whole.
    program = ",".join(f"{json.dumps(key)}:{text}" for key, text in parts.items())
    return Request(NAME, source.name, f"{{{program}}}", world.toolchain, world.places)


def _signature(source: ASTSource) -> list[list[Any]]:
    return [[name, _type(each)] for name, each in source.signature.items()]


def _type(written: Any) -> Any:
    """The type of an argument: Triton has text for most, and tuples of these."""
    if type(written) is str:
        return written
    if isinstance(written, tuple):
        fields = getattr(written, "_fields", None)
        types = [_type(each) for each in written]
        return tuple(types) if fields is None else {"fields": list(fields), "types": types}
    raise Unwritable(f"the type of an argument is {written!r}")


def _read_type(written: Any) -> Any:
    from collections import namedtuple

    if isinstance(written, dict):
        kind = namedtuple("Arguments", written["fields"])  # type: ignore[misc]
        return kind(*map(_read_type, written["types"]))
    return tuple(map(_read_type, written)) if isinstance(written, tuple) else written


class _Memo(NamedTuple):
    """The tables of a kernel, and of functions that come as its constants, as text; and what they
    were read from."""

    owner: Any  # copies of kernels come with all that they hold
    tables: str
    functions: dict[int, tuple[Any, Any]]  # by id: the function, and how constants have it
    checks: list[Check]
    allows: bool  # what may be left out of the tables depends on this knob

    def holds(self, owner: Any, allows: bool) -> bool:
        """Whether all that was read would be read again."""
        if self.owner is not owner or self.allows != allows:
            return False
        return all(read() is found for read, found in self.checks)


_KEPT = "_tzero_written"  # on the kernel itself, which the checks refer to: so they go together
_MOST_KEPT = 16


def _written(function: Any, constants: Mapping[tuple[int, ...], Any]) -> tuple[str, str]:
    """The tables of a kernel and of the functions among its constants; and the constants."""
    called = {id(each): each for each in constants.values() if isinstance(each, JITCallable)}
    memo = _remembered(function, called)
    writer = Writer()
    written = {
        path: memo.functions[id(each)][1] if id(each) in called else writer.value(each)
        for path, each in constants.items()
    }
    if not (writer.functions or writer.classes):
        return memo.tables, canonical(written)
    # Some have a row in the tables: enumerations, or functions within tuples.
    writer = Writer()
    writer.function(function)  # the first of the functions
    plain = canonical({path: writer.value(each) for path, each in constants.items()})
    return canonical(writer.tables()), plain


def _remembered(function: Any, called: Mapping[int, Any]) -> _Memo:
    """What was written of a kernel and of such constants before, if it still holds."""
    allows = triton_launch.knobs.compilation.allow_non_constexpr_globals
    kept: dict[tuple[int, ...], _Memo] = vars(function).setdefault(_KEPT, {})
    key = tuple(called)
    memo = kept.get(key)
    if memo is None or not memo.holds(function, allows):
        writer = Writer()
        writer.function(function)
        functions = {place: (each, writer.value(each)) for place, each in called.items()}
        if len(kept) >= _MOST_KEPT:
            kept.clear()
        tables = canonical(writer.tables())
        memo = kept[key] = _Memo(function, tables, functions, writer.checks, allows)
    return memo


@dataclass
class _World:
    """What is the same for all requests for a target, until the environment changes."""

    state: Any
    reason: str = ""
    backend: Any = None
    knobs: str = ""
    variables: str = ""
    toolchain: str = ""
    places: dict[str, str] = field(default_factory=dict)
    options: dict[str, tuple[list[tuple[str, str, str]], str]] = field(default_factory=dict)

    def normalised(self, options: Mapping[str, Any]) -> str:
        """Options as the backend reads them, all of them, in one way of writing."""
        key = repr(options)
        libraries, found = self.options.get(key, ([], ""))
        # What is in a library may change where it is.
        if not found or any(_content(path) != content for _, path, content in libraries):
            chosen = dict(vars(self.backend.parse_options(dict(options))))
            if chosen.get("ir_override"):
                raise Unwritable("the option ir_override replaces what it compiles to")
            libraries = [(name, path, _content(path)) for name, path in _libraries(chosen)]
            found = canonical({**chosen, "extern_libs": tuple(libraries)})
            if len(self.options) > 256:
                self.options.clear()
            self.options[key] = (libraries, found)
        return found


def _libraries(options: Mapping[str, Any]) -> list[tuple[str, str]]:
    found = options.get("extern_libs") or ()
    pairs = found.items() if isinstance(found, dict) else found
    return [(str(name), str(path)) for name, path in pairs]


def _content(path: str) -> str:
    found = os.stat(path)
    return _hashed(path, found.st_size, found.st_mtime_ns)


_contents: dict[tuple[str, int, int], str] = {}


def _hashed(path: str, size: int, changed: int) -> str:
    key = (path, size, changed)
    if key not in _contents:
        _contents[key] = hashlib.sha256(Path(path).read_bytes()).hexdigest()
    return _contents[key]


_worlds: dict[tuple[str, Any, int], _World] = {}


def _world(target: GPUTarget) -> _World:
    """The world of a target as it is now."""
    key = (target.backend, target.arch, target.warp_size)
    variables = settings.variables()
    tools = (settings.now(), _tools(target))
    state = (variables, triton_compile.knob_state(), settings.current(), tools)
    world = _worlds.get(key)
    if world is None or world.state != state:
        world = _worlds[key] = _asked(target, variables, state)
    return world


def _tools(target: GPUTarget) -> Any:
    """What tells that the programs which a compile runs are no longer what they were."""
    if target.backend == "cpu":
        from tzero.cpu import toolchain as c

        return c.find().fingerprint
    assembler = triton_compile.ptxas_path(target)
    if assembler is None:
        return None
    found = os.stat(assembler)
    return assembler, found.st_size, found.st_mtime_ns


def _asked(target: GPUTarget, variables: Mapping[str, str], state: Any) -> _World:
    reason = triton_compile.own_compiling(variables)
    if reason:
        return _World(state, reason)
    made = triton_launch.make_backend(target)
    places = {name: variables[name] for name in _PLACES if name in variables}
    compiler = settings.now().cc
    if compiler is not None:
        places["TZERO_CC"] = shlex.join(compiler)
    for tool in ("ptxas", "ptxas_blackwell"):
        chosen = vars(triton_launch.knobs.nvidia).get(tool)
        if isinstance(chosen, str):
            places[f"TRITON_{tool.upper()}_PATH"] = chosen
    places[_STAMP] = triton_compile.compiler_stamp()
    return _World(
        state,
        backend=made,
        knobs=canonical(triton_compile.code_knobs()),
        variables=canonical(triton_compile.code_environment()),
        toolchain=_toolchain(target, made),
        places=places,
    )


def _toolchain(target: GPUTarget, made: Any) -> str:
    assembler = triton_compile.ptxas_path(target)
    return toolchain(
        triton=triton_compile.compiler_version(),
        compiler=triton_compile.compiler_digest(),
        backend=str(made.hash()),
        assembler=None if assembler is None else file_digest(assembler),
        python=sys.version_info[:2],  # it reads the kernels' text
    )


# -- there -------------------------------------------------------------------------------------


def compile(asked: Request) -> Artifact:
    """Compile what was asked for, from the request alone, with nothing found in any cache.

    ::

        artifact = compile(request(source, target))
        artifact.files["add.ptx"]
    """
    program = parse(asked.program)
    _same_compiler(asked)
    target = GPUTarget(*program["target"])
    with _as_asked(program, asked.environment), _recorded() as said:
        maker = Maker(program["tables"])
        function = maker.function(0)
        name = program["name"]
        if name is not None:
            function._repr = lambda _: name
        signature = {each: _read_type(written) for each, written in program["signature"]}
        # In Triton's order, from the first argument to the last, which its own digest depends on.
        constants = {at: maker.value(each) for at, each in sorted(program["constants"].items())}
        attributes = dict(sorted(program["attributes"].items()))
        source = ASTSource(function, signature, constants, attributes)
        options = {k: v for k, v in program["options"].items() if v is not None}
        options["extern_libs"] = tuple((name, path) for name, path, _ in options["extern_libs"])
        with (
            tempfile.TemporaryDirectory(prefix="tzero-triton-") as folder,
            triton_compile.private_cache(folder),
        ):
            kernel = triton_launch.compile_here(source, target=target, options=options)
            group = {each: Path(path).read_bytes() for each, path in kernel.metadata_group.items()}
    about = next(each for each in group if each.endswith(".json"))
    facts = {
        "kernel": source.name,
        "hash": kernel.hash,
        "signature": canonical(program["signature"]),
        "order": list(group),  # Triton's, from the first stage to the last
        "metadata": json.loads(group.pop(about)),
        "warnings": said,
    }
    return Artifact(group, facts)


def _same_compiler(asked: Request) -> None:
    """Refuse to compile with another Triton than the one that the request was written for."""
    ours = triton_compile.compiler_version()
    theirs = parse(asked.toolchain)
    if (
        theirs["triton"] == ours
        and asked.environment.get(_STAMP) == triton_compile.compiler_stamp()
    ):
        triton_compile.known_digest(theirs["compiler"])
        return
    if theirs["compiler"] != triton_compile.compiler_digest():
        raise NotFaithful(
            f"it was asked of Triton {theirs['triton']}, and another one, {ours}, is here"
        )


@contextlib.contextmanager
def _as_asked(program: Mapping[str, Any], environment: Mapping[str, str]) -> Iterator[None]:
    """The environment, the knobs and the settings of who asked, until the block ends."""
    now = settings.variables()
    # What has a say in the result is as it was there, or is not there.
    wanted: dict[str, str | None] = dict.fromkeys(triton_compile.code_environment())
    wanted |= {name: environment.get(name) for name in _PLACES} | program["variables"]
    moved = any(now.get(name) != wanted[name] for name in _PLACES if "PTXAS" in name)
    with contextlib.ExitStack() as stack:
        stack.enter_context(settings.applied(wanted))
        stack.enter_context(triton_compile.with_knobs(program["knobs"]))
        if moved:
            triton_compile.forget_tools()
            stack.callback(triton_compile.forget_tools)
        compiler = environment.get("TZERO_CC")
        cc = None if not compiler else tuple(shlex.split(compiler))
        check = bool(program["options"].get("cpu_check"))
        current = settings.current()
        if (cc, check) != (current.cc, current.cpu_check):
            stack.enter_context(settings.override(cc=cc, cpu_check=check))
        yield


@contextlib.contextmanager
def _recorded() -> Iterator[list[list[Any]]]:
    """The warnings of this thread; those of others go where they went. In a worker all are taken;
    in a process with other work its filters, which other threads may be changing, decide."""
    said: list[list[Any]] = []
    here = threading.get_ident()
    shown = warnings.showwarning

    def show(message: Any, category: Any, filename: str, lineno: int, *rest: Any) -> None:
        if threading.get_ident() == here:
            said.append([category.__name__, str(message), filename, lineno])
        else:
            shown(message, category, filename, lineno, *rest)

    with warnings.catch_warnings() if inside() else contextlib.nullcontext():
        if inside():
            warnings.simplefilter("always")
        warnings.showwarning = show  # type: ignore[assignment]
        try:
            yield said
        finally:
            warnings.showwarning = shown


def warm() -> None:
    """Import all that a compile needs, ahead of the first.

    >>> warm()
    """
    triton_compile.warm()


# -- and back ----------------------------------------------------------------------------------


def load(artifact: Artifact, source: ASTSource) -> CompiledKernel:
    """Triton's kernel of what was compiled for it; `Malformed` where it was compiled for another.

    ::

        kernel = load(artifact, source)
        kernel.asm["ptx"]
    """
    facts = artifact.facts
    try:
        for what, ours in (("kernel", source.name), ("signature", canonical(_signature(source)))):
            if facts[what] != ours:
                raise Malformed(f"an artifact for the {what} {facts[what]}, and not for {ours}")
        metadata, order, digest = facts["metadata"], facts["order"], str(facts["hash"])
        about = next(name for name in order if name.endswith(".json"))
        if set(order) - {about} != set(artifact.files):
            raise Malformed("an artifact whose files are not those it lists")
        # Half a kernel of Triton's must not come to be: it complains when it goes.
        target, _ = GPUTarget(**metadata["target"]), metadata["name"]
        last = triton_launch.make_backend(target).binary_ext
        if not any(name.endswith(f".{last}") for name in artifact.files):
            raise Malformed(f"an artifact without its {last}")
        said = [(str(a), str(b), str(c), int(d)) for a, b, c, d in facts["warnings"]]
    except Malformed:
        raise
    except (LookupError, TypeError, AttributeError, ValueError, RuntimeError) as error:
        raise Malformed(f"no artifact of Triton's: {error!r}") from error
    except StopIteration:
        raise Malformed("an artifact without metadata") from None
    source.fn.cache_key  # noqa: B018 - launches check what the kernel read
    folder = Path(tempfile.mkdtemp(dir=_directory()))
    group = {}
    for name in order:
        path = folder / name
        path.write_bytes(json.dumps(metadata).encode() if name == about else artifact.files[name])
        group[name] = str(path)
    try:
        kernel = CompiledKernel(source, group, digest)
    except (LookupError, TypeError, AttributeError, ValueError, StopIteration) as error:
        raise Malformed(f"no artifact of Triton's: {error!r}") from error
    weakref.finalize(kernel, _removed, os.getpid(), str(folder)).atexit = False
    for kind, text, file, line in said:
        category = getattr(builtins, kind, UserWarning)
        warnings.warn_explicit(text, category, file, line)
    return kernel


_directories: dict[int, str] = {}  # by process: a forked child has its own
_directories_lock = threading.Lock()
os.register_at_fork(after_in_child=lambda: _directories_lock._at_fork_reinit())  # type: ignore[attr-defined]


def _directory() -> str:
    """This process's directory for what Triton reads from files; it goes when the process ends."""
    with _directories_lock:
        me = os.getpid()
        if me not in _directories or not os.path.isdir(_directories[me]):
            _directories[me] = tempfile.mkdtemp(prefix="tzero-kernels-")
            _at_exit(_removed, me, _directories[me])
        return _directories[me]


def _removed(owner: int, directory: str) -> None:
    if os.getpid() == owner:  # a child that was forked later runs this, too
        shutil.rmtree(directory, ignore_errors=True)


def _at_exit(function: Callable[..., None], *args: Any) -> None:
    """Call a function when this process ends. Children of `multiprocessing` end without `atexit`,
    but call its own."""
    finalize = sys.modules.get("multiprocessing.util")
    if finalize is not None:
        finalize.Finalize(None, function, args=args, exitpriority=0)
    else:
        atexit.register(function, *args)


def compiled(
    source: Any,
    target: GPUTarget | None = None,
    options: Mapping[str, Any] | None = None,
    _env_vars: Mapping[str, str] | None = None,
) -> CompiledKernel:
    """What ``triton.compile`` returns, by way of the compile service; called like it.

    ::

        kernel.compile = compiled
    """
    if target is None:
        target = triton_launch.driver.active.get_current_target()

    def here(kind: Literal["compile", "cache"], reason: str) -> CompiledKernel:
        name = getattr(source, "name", str(source))
        events.emit(events.Event(kind, name, f"Triton compiles it in this process: {reason}"))
        return triton_launch.compile_here(source, target=target, options=options)

    if triton_launch.interpreting():
        return triton_launch.compile_here(source, target=target, options=options)
    asked = request(source, target, options)
    if isinstance(asked, NotTransportable):
        return here("compile", asked.reason)
    try:
        artifact = service().compile(asked)
    except NotFaithful as refusal:
        return here("compile", str(refusal))
    except CompileFailed as failure:
        if failure.__cause__ is None:
            return here("compile", failure.problem)  # the exception itself could not travel
        problem = failure.__cause__
    else:
        try:
            return load(artifact, source)
        except Malformed as error:
            return here("cache", str(error))
    raise _copied(problem)  # as Triton would have raised it here


def _copied(error: BaseException) -> BaseException:
    """An exception of one's own: several threads may be told of one failure."""
    made = type(error).__new__(type(error), *error.args)
    made.args = error.args
    made.__dict__.update(error.__dict__)
    made.__cause__ = error.__cause__
    return made.with_traceback(error.__traceback__)


def take_over(kernel: Any) -> None:
    """Have one of Triton's own kernels compile by way of the service from now on.

    ::

        take_over(someone_elses_kernel)
    """
    triton_launch.compile_with(kernel, compiled)


class _Triton:
    """The backend that the entry point names."""

    runs: Literal["process", "thread"] = "process"

    def compile(self, request: Request) -> Artifact:
        return compile(request)

    def warm(self) -> None:
        warm()


backend = _Triton()
