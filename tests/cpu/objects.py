"""Reuses the shared objects of C text that was compiled before.

Enters: the C stage's text. Leaves: the object of the same text, flags, headers and compiler, from
`build/test-objects` if an earlier run compiled it. C compiles are most of the time of these
tests, and kernels of different dtypes, runs and Triton versions often become the same C. Triton's
own cache does not help: its key contains the Triton version and the source of this backend.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tzero.cpu import compiler, pool, toolchain


@contextmanager
def reused(directory: Path) -> Iterator[None]:
    """Inside, kernels are compiled only if `directory` does not have their object.

    Only for the compiler that is in use now: tests that name another one count its runs.
    """
    directory.mkdir(parents=True, exist_ok=True)
    fingerprint = toolchain.find().fingerprint
    sources = [Path(compiler.__file__), Path(toolchain.__file__), *sorted(pool.RUNTIME.iterdir())]
    common = hashlib.sha256(fingerprint.encode())
    for path in sources:  # flags are in the Python sources
        common.update(path.read_bytes())
    build = compiler._so

    def build_once(source: str, metadata: dict[str, Any], options: compiler.CPUOptions) -> bytes:
        if toolchain.find().fingerprint != fingerprint:
            return build(source, metadata, options)
        digest = common.copy()
        digest.update(f"{options.enable_fp_fusion}\0{source}".encode())
        path = directory / digest.hexdigest()
        try:
            return path.read_bytes()
        except FileNotFoundError:
            binary = build(source, metadata, options)
        descriptor, name = tempfile.mkstemp(dir=directory)
        with os.fdopen(descriptor, "wb") as file:
            file.write(binary)
        os.replace(name, path)
        return binary

    compiler._so = build_once
    try:
        yield
    finally:
        compiler._so = build
