"""Compiles a `Request` for a Triton kernel; this is what runs in a compile worker.

Enters: a `Request` that `write_request` wrote. Leaves: an `Artifact`: the files that Triton made,
its metadata, and its warnings. It must not know the process that asked.
"""

from __future__ import annotations

import contextlib
import json
import shlex
import threading
import warnings
from collections import namedtuple
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tzero import scratch, settings
from tzero.adapters import triton_compile, triton_launch
from tzero.adapters.triton_launch import ASTSource, GPUTarget
from tzero.backends.triton.rebuild import Maker, NotFaithful
from tzero.backends.triton.write_request import PATH_VARIABLES, STAMP
from tzero.cache.digest import canonical, parse
from tzero.compile.request import Artifact, Request
from tzero.compile.worker import inside

__all__ = ["compile", "warm"]


def compile(asked: Request) -> Artifact:
    """Compile a request, using nothing but the request, and no cache.

    ::

        artifact = compile(request(source, target))
        artifact.files["add.ptx"]
    """
    program = parse(asked.program)
    _same_compiler(asked)
    target = GPUTarget(*program["target"])
    with _as_asked(program, asked.environment), _recorded() as said:
        maker = Maker(_with_files(program["tables"], program["files"]))
        function = maker.function(0)
        name = program["name"]
        if name is not None:
            function._repr = lambda _: name
        signature = {each: _read_type(written) for each, written in program["signature"]}
        # In the order of the arguments: Triton's own digest depends on it.
        constants = {at: maker.value(each) for at, each in sorted(program["constants"].items())}
        attributes = dict(sorted(program["attributes"].items()))
        source = ASTSource(function, signature, constants, attributes)
        options = {k: v for k, v in program["options"].items() if v is not None}
        names = [name for name, _ in options["extern_libs"]]
        options["extern_libs"] = tuple(zip(names, program["libraries"], strict=True))
        with (
            scratch.folder("tzero-triton-") as folder,
            triton_compile.private_cache(folder),
        ):
            kernel = triton_launch.compile_here(source, target=target, options=options)
            group = {each: Path(path).read_bytes() for each, path in kernel.metadata_group.items()}
    order = list(group)  # of Triton's stages, first to last
    about = next(each for each in order if each.endswith(".json"))
    metadata = json.loads(group.pop(about))
    metadata.pop("cpu_seal", None)  # of this user on this machine; loading adds one
    facts = {
        "kernel": source.name,
        "hash": kernel.hash,
        "signature": canonical(program["signature"]),
        "order": order,
        "metadata": metadata,
        "warnings": said,
    }
    return Artifact(group, facts)


def _with_files(tables: dict[str, Any], files: list[str]) -> dict[str, Any]:
    """The tables with the name of the file of each function, which messages and line tables
    contain."""
    for row, file in zip(tables["functions"], files, strict=True):
        row["file"] = file
    return tables


def _read_type(written: Any) -> Any:
    if isinstance(written, dict):
        kind = namedtuple("Arguments", written["fields"])  # type: ignore[misc]
        return kind(*map(_read_type, written["types"]))
    return tuple(map(_read_type, written)) if isinstance(written, tuple) else written


def _same_compiler(asked: Request) -> None:
    """Raise `NotFaithful` if the request was written with another Triton."""
    ours = triton_compile.compiler_version()
    theirs = parse(asked.toolchain)
    if theirs["triton"] == ours and asked.environment.get(STAMP) == triton_compile.compiler_stamp():
        triton_compile.known_digest(theirs["compiler"])
        return
    if theirs["compiler"] != triton_compile.compiler_digest():
        raise NotFaithful(
            f"the request was written with Triton {theirs['triton']}, and the worker has another "
            f"Triton, {ours}"
        )


@contextlib.contextmanager
def _as_asked(program: Mapping[str, Any], environment: Mapping[str, str]) -> Iterator[None]:
    """Apply the environment, knobs and settings of the process that asked, until the block ends."""
    now = settings.variables()
    # A variable that affects the result has the value that it has there, or is unset.
    wanted: dict[str, str | None] = dict.fromkeys(triton_compile.code_environment())
    wanted |= {name: environment.get(name) for name in PATH_VARIABLES} | program["variables"]
    moved = any(now.get(name) != wanted[name] for name in PATH_VARIABLES if "PTXAS" in name)
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
    """Collect the warnings of this thread; those of other threads are shown as usual. A worker
    collects all; in a process with other work the filters decide, because another thread may be
    changing them."""
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
    """Import everything that a compile needs, before the first compile.

    >>> warm()
    """
    triton_compile.warm()
