"""Adapts Triton's compiler. Change this for a new Triton that compiles differently.

Enters: Triton's compiler, knobs and jit functions. Leaves: what decides the compiler's output
besides the kernel, kernels made from source text, and compiling with a private cache and private
knobs. It must not know what a request is. Compile workers import it, so it does not import torch.

`tests/backends/test_triton_faithful.py` compiles every kernel here and in another process and
compares all stages; it fails first if a new Triton reads something that requests do not carry. The
steps are in `tzero.adapters`.
"""

from __future__ import annotations

import builtins
import collections
import functools
import importlib.machinery
import linecache
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FunctionType, ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import triton
from triton import knobs
from triton import language as tl
from triton._C import libtriton
from triton.compiler import compiler
from triton.runtime import cache, jit

from tzero import locks, settings
from tzero.adapters.triton_launch import (
    ASTSource,
    CompiledKernel,
    Constexpr,
    ConstexprFunction,
    Dtype,
    GPUTarget,
    JITCallable,
    JITFunction,
)
from tzero.cache import stamps

__all__ = [
    "annotations_of",
    "cache_directory",
    "code_environment",
    "code_knobs",
    "compiler_digest",
    "compiler_stamp",
    "compiler_version",
    "dtype_of",
    "forget_tools",
    "is_allowed_global",
    "knob_state",
    "known_digest",
    "make_compiled",
    "make_constexpr_function",
    "make_kernel",
    "own_compiling",
    "private_cache",
    "ptxas_path",
    "repr_of",
    "tools_stamp",
    "warm",
    "with_knobs",
]

_OWN = (
    ("compilation", "override"),
    ("compilation", "dump_ir"),
    ("compilation", "always_compile"),
    ("compilation", "use_ir_loc"),
    ("compilation", "front_end_debugging"),
    ("nvidia", "dump_nvptx"),
    ("nvidia", "dump_ptxas_log"),
    ("amd", "dump_amdgcn"),
    ("amd", "dump_mir"),
    ("amd", "swap_mir"),
)
"""If one of these knobs is set, Triton compiles in this process: they print, dump or replace."""

_ELSEWHERE = (
    ("nvidia", "libdevice_path"),  # becomes an option
    ("nvidia", "libcuda_path"),  # of the driver; compiling does not load it
    ("amd", "libhip_path"),
    ("runtime", "interpret"),  # interpreted kernels are not compiled
)
_PRINTING = (
    "MLIR_ENABLE_DUMP",
    "MLIR_ENABLE_TIMING",
    "LLVM_IR_ENABLE_DUMP",
    "LLVM_ENABLE_TIMING",
    "TRITON_ENABLE_LLVM_DEBUG",
    "TRITON_LLVM_DEBUG_ONLY",
    "TRITON_REPRODUCER_PATH",
)
_GROUPS = ("compilation", "language", "nvidia", "amd", "runtime")


@functools.cache
def cache_directory() -> str:
    """Where Triton keeps what it compiles: a directory, which need not be there yet."""
    return os.path.abspath(str(knobs.cache.dir))


def _code_knobs() -> dict[tuple[str, str], Any]:
    """The knobs that may change the compiler's output, with their defaults."""
    known = {}
    for group in _GROUPS:
        for name, knob in vars(type(getattr(knobs, group))).items():
            is_knob = isinstance(knob, knobs.env_base) and type(knob) is not knobs.env_nvidia_tool
            if is_knob and (group, name) not in _OWN + _ELSEWHERE:
                known[group, name] = getattr(knob, "default", None)
    return known


def code_knobs() -> dict[str, Any]:
    """The knobs that may change the compiler's output and differ from their defaults."""
    found = {}
    for (group, name), default in _code_knobs().items():
        value = getattr(getattr(knobs, group), name)
        if value != default:
            found[f"{group}.{name}"] = value
    return found


def knob_state() -> tuple[dict[str, Any], ...]:
    """All values assigned to knobs; with the environment, they decide `code_knobs`."""
    return tuple(dict(vars(getattr(knobs, group))) for group in (*_GROUPS, "cache"))


def code_environment() -> dict[str, str]:
    """The environment variables that Triton's passes read and that change the code."""
    return dict(libtriton.get_cache_invalidating_env_vars())


def own_compiling(variables: Mapping[str, str]) -> str:
    """Why Triton must compile in this process, given its environment variables; empty if it need
    not."""
    if knobs.runtime.interpret:
        return "Triton's interpreter is on"
    for group, name in _OWN:
        if getattr(getattr(knobs, group), name, None):
            return f"triton.knobs.{group}.{name} is set"
    if knobs.compilation.listener is not None:
        return "triton.knobs.compilation.listener is set"
    if knobs.runtime.add_stages_inspection_hook is not None:
        return "triton.knobs.runtime.add_stages_inspection_hook is set"
    managers = (knobs.cache.manager_class, knobs.cache.remote_manager_class)
    if any(each not in (None, _PrivateCache) for each in managers):
        return "a custom cache manager is set in triton.knobs.cache"
    if knobs.build.impl is not None:
        return "triton.knobs.build.impl is set"
    printing = next((name for name in _PRINTING if variables.get(name, "0") not in ("", "0")), "")
    return f"{printing} is set, and prints while kernels compile" if printing else ""


def is_allowed_global(name: str, value: Any) -> bool:
    """Whether Triton lets a kernel read a global of this name and value."""
    from triton.compiler.code_generator import CodeGenerator

    module = getattr(value, "__module__", "") or ""
    return (
        value is None
        or knobs.compilation.allow_non_constexpr_globals
        or name in CodeGenerator.builtin_namespace
        or type(value) is ModuleType
        or isinstance(value, (JITCallable, Constexpr, Dtype))
        or getattr(value, "__triton_builtin__", False)
        or getattr(value, "__triton_aggregate__", False)
        or str(module).startswith(("triton.language", "triton.experimental.gluon.language"))
        or (isinstance(value, type) and issubclass(value, tuple) and hasattr(value, "_fields"))
    )


@functools.cache
def dtype_of(name: str) -> Any:
    """Triton's own object for an element type.

    >>> dtype_of("fp32") is tl.float32
    True
    """
    known = (each for each in vars(tl).values() if type(each) is Dtype and each.name == name)
    return next(known, None) or Dtype(name)


def annotations_of(function: JITFunction[Any]) -> dict[str, str]:
    """The annotations of a kernel's parameters as text, which Triton reads again with the same
    result."""
    return {each.name: each.annotation for each in function.params if each.annotation}


class _HeldFile:
    """A file in memory, with what Triton's constructor of compiled kernels uses of `Path`."""

    __slots__ = ("_content", "suffix")

    def __init__(self, named: tuple[str, bytes]) -> None:
        name, self._content = named
        self.suffix = os.path.splitext(name)[1]

    def read_bytes(self) -> bytes:
        return self._content

    def read_text(self) -> str:
        return self._content.decode()


@functools.lru_cache(maxsize=64)
def _metadata_class(name: str, fields: tuple[str, ...]) -> type:
    return collections.namedtuple(name, fields)


_COLLECTIONS = SimpleNamespace(
    **{
        **vars(collections),
        "namedtuple": lambda name, fields: _metadata_class(name, tuple(fields)),
    }
)


def _import(name: str, *rest: Any) -> Any:
    return _COLLECTIONS if name == "collections" else __import__(name, *rest)


_BUILTINS = {**vars(builtins), "__import__": _import}


def make_compiled(
    source: ASTSource, contents: Mapping[str, bytes], digest: str, group: Mapping[str, str]
) -> CompiledKernel:
    """Triton's compiled kernel from the contents of its files by name. `group` has their paths; it
    is not read here, so the files need not exist yet.

    Triton's constructor reads files through the global `Path` of its module, and makes a class for
    the metadata of each kernel. It runs here with other globals, so that it reads from memory and
    uses a class again: both would take most of the time of a load.
    """
    world = {**vars(compiler), "Path": _HeldFile, "__builtins__": _BUILTINS}
    construct = FunctionType(CompiledKernel.__init__.__code__, world)
    kernel = CompiledKernel.__new__(CompiledKernel)
    construct(kernel, source, {name: (name, each) for name, each in contents.items()}, digest)
    kernel.metadata_group = group
    return kernel


class SpecializationProxy(NamedTuple):
    """What Triton passes to a kernel's custom `repr`."""

    constants: dict[str, Any]
    signature: dict[str, Any]


def repr_of(source: ASTSource) -> str | None:
    """The name that a kernel's custom `repr` gives a binary; None if it has no `repr`."""
    function = source.fn
    if function._repr is None:
        return None
    alone = {path: value for path, value in source.constants.items() if len(path) == 1}
    constants = {function.arg_names[path[0]]: value for path, value in alone.items()}
    return str(function.repr(SpecializationProxy(constants, source.signature)))


_serial = iter(range(1 << 62))

# Since 3.9: all kernels of the process by name. One made from text must not replace the user's.
_registry: dict[str, Any] = getattr(jit, "_triton_jit_function_registry", {})


def make_kernel(
    function: FunctionType, lines: list[str], source: str, options: Mapping[str, Any]
) -> JITFunction[Any]:
    """A kernel from a function whose source text is not in a file."""
    name = f"{function.__module__}:{function.__qualname__}"
    known = _registry.get(name)
    try:
        return _made(functools.partial(JITFunction, **options), function, lines, source)
    finally:
        _registry.pop(name, None)
        if known is not None:
            _registry[name] = known


def make_constexpr_function(function: FunctionType, lines: list[str], source: str) -> Any:
    """A constexpr function from a function whose source text is not in a file."""
    return _made(ConstexprFunction, function, lines, source)


def _made(
    make: Callable[[FunctionType], Any], function: FunctionType, lines: list[str], source: str
) -> Any:
    """Triton reads the source with `inspect`, which looks it up in `linecache` by file name. A
    unique file name leaves the entry of the original file alone."""
    code = function.__code__
    name = f"<tzero {os.getpid()} {next(_serial)}>"
    text = ["\n"] * (code.co_firstlineno - 1) + lines
    linecache.cache[name] = (sum(map(len, text)), None, text, name)
    try:
        function.__code__ = code.replace(co_filename=name)
        made = make(function)
    finally:
        function.__code__ = code
        del linecache.cache[name]
    if hasattr(made, "file_name"):  # since 3.9; Triton 3.6 reads it from the code object
        made.file_name = code.co_filename
    made.raw_src = lines
    if made.src != source:
        made._unsafe_update_src(source)
    return made


def warm() -> None:
    """Import what Triton otherwise imports at its first compile."""
    import triton.backends.nvidia.compiler
    import triton.compiler.code_generator
    import triton.language.extra.cuda.libdevice  # noqa: F401


def compiler_version() -> str:
    """Triton's version."""
    return str(triton.__version__)


def compiler_digest() -> str:
    """Triton's digest of itself. Triton reads all files of the compiler for it, 400 MB; here they
    are read only if one of them has changed since a process of this user did."""
    if cache.triton_key.cache_info().currsize == 0:
        store = stamps.store(settings.now())
        known_digest(stamps.remembered("triton_key", _compiler_files(), _compute_digest, store))
    return str(cache.triton_key())


def _compute_digest() -> str:
    """Triton's digest of itself from its files, whatever this process knows of it."""
    return str(_triton_key.__wrapped__())


_triton_key = cache.triton_key  # `known_digest` replaces the one in its module


def _compiler_files() -> list[str]:
    """The files that `triton_key` reads: the modules of these packages, and the library."""
    root = os.path.dirname(triton.__file__)
    suffixes = tuple(importlib.machinery.all_suffixes())
    found = [cache.__file__, libtriton.__file__]
    for package in ("compiler", "backends", "language"):
        for folder, _, names in os.walk(os.path.join(root, package), followlinks=True):
            found += [os.path.join(folder, each) for each in names if each.endswith(suffixes)]
    return found


def compiler_stamp() -> str:
    """Identifies the compiler's files without reading them; valid on one machine."""
    found = os.stat(libtriton.__file__)
    return f"{compiler_version()} {triton.__file__} {found.st_size} {found.st_mtime_ns}"


def tools_stamp(arch: str) -> str:
    """Identifies the compiler and, for a CUDA architecture such as ``90``, the assembler by their
    files; valid on one machine."""
    assembler = ptxas_path(GPUTarget("cuda", int(arch), 32)) if arch else None
    if assembler is None:
        return compiler_stamp()
    found = os.stat(assembler)
    return f"{compiler_stamp()} {assembler} {found.st_size} {found.st_mtime_ns}"


def known_digest(digest: str) -> None:
    """Set the digest that a process with the same compiler computed, to save reading its files."""
    if cache.triton_key.cache_info().currsize == 0:
        cache.triton_key = functools.lru_cache(lambda: digest)


def ptxas_path(target: GPUTarget) -> str | None:
    """The path of ptxas for a CUDA target; None for other targets."""
    if target.backend != "cuda":
        return None
    from triton.backends.nvidia.compiler import get_ptxas

    return str(get_ptxas(int(target.arch)).path)


def forget_tools() -> None:
    """Clear what Triton's NVIDIA backend has cached about ptxas."""
    from triton.backends.nvidia import compiler as nvidia

    for each in vars(nvidia).values():
        if hasattr(each, "cache_clear"):
            each.cache_clear()


_knobs_lock = locks.lock()  # protects the knobs that `with_knobs` changes, and `_saved_knobs`
_saved_knobs: list[dict[str, dict[str, Any]]] = []  # by group: the values before each open block


@contextmanager
def with_knobs(values: Mapping[str, Any]) -> Iterator[None]:
    """Set the knobs that change the code to these values, or to their defaults, until the block
    ends. Does nothing if all have these values already."""
    wanted = {each: values.get(".".join(each), default) for each, default in _code_knobs().items()}
    wrong = {
        (group, name): value
        for (group, name), value in wanted.items()
        if getattr(getattr(knobs, group), name) != value
    }
    if not wrong:
        yield
        return
    with _knobs_lock:
        _saved_knobs.append({group: dict(vars(getattr(knobs, group))) for group, _ in wrong})
        try:
            for (group, name), value in wrong.items():
                vars(getattr(knobs, group))[name] = (
                    value  # not by assignment, which also sets the environment variable
                )
            yield
        finally:
            _restore_knobs()


def _restore_knobs() -> None:
    """Undo the latest block of `with_knobs`; the caller holds the lock."""
    for group, state in _saved_knobs[-1].items():
        held = vars(getattr(knobs, group))
        held.clear()
        held.update(state)
    _saved_knobs.pop()


def _forget_knobs() -> None:
    """In a forked child: if another thread had changed the knobs, its blocks never end."""
    while _saved_knobs and not locks.owned(_knobs_lock):
        _restore_knobs()


locks.after_fork(_forget_knobs)


class _Private(threading.local):
    """This thread's Triton cache, and how many blocks of `private_cache` are open."""

    directory: str | None = None
    blocks = 0


_private = _Private()
_private_lock = locks.lock(
    fork_waits=True
)  # protects `_private_users` and `knobs.cache.manager_class`
_private_users = 0


class _PrivateCache(cache.CacheManager):  # type: ignore[misc]
    """Triton's cache for one compile: a directory that is empty at first."""

    def __new__(cls, key: str, override: bool = False, dump: bool = False) -> Any:
        # Other threads of this process use the usual cache.
        if _private.directory is None:
            return cache.FileCacheManager(key, override=override, dump=dump)
        return super().__new__(cls)

    def __init__(self, key: str, override: bool = False, dump: bool = False) -> None:
        assert _private.directory is not None
        self.directory = Path(_private.directory)

    def get_file(self, filename: str) -> str | None:
        path = self.directory / filename
        return str(path) if path.exists() else None

    def put(self, data: Any, filename: str, binary: bool = True) -> str:
        path = self.directory / filename
        path.write_bytes(data if isinstance(data, bytes) else str(data).encode())
        return str(path)

    def get_group(self, filename: str) -> dict[str, str] | None:
        return None

    def put_group(self, filename: str, group: dict[str, str]) -> None:
        """Not needed: `get_group` finds nothing."""


@contextmanager
def private_cache(directory: str) -> Iterator[None]:
    """Use a directory as this thread's Triton cache, until the block ends."""
    outer, _private.directory = _private.directory, directory
    _count_private(1)
    try:
        yield
    finally:
        _private.directory = outer
        _count_private(-1)


def _count_private(step: int) -> None:
    global _private_users
    with _private_lock:
        _private.blocks += step
        _private_users += step
        _set_manager()


def _set_manager() -> None:
    if _private_users:
        vars(knobs.cache)["manager_class"] = _PrivateCache
    else:
        vars(knobs.cache).pop("manager_class", None)


def _forget_private() -> None:
    """In a forked child: the blocks of other threads never end."""
    global _private_users
    others = _private_users - _private.blocks
    _private_users = _private.blocks
    if others:
        _set_manager()


locks.after_fork(_forget_private)
