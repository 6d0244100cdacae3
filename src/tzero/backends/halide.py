"""Halide pipelines for the CPU, written in Python, compiled ahead of time, called with tensors.

    def blur(x): ... ── its text ──► Request ── a worker builds and compiles it ──► shared object
    blur(x, out) ── tensors as Halide's buffers, without a copy ──► called

Enters: a function that builds a pipeline. Leaves: a function of tensors. It must not know where it
is compiled: the builder runs in a worker, which has only its source text. Halide is imported there
only.

Halide's first dimension is the innermost: ``x[i, j]`` is ``x[j, i]`` in torch.
"""

from __future__ import annotations

import ast
import ctypes
import dataclasses
import importlib
import importlib.metadata
import inspect
import json
import os
import shlex
import sys
import textwrap
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, Literal

from tzero import locks, scratch, settings
from tzero.backends import c_source, source_kernel
from tzero.backends.c_source import Port
from tzero.compile.request import Artifact, Request
from tzero.errors import CompileFailed, InvalidArgument, InvalidKernel, ToolchainMissing

__all__ = ["Halide", "HalideFunction", "backend", "function"]

# The name of a dtype -> Halide's code for it and its bits.
_TYPES = {
    "bool": (1, 1),
    **{f"int{bits}": (0, bits) for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": (1, bits) for bits in (8, 16, 32, 64)},
    **{f"float{bits}": (2, bits) for bits in (16, 32, 64)},
    "bfloat16": (4, 16),
}
_SCALARS: dict[str, Any] = {
    "bool": ctypes.c_bool,
    **{f"int{bits}": getattr(ctypes, f"c_int{bits}") for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": getattr(ctypes, f"c_uint{bits}") for bits in (8, 16, 32, 64)},
    "float32": ctypes.c_float,
    "float64": ctypes.c_double,
}
_PLAIN = (bool, int, float, str)
_VARIABLES = ("HL_TARGET", "HL_LLVM_ARGS")
_NAMES = {dtype: name for name, dtype in c_source.DTYPES.items()}


def function(
    *, takes: Mapping[str, str], gives: str | Sequence[str], target: str = "host"
) -> Callable[[Callable[..., Any]], HalideFunction]:
    """Turn a function that builds a Halide pipeline into a function of tensors on the CPU.

    A worker calls the builder with Halide's parameters; it returns a ``Func``, or a tuple of them.
    `takes` and `gives` are the types of inputs and outputs: ``float32[2]`` is a tensor with two
    dimensions, ``float32`` a number. Of its globals the builder may use numbers, strings, and
    modules of Halide and the standard library, because the worker has only its source text.
    `target` is Halide's.

    ::

        @halide.function(takes={"x": "float32[2]", "by": "float32"}, gives="float32[2]")
        def brighten(x, by):
            i, j, out = hl.Var("i"), hl.Var("j"), hl.Func("out")
            out[i, j] = x[i, j] * by
            return out

        brighten(x, 2.0, out)       # the tensors that it writes come last
    """
    given = [gives] if isinstance(gives, str) else list(gives)

    def made(build: Callable[..., Any]) -> HalideFunction:
        if not isinstance(build, FunctionType):
            raise InvalidKernel(
                kernel=repr(build), problem="it is no plain function", advice="Write it with def."
            )
        inputs, outputs = _ports(build, takes, given)
        program = {
            "source": _source(build),
            "around": _around(build),
            "name": build.__name__,
            "inputs": inputs,
            "outputs": outputs,
            "target": target,
        }
        return HalideFunction(build.__name__, inputs, outputs, json.dumps(program, sort_keys=True))

    return made


def _wrong(build: Callable[..., Any], problem: str, advice: str) -> InvalidKernel:
    return InvalidKernel(kernel=build.__name__, problem=problem, advice=advice)


def _ports(
    build: FunctionType, takes: Mapping[str, str], gives: Sequence[str]
) -> tuple[list[Port], list[Port]]:
    rule = "Write 'float32[2]' for a tensor of two dimensions, 'float32' for a number."

    def port(name: str, text: str) -> Port:
        try:
            found = Port.read(name, text)
        except ValueError:
            found = Port(name, "", None)
        if found.dtype not in _TYPES:
            raise _wrong(build, f"{name!r} is said to be {text!r}", rule)
        return found

    parameters = inspect.signature(build).parameters
    if list(parameters) != list(takes):
        problem = f"its parameters are {list(parameters)}, and takes names {list(takes)}"
        raise _wrong(build, problem, "Name each of them, in order.")
    inputs = [port(name, text) for name, text in takes.items()]
    names = ["out"] if len(gives) == 1 else [f"out{k}" for k in range(len(gives))]
    outputs = [port(name, text) for name, text in zip(names, gives, strict=True)]
    if not outputs or any(each.rank is None for each in outputs):
        raise _wrong(build, "its results are not tensors", rule)
    return inputs, outputs


def _source(build: FunctionType) -> str:
    """The source text of a builder, normalized: no comments, decorators, annotations."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(build)))
    except (OSError, SyntaxError) as error:
        advice = "Define it with def, in a file or a notebook."
        raise _wrong(build, f"its source cannot be read ({error})", advice) from error
    body = tree.body[0]
    if not isinstance(body, ast.FunctionDef):
        raise _wrong(build, "it is no plain function", "Write it with def.")
    body.decorator_list.clear()
    body.returns = None
    for each in body.args.args:
        each.annotation = None
    body.args.defaults.clear()
    return ast.unparse(body)


def _around(build: FunctionType) -> dict[str, Any]:
    """The globals and closure variables that a builder uses: modules by name, plain values."""
    found = inspect.getclosurevars(build)
    around: dict[str, Any] = {}
    for name, value in sorted({**found.globals, **found.nonlocals}.items()):
        if isinstance(value, ModuleType):
            root = value.__name__.partition(".")[0]
            if root == "halide" or root in sys.stdlib_module_names:
                around[name] = {"module": value.__name__}
                continue
        elif type(value) in _PLAIN:
            around[name] = {"value": value}
            continue
        raise _wrong(
            build,
            f"it uses {name!r}, a {type(value).__name__}, from outside",
            "A worker has only its text: write it inside, or pass it as a number.",
        )
    return around


class HalideFunction:
    """A Halide pipeline, called with tensors; `function` makes it. The first call or `precompile`
    compiles it.

    ::

        brighten(x, 2.0, out)
    """

    def __init__(
        self, name: str, inputs: Sequence[Port], outputs: Sequence[Port], program: str
    ) -> None:
        self.__name__ = name
        self._ports = [*inputs, *outputs]
        self._program = program
        self._call: Any = None
        self._keeps: tuple[Any, ...] = ()
        self._said: list[str] = []  # messages of Halide's runtime since the last error
        self._loading = locks.lock()  # protects `_call` while it is loaded

    def request(self) -> Request:
        """The request that compiles it."""
        version, places = _tools()
        toolchain = c_source.toolchain_of(version, backend.name)
        return Request(backend.name, self.__name__, self._program, toolchain, places)

    def precompile(self) -> Any:
        """Start compiling in the background; returns a future."""
        from tzero.compile.service import service

        return service().submit(self.request())

    def __call__(self, *args: Any) -> None:
        """Run it on tensors; the outputs come last."""
        source_kernel.check_count(self.__name__, self._ports, args)
        values = [self._value(port, arg) for port, arg in zip(self._ports, args, strict=True)]
        call = self._call or self._load()
        if call(*values) != 0:
            words, self._said = self._said, []
            raise RuntimeError(f"{self.__name__}: {' '.join(words).strip() or 'Halide failed'}")

    def _value(self, port: Port, arg: Any) -> Any:
        import torch

        declared = f"{port.dtype}" if port.rank is None else f"{port.dtype}[{port.rank}]"
        problem = ""
        if port.rank is None:
            number = c_source.Parameter(port.name, _NAMES[port.dtype], port.dtype)
            return _SCALARS[port.dtype](source_kernel.check(self.__name__, number, "cpu")(arg))
        if not isinstance(arg, torch.Tensor):
            problem = f"is of type {type(arg).__name__}, and is declared as {declared!r}"
        elif arg.dtype is not getattr(torch, port.dtype) or arg.dim() != port.rank:
            kind = str(arg.dtype).removeprefix("torch.")
            problem = f"is a {kind}[{arg.dim()}], and is declared as {declared!r}"
        elif not arg.is_cpu:
            problem = f"is on {arg.device}, and Halide runs on the CPU"
        elif max(*arg.size(), *map(abs, arg.stride()), 0) >= 1 << 31:
            problem = "has a dimension of 2**31 elements or more, which Halide cannot count"
        if problem:
            raise InvalidArgument(
                kernel=self.__name__,
                argument=port.name,
                problem=problem,
                advice="Pass what is declared, or declare it otherwise.",
            )
        return ctypes.byref(_Buffer.of(arg, *_TYPES[port.dtype]))

    def _load(self) -> Any:
        import torch

        from tzero.compile.service import service
        from tzero.cpu import loading

        artifact = service().compile(self.request())
        with self._loading:
            if self._call is None:
                library = loading.open_object(artifact.files["pipeline.so"], self.__name__)
                handler = _HANDLER(lambda context, text: self._said.append(text.decode()))
                library.halide_set_error_handler(handler)  # the default handler aborts the process
                library.halide_set_num_threads(torch.get_num_threads())
                self._keeps = (library, handler)
                self._call = library.tz_pipeline
        return self._call

    def __repr__(self) -> str:
        return f"<Halide function {self.__name__}({', '.join(p.name for p in self._ports)})>"


_HANDLER = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_char_p)


class _Dimension(ctypes.Structure):
    """``halide_dimension_t`` of HalideRuntime.h."""

    _fields_ = (
        ("min", ctypes.c_int32),
        ("extent", ctypes.c_int32),
        ("stride", ctypes.c_int32),
        ("flags", ctypes.c_uint32),
    )


class _Buffer(ctypes.Structure):
    """``halide_buffer_t`` of HalideRuntime.h."""

    _fields_ = (
        ("device", ctypes.c_uint64),
        ("device_interface", ctypes.c_void_p),
        ("host", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("dimensions", ctypes.c_int32),
        ("dim", ctypes.POINTER(_Dimension)),
        ("padding", ctypes.c_void_p),
    )

    @staticmethod
    def of(tensor: Any, code: int, bits: int) -> _Buffer:
        """A view of a tensor's memory, with the last dimension first. A dimension of size 1 gets
        the stride of a dense tensor."""
        rows, dense = [], 1
        for size, stride in zip(reversed(tensor.size()), reversed(tensor.stride()), strict=True):
            rows.append(_Dimension(0, size, stride if size > 1 else dense, 0))
            dense *= max(size, 1)
        made = _Buffer(host=tensor.data_ptr(), code=code, bits=bits, lanes=1, dimensions=len(rows))
        made.dim = (_Dimension * len(rows))(*rows)
        return made


# -- compiling ------------------------------------------------------------------------------------


def _version() -> str:
    try:
        return importlib.metadata.version("halide")
    except importlib.metadata.PackageNotFoundError as error:
        raise ToolchainMissing(
            backend=backend.name,
            searched=["the halide package"],
            advice="Run `pip install 'tzero-runtime[halide]'`.",
        ) from error


class Halide:
    """The backend ``halide``: a shared object with the pipeline as ``tz_pipeline``, and with
    Halide's runtime.

    ::

        backend.compile(brighten.request()).files["pipeline.so"]
    """

    name = "halide"
    runs: Literal["process", "thread"] = "process"

    def warm(self) -> None:
        """Import Halide."""
        _version()
        importlib.import_module("halide")

    def compile(self, request: Request) -> Artifact:
        """Build the pipeline, compile it with Halide, and link it."""
        _version()
        with scratch.folder() as folder:
            asked = {name: request.environment.get(name) for name in _VARIABLES}
            with settings.applied(asked):  # Halide reads them in this process
                _write_object(request, os.path.join(folder, "pipeline.o"))
            linker = shlex.split(request.environment["CC"])
            words = [*linker, "-shared", "-o", "pipeline.so", "pipeline.o"]
            words += ["-lpthread", "-ldl", "-lm"]
            environment = c_source.environment_of(request, self.name)
            c_source.run(request.name, words, folder, environment)
            return Artifact({"pipeline.so": Path(folder, "pipeline.so").read_bytes()})

    def for_this_machine(self, request: Request) -> Request:
        """The request with Halide and the linker of this machine, if they are the same."""
        version, places = _tools()
        c_source.check_tools(request, version, self.name)
        return dataclasses.replace(request, environment=places)


def _tools() -> tuple[str, dict[str, str]]:
    """The versions of Halide and of the linker, and the environment of a request."""
    from tzero.cpu import toolchain  # late: it imports triton

    linker = toolchain.find(settings.now())
    places = {"CC": shlex.join(linker.command), **settings.compiler_variables(backend.name)}
    return f"halide {_version()} {linker.version} {linker.fingerprint}", places


def _write_object(request: Request, path: str) -> None:
    hl = importlib.import_module("halide")
    program = json.loads(request.program)
    try:
        _compile(hl, program, path)
    except Exception as error:  # raised by the builder or by Halide; reported with its message
        problem = f"{type(error).__name__}: {error}".strip()
        raise CompileFailed(
            kernel=request.name, problem=problem, trace=traceback.format_exc()
        ) from error


def _compile(hl: Any, program: dict[str, Any], path: str) -> None:
    world: dict[str, Any] = {"__name__": "tzero_halide"}
    for name, each in program["around"].items():
        is_module = "module" in each
        world[name] = importlib.import_module(each["module"]) if is_module else each["value"]
    exec(compile(program["source"], f"<the builder of {program['name']}>", "exec"), world)
    inputs = [Port(*port) for port in program["inputs"]]
    parameters = [_parameter(hl, port) for port in inputs]
    made = world[program["name"]](*parameters)
    funcs = list(made) if isinstance(made, (tuple, list)) else [made]
    outputs = [Port(*port) for port in program["outputs"]]
    if len(funcs) != len(outputs):
        raise ValueError(f"it returns {len(funcs)} Funcs, and is said to give {len(outputs)}")
    for port, func in zip(outputs, funcs, strict=True):
        said, wanted = list(_said(hl, func)), f"{port.dtype}[{port.rank}]"
        if said != [wanted]:
            raise ValueError(f"it returns {', '.join(said)}, and is said to give {wanted}")
    target = program["target"]
    chosen = hl.get_host_target() if target == "host" else hl.Target(target)
    kind = hl.OutputFileType.object
    hl.Pipeline(funcs).compile_to({kind: path}, parameters, "tz_pipeline", chosen)


def _type(hl: Any, dtype: str) -> Any:
    code, bits = _TYPES[dtype]
    makers = {0: hl.Int, 1: hl.UInt, 2: hl.Float, 4: getattr(hl, "BFloat", None)}
    return hl.Bool() if dtype == "bool" else makers[code](bits)


def _parameter(hl: Any, port: Port) -> Any:
    kind = _type(hl, port.dtype)
    if port.rank is None:
        return hl.Param(kind, port.name)
    return hl.ImageParam(kind, port.rank, port.name)


def _said(hl: Any, func: Any) -> Iterator[str]:
    """The types that a Func gives, written like those of a `Port`."""
    known = {str(_type(hl, name)): name for name in _TYPES if name != "bfloat16"}
    for each in func.types():
        yield f"{known.get(str(each), str(each))}[{func.dimensions()}]"


backend = Halide()
