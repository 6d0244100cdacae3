"""Compiled kernels in bundles: their keys, and how they are found and collected.

::

    Written ── content ──► digest ── the bundles in use ──► Artifact, or a miss and its reason
       └ used, with its Artifact ──► what this process covers; with TZERO_COLLECT, a file there

Enters: kernels that were written down, and what they compiled to. Leaves: artifacts from bundles.
It must not know how a bundle is stored.

A key is made of content only: source, constants, types, options and target, the versions of tzero
and Triton, and for the CPU its features, its C library and the sources of the backend. The version
of Python is part of it where Python runs a function while the kernel compiles; of all other source
Python has only the syntax tree, and that is Triton's to read. No compiler is looked for, and no
path is part of a key: another installation has the same ones. Which compiler made an artifact is
not part of it either: who loads a bundle wants what is in it.
"""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import sys
import weakref
from collections.abc import Mapping
from typing import Any

from tzero import locks, settings
from tzero.adapters import triton_compile, triton_modules
from tzero.adapters.triton_launch import CompiledKernel
from tzero.backends.triton.write_request import NAME, Written, written
from tzero.cache.bundle import Bundle, Item, write
from tzero.cache.digest import SCHEMA, canonical, cpu_features, parse
from tzero.cache.in_use import bundles
from tzero.compile.request import Artifact, Malformed, Request
from tzero.events import Event, emit
from tzero.versions import TZERO

__all__ = [
    "KERNEL",
    "MODULE",
    "POOL",
    "REFUSED",
    "content",
    "covered",
    "covers_any",
    "described",
    "difference",
    "facts_of",
    "find",
    "items",
    "refused",
    "seen",
    "used",
]

KERNEL, POOL, MODULE = "kernel", "pool", "module"
"""The kinds of entries in a bundle. A module is C code that Triton compiles to launch on CUDA."""

REFUSED = "refused"
"""The kind of what is collected for a kernel that no bundle can have; it goes into none."""

_covered: dict[str, Written] = {}  # by `content`; only added to
_by_triton: weakref.WeakKeyDictionary[CompiledKernel, Mapping[str, Any]] = (
    weakref.WeakKeyDictionary()
)
"""What Triton has compiled itself, with the options. It is written down when someone asks."""
_noting = locks.lock()  # protects `_by_triton`
_with_pool: weakref.WeakSet[Bundle] = weakref.WeakSet()  # bundles whose thread pool was offered


def facts_of(made: Written) -> dict[str, str]:
    """The part of a key that is not in the program: versions, and for the CPU what its code needs.

    ::

        facts_of(made)["target"]  # 'cuda:90'
    """
    facts = {
        "target": f"{made.target.backend}:{made.target.arch}",
        "triton": triton_compile.compiler_version(),
        "tzero": f"{TZERO} {SCHEMA}",
    }
    if _RUN_BY_PYTHON in made.parts["tables"]:
        facts["python"] = f"{sys.version_info[0]}.{sys.version_info[1]}"
    return facts if made.target.backend != "cpu" else {**facts, **_cpu_facts()}


_RUN_BY_PYTHON = '"kind":"constexpr"'
"""In tables with a function that runs while a kernel compiles; no text in them has plain quotes."""


@functools.cache
def _cpu_facts() -> dict[str, str]:
    """What an object for the CPU depends on besides: the instructions of this machine, since it is
    compiled for these; the C library that it is linked with; how the backend launches it."""
    from tzero.cpu.compiler import backend_digest

    return {
        "cpu": f"{platform.machine()} {_short(cpu_features())}",
        "libc": " ".join(platform.libc_ver()) or sys.platform,
        "backend": backend_digest()[:16],
    }


def _short(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def content(made: Written) -> str:
    """The key of a kernel in a bundle.

    ::

        bundle.get("kernel", content(made))
    """
    program = ",".join(f'"{key}":{text}' for key, text in sorted(made.parts.items()))
    versions = canonical(facts_of(made))
    return Request(NAME, made.name, f"{{{program}}}", versions).digest


def _pool_digest(facts: Mapping[str, str]) -> str:
    from tzero.cpu import pool

    return hashlib.sha256(canonical([POOL, pool.identity(), dict(facts)]).encode()).hexdigest()


# -- finding ---------------------------------------------------------------------------------------


def find(made: Written) -> Artifact | None:
    """What the bundles in use have for a kernel; None if there are none, or for a miss, with an
    event that has the reason.

    ::

        artifact = find(made) or service().compile(requested(made))
    """
    held = bundles()
    if not held:
        return None
    digest = content(made)
    reasons = []
    for each in held:
        found = _held_by(each, digest, made)
        if isinstance(found, Artifact):
            return found
        reasons.append(found)
    emit(Event("cache", made.name, f"no bundle has it: {'; '.join(reasons)}"))
    return None


def _held_by(bundle: Bundle, digest: str, made: Written) -> Artifact | str:
    """What a bundle has for a kernel, or why that is nothing."""
    payload = bundle.get(KERNEL, digest)
    if payload is None:
        is_listed = any((each.kind, each.digest) == (KERNEL, digest) for each in bundle)
        return f"its entry in {bundle.path} is damaged" if is_listed else _why_not(bundle, made)
    try:
        artifact = Artifact.decode(payload)
    except Malformed as error:
        return f"its entry in {bundle.path} is not used: {error}"
    if made.target.backend == "cpu" and not _offers_pool(bundle):
        what = "has it without the CPU's thread pool, whose entry is missing or damaged"
        return f"{bundle.path} {what}"
    return artifact


def _offers_pool(bundle: Bundle) -> bool:
    """Give the thread pool of a bundle to the CPU backend; whether the bundle has it."""
    from tzero.cpu import pool

    if bundle in _with_pool:
        return True
    payload = bundle.get(POOL, _pool_digest(_cpu_facts()))
    if payload is None:
        return False
    pool.offer(payload)
    _with_pool.add(bundle)
    return True


def _why_not(bundle: Bundle, made: Written) -> str:
    """Why a bundle has no entry for a kernel."""
    mine = [each for each in bundle if each.kind == KERNEL and each.name == made.name]
    if not mine:
        return f"{bundle.path} has no {made.name!r}"
    ours = facts_of(made)
    for fact, here in ours.items():
        there = sorted({each.facts.get(fact, "unknown") for each in mine})
        if here not in there:
            return f"{bundle.path} has it for {fact} {', '.join(there)}, and here it is {here}"
    return f"{bundle.path} has it with other source, constants, types or options"


# -- collecting ------------------------------------------------------------------------------------


def used(made: Written, artifact: Artifact) -> None:
    """Note that this process uses a kernel.

    ::

        used(made, artifact)
    """
    digest = content(made)
    _covered[digest] = made
    folder = settings.now().collect
    if folder is not None:
        _collect(folder, digest, items(made, artifact))


def refused(name: str, reason: str) -> None:
    """Note that this process uses a kernel that no bundle can have.

    ::

        refused("add", "it prints while it compiles (static_print)")
    """
    folder = settings.now().collect
    if folder is not None:
        digest = hashlib.sha256(canonical([REFUSED, name, reason]).encode()).hexdigest()
        _collect(folder, digest, [Item(REFUSED, digest, name, {"reason": reason}, b"")])


def seen(kernel: CompiledKernel, options: Mapping[str, Any]) -> None:
    """Note that Triton has compiled a kernel itself.

    ::

        seen(kernel, {"num_warps": 4})
    """
    with _noting:
        _by_triton[kernel] = options


def covered() -> tuple[Written, ...]:
    """The kernels that this process uses, in the order of their first use, those that Triton has
    compiled itself last.

    >>> covered() == covered()
    True
    """
    found = dict(_covered)
    with _noting:
        plain = list(_by_triton.items())
    for kernel, options in plain:
        made = written(kernel.src, kernel.metadata.target, options)
        if isinstance(made, Written):
            found.setdefault(content(made), made)
    return tuple(found.values())


def covers_any() -> bool:
    """Whether this process uses any kernel; unlike `covered`, it writes nothing down.

    >>> covers_any() == bool(covered())
    True
    """
    return bool(_covered) or len(_by_triton) > 0


def difference(made: Written) -> str:
    """How a kernel differs from the nearest of the same name that this process uses; empty if it
    uses none.

    ::

        difference(made)  # "argument 'n' is i32, and i32 divisible by 16 was covered"
    """
    mine = described(made)
    found = [
        [
            f"{what} is {mine.get(what, 'absent')}, and {theirs.get(what, 'absent')} was covered"
            for what in dict.fromkeys((*mine, *theirs))
            if mine.get(what) != theirs.get(what)
        ]
        for each in covered()
        if each.name == made.name
        for theirs in (described(each),)
    ]
    if not found:
        return ""
    near: list[str] = min(found, key=len)
    return "; ".join(near) or "Triton has compiled the same, and no cache has it"


def described(made: Written) -> dict[str, str]:
    """What distinguishes kernels of one name, in words.

    ::

        described(made)["argument 'n'"]  # 'i32 divisible by 16'
    """
    read = {name: parse(made.parts[name]) for name in ("signature", "attributes", "constants")}
    names = [name for name, _ in read["signature"]]
    aligned = {path[0] for path, each in read["attributes"].items() if each}
    words = {
        f"argument {name!r}": f"{kind}{' divisible by 16' if at in aligned else ''}"
        for at, (name, kind) in enumerate(read["signature"])
        if kind != "constexpr"
    }
    for path, value in read["constants"].items():
        what = "argument" if len(path) == 1 else f"item {path[1:]} of argument"
        words[f"{what} {names[path[0]]!r}"] = f"the constant {value!r}"
    options = parse(made.parts["options"])
    words |= {f"option {name!r}": repr(value) for name, value in options.items()}
    words["the target"] = f"{made.target.backend}:{made.target.arch}"
    words["the source"] = _short(made.parts["tables"])
    return words


def items(made: Written, artifact: Artifact) -> list[Item]:
    """What a bundle needs for a kernel.

    ::

        bundle.write("app.tzb", items(made, artifact))
    """
    facts = facts_of(made)
    found = [Item(KERNEL, content(made), made.name, facts, artifact.encode())]
    if made.target.backend == "cpu":
        from tzero.cpu import pool
        from tzero.cpu.triton_compat import cache_directory

        needs = _cpu_facts()
        binary = pool.binary(cache_directory())
        found.append(Item(POOL, _pool_digest(needs), "the CPU's thread pool", needs, binary))
    if made.target.backend == "cuda" and triton_modules.needed():
        found += _modules(made, artifact)
    return found


# -- modules for CUDA ------------------------------------------------------------------------------


def _modules(made: Written, artifact: Artifact) -> list[Item]:
    """The modules that launch a kernel, built here; empty, with an event, if that fails."""
    try:
        types = [_type(each) for _, each in parse(made.parts["signature"])]
        descriptors = artifact.facts.get("metadata", {}).get("tensordesc_meta")
        return [
            _module(*each, _built(*each)) for each in triton_modules.sources(types, descriptors)
        ]
    except triton_modules.FAILURES as error:
        reason = f"its launcher is not in the bundle, so a compiler is needed there: {error}"
        emit(Event("cache", made.name, reason))
        return []


_built = functools.lru_cache(maxsize=1024)(triton_modules.build)


def _type(written: Any) -> Any:
    """The type of an argument as Triton has it, from that of a signature."""
    if isinstance(written, dict):
        written = tuple(written["types"])
    return tuple(map(_type, written)) if isinstance(written, tuple) else written


def _module(name: str, source: str, binary: bytes) -> Item:
    return Item(MODULE, _module_digest(name, source), name, _module_facts(), binary)


def _module_facts() -> dict[str, str]:
    return {"python": triton_modules.suffix(), "triton": triton_compile.compiler_version()}


def _module_digest(name: str, source: str) -> str:
    text = canonical([MODULE, name, source, _module_facts()])
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _found_module(name: str, source: str) -> bytes | None:
    held = bundles()
    digest = _module_digest(name, source) if held else ""
    found = (each.get(MODULE, digest) for each in held)
    return next((each for each in found if each is not None), None)


def _made_module(name: str, source: str, binary: bytes) -> None:
    folder = settings.now().collect
    if folder is not None:
        item = _module(name, source, binary)
        _collect(folder, item.digest, [item])


def _no_compiling() -> str:
    return "no bundle in use has its module for this Python" if bundles() else ""


triton_modules.replace(_found_module, _made_module, _no_compiling)


def _collect(folder: str, digest: str, found: list[Item]) -> None:
    path = os.path.join(folder, f"{digest}.tzb")
    if os.path.exists(path):
        return
    try:
        write(path, found)
    except OSError as error:
        emit(Event("cache", found[0].name, f"not collected in {folder}: {error.strerror}"))
