"""C++ for the CPU, launched over a grid.

    source ── kernel ──► Request ── compile ──► shared object ── load ──► pool of threads

Enters: C++ text. Leaves: a kernel whose compiled form has the same interface as Triton kernels
compiled for the CPU (`cpu/runtime/launch.h`), so it runs on the same threads and the same native
code launches it. It must not know how a grid is distributed over threads. It imports `tzero.cpu`
late, because that imports triton.

A kernel is a function whose last parameter is a ``tzero::Program``: its place in the grid.
"""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import shlex
import sys
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Literal

from tzero import settings
from tzero.backends import c_source, source_kernel
from tzero.compile.request import Artifact, Request
from tzero.errors import CompileFailed, CompilerMissing, InvalidKernel, ToolchainMissing

if TYPE_CHECKING:
    from tzero.cpu import pool
    from tzero.cpu.toolchain import Toolchain

__all__ = ["Cpp", "CppKernel", "backend", "kernel"]

_INTERFACE = Path(__file__).parent.parent / "cpu" / "runtime" / "launch.h"
_WHAT = "the kernel as `void name(..., tzero::Program program) { ... }`"

_STANDARD = "-std=gnu++17"

_PRELUDE = """\
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <exception>

namespace tzero {
// The position of one program in the grid, and the sizes of the grid.
struct Program {
    int32_t id[3];
    int32_t grid[3];
};
}
"""

_SHIM = """
namespace {{
struct tz_arguments {{
{members}
}};
}}

extern "C" __attribute__((visibility("default"))) void
tz_kernel(const tz_launch *launch, int64_t first, int64_t last, void *)
{{
    const tz_arguments &a = *static_cast<const tz_arguments *>(launch->args);
    (void)a;
    const int32_t *grid = launch->grid;
    for (int64_t at = first; at < last; ++at) {{
        if (__atomic_load_n(&launch->status->raised, __ATOMIC_RELAXED)) return;
        const ::tzero::Program program{{
            {{int32_t(at % grid[0]), int32_t(at / grid[0] % grid[1]),
              int32_t(at / grid[0] / grid[1])}},
            {{grid[0], grid[1], grid[2]}}}};
        const char *what = nullptr;
        try {{
            ::{name}({arguments}program);
            continue;
        }} catch (const std::exception &error) {{
            what = strdup(error.what());
        }} catch (...) {{
            what = strdup("an exception that is no std::exception");
        }}
        // Report the first failure, as tz_fail of kernel.h does; the offset field holds its text.
        tz_status *status = launch->status;
        if (__atomic_exchange_n(&status->raised, 1, __ATOMIC_ACQ_REL)) {{
            free(const_cast<char *>(what));
            return;
        }}
        status->site = 0;
        status->param = -1;
        status->offset = reinterpret_cast<intptr_t>(what);
        for (int k = 0; k < 3; k++) status->pid[k] = program.id[k];
        return;
    }}
}}
"""

_WORK = 131072
"""The default cost of one program, in element operations: enough for a thread of its own."""


def kernel(
    source: str,
    *,
    entry: str | None = None,
    headers: Mapping[str, str] | None = None,
    flags: Sequence[str] = (),
    work: int = _WORK,
) -> CppKernel:
    """A kernel in C++ that runs on the CPU.

    `source` defines a function whose last parameter is a ``tzero::Program``; the others are
    numbers, or pointers to numbers for tensors. `entry` names it if there are several. `headers`
    maps the name in an ``#include`` to its text; `flags` go to the compiler. `work` is the cost of
    one program in element operations: cheap programs share a thread.

    >>> k = kernel('''
    ... void scale(const float *x, float *out, int64_t n, float by, tzero::Program program) {
    ...     for (int64_t i = program.id[0]; i < n; i += program.grid[0]) out[i] = by * x[i];
    ... }
    ... ''')
    >>> k
    <cpp kernel scale>

    It is launched as ``k[(4,)](x, out, x.numel(), 2.0)``.
    """
    function = c_source.choose(source, entry, _is_kernel, _WHAT)
    if function.head.split()[-1] != "void":
        raise InvalidKernel(
            kernel=function.name,
            problem=f"it is declared as {function.head!r}",
            advice="A kernel returns void; results go into tensors.",
        )
    program = c_source.Program(source, headers or {}, tuple(flags))
    return CppKernel(function, program, work)


def _is_kernel(function: c_source.Function) -> bool:
    last = function.parameters[-1] if function.parameters else None
    return (
        last is not None and "Program" in f"{last.spelled} {last.name}".replace("::", " ").split()
    )


class CppKernel(source_kernel.Kernel):
    """A C++ kernel for the CPU; `kernel` makes it.

    ::

        k[(4,)](x, out, x.numel(), 2.0)
    """

    place = "cpu"
    kinds = ("so", "o")

    def __init__(self, function: c_source.Function, program: c_source.Program, work: int) -> None:
        taken = c_source.Function(function.name, function.head, function.parameters[:-1])
        super().__init__(function, source_kernel.checked_parameters(taken, source_kernel.RULE))
        own = f"{function.name}.cpp"
        headers = c_source.beside(program.headers, own, program.text)
        self._program = c_source.Program(_text(taken, own), headers, program.flags)
        self._work = work

    def request(self, kind: str = "so") -> Request:
        """The request that compiles it, with the current compiler."""
        target = "" if kind == "so" else kind
        program = dataclasses.replace(self._program, target=target)
        return request_for(backend.name, self.__name__, program)

    def device(self) -> tuple[str, int]:
        """The CPU, with its only stream."""
        return "cpu", 0

    def load(
        self, artifact: Artifact, device: Any, options: Mapping[str, Any]
    ) -> source_kernel.Loaded:
        """Load the shared object, and make a launcher like those of Triton kernels on the CPU."""
        from tzero.cpu import loading, pool
        from tzero.cpu.triton_compat import cache_directory

        pool.load(cache_directory())  # before the kernel: it resolves libm's functions through it
        library = loading.open_object(artifact.files["kernel.so"], self.__name__)
        signature = {each.name: each.declared.type for each in self.params}
        src = SimpleNamespace(signature=signature, attrs={}, fn=self)
        metadata = SimpleNamespace(
            name=self.__name__,
            cpu_sites=[],
            cpu_check=False,
            cpu_params=[_tag(type_) for type_ in signature.values()],
            cpu_scratch=0,
            cpu_work=self._work,
            launch_cooperative_grid=False,
            shared=0,
        )
        address = ctypes.cast(library.tz_kernel, ctypes.c_void_p).value
        assert address is not None  # an exported function has an address
        run = _launcher()(src, metadata)
        asm = {"cpp": self._program.text, "so": artifact.files["kernel.so"]}
        loaded = source_kernel.Loaded(self.__name__, src, metadata, run, address, asm, library)
        # A launch holds a reference to its kernel, so the object is unused when this runs.
        weakref.finalize(loaded, loading.close_object, library).atexit = False
        return loaded


@functools.cache
def _launcher() -> type:
    """The launcher of Triton kernels on the CPU, with an error for C++ exceptions."""
    from tzero.cpu.launcher import Launcher

    class CppLauncher(Launcher):
        is_sealed = False  # the metadata is made in this process, the object was verified

        def _failed_check(self, status: pool.Status, args: Sequence[Any]) -> Exception:
            program = (status.pid[0], status.pid[1], status.pid[2])
            text = "no memory for its message"
            if status.offset:
                text = ctypes.string_at(status.offset).decode(errors="replace")
                _free(ctypes.c_void_p(status.offset))
            return RuntimeError(
                f"{self._name}: program {program} threw: {text}. What the launch wrote is "
                "incomplete."
            )

    return CppLauncher


_free = ctypes.CDLL(None).free


def _tag(type_: str) -> str:
    """The name of a type in the metadata of Triton kernels on the CPU."""
    if type_[0] == "*":
        return "ptr"
    return type_.replace("u", "i").replace("fp", "f")


def _text(function: c_source.Function, source: str) -> str:
    """The text that is compiled, which includes the kernel's own: the interface, and a function
    that calls the kernel. It needs no header of tzero, so the cache key covers all of it."""
    interface = _INTERFACE.read_text(encoding="utf-8")
    members = [f"    {each.spelled} {each.name};" for each in function.parameters]
    shim = _SHIM.format(
        members="\n".join(members),
        name=function.name,
        arguments="".join(f"a.{each.name}, " for each in function.parameters),
    )
    return f'{_PRELUDE}{interface}\n#include "{source}"\n{shim}'


# -- compiling ------------------------------------------------------------------------------------


def compiler(name: str) -> Toolchain:
    """The C++ compiler that the current settings choose; `name` is the backend, for errors."""
    from tzero.cpu import toolchain  # which imports triton

    try:
        return toolchain.find(settings.now())
    except CompilerMissing as error:
        raise ToolchainMissing(
            backend=name,
            searched=error.searched,
            advice="Install g++ or clang, or run `pip install 'tzero-runtime[zig]'` for a compiler "
            "that comes as a wheel, or set TZERO_CC to a compiler command.",
        ) from error


def request_for(name: str, kernel: str, program: c_source.Program) -> Request:
    """The request for a shared object from a C++ program, to the backend `name`."""
    found = compiler(name)
    # With -x c++ a C compiler compiles C++, but does not link the C++ library.
    library = [] if _is_zig(found) else ["-lc++" if sys.platform == "darwin" else "-lstdc++"]
    known = [flag for flag in found.flags if not flag.startswith("-std=")]
    flags = (*known, _STANDARD, "-O3", "-ffp-contract=fast", *program.flags, *library)
    return Request(
        name,
        kernel,
        c_source.Program(program.text, program.headers, flags, program.target).written(),
        c_source.toolchain_of(f"{found.version} {found.fingerprint}"),
        _places(found),
    )


def _is_zig(found: Toolchain) -> bool:
    return found.command[-2:] == ("ziglang", "cc")


def _places(found: Toolchain) -> dict[str, str]:
    """The environment of a request: where the compiler is, and the variables that it reads."""
    command = [*found.command[:-1], "c++"] if _is_zig(found) else found.command
    return {"CXX": shlex.join(command), **settings.compiler_variables()}


def for_this_machine(request: Request) -> Request:
    """A request of `request_for`, made on another machine, with the compiler of this one."""
    found = compiler(request.backend)
    c_source.check_tools(request, f"{found.version} {found.fingerprint}")
    return dataclasses.replace(request, environment=_places(found))


def shared_object(request: Request) -> bytes:
    """Compile a request of `request_for`: a shared object, or an object if its target is ``o``."""
    program = c_source.Program.read(request.program)
    compiler = shlex.split(request.environment["CXX"])

    kind = "-c" if program.target == "o" else "-shared"
    command = [*compiler, kind, "-I.", "-x", "c++", "tzero-main.cpp", "-x", "none"]
    command += ["-o", "tzero.so", *program.flags]
    try:
        return c_source.build(request, program, command, source="tzero-main.cpp", made="tzero.so")
    except CompileFailed as error:
        if "cc1plus" in error.problem or "cannot find -lstdc++" in error.problem:
            raise ToolchainMissing(
                backend=request.backend,
                searched=[f"the C++ half of {compiler[0]}"],
                advice="Install g++ (Debian: apt-get install g++), or set TZERO_CC to a compiler "
                "that has it.",
            ) from error
        raise


class Cpp:
    """The backend ``cpp``: a shared object with one function, ``tz_kernel``.

    ::

        backend.compile(k.request()).files["kernel.so"]
    """

    name = "cpp"
    runs: Literal["process", "thread"] = "thread"

    def compile(self, request: Request) -> Artifact:
        """Run the compiler."""
        kind = c_source.Program.read(request.program).target or "so"
        return Artifact({f"kernel.{kind}": shared_object(request)})

    def source(self, request: Request) -> str:
        """The texts of the program."""
        return c_source.source_of(request)

    def for_this_machine(self, request: Request) -> Request:
        """The request with the compiler of this machine, if it is the same."""
        return for_this_machine(request)


backend = Cpp()
