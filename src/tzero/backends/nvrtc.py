"""Calls of NVRTC, the compiler of CUDA C++ that is a library.

Enters: a program, an architecture, and the loaded library. Leaves: the bytes of a cubin or of PTX,
or `CompileFailed` with NVRTC's log. It must not know where the library was found, nor what its
output is for.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

from tzero.backends import c_source
from tzero.errors import CompileFailed

__all__ = ["compile"]


def compile(
    name: str,
    program: c_source.Program,
    arch: str,
    kind: str,
    library: ctypes.CDLL,
    folders: Sequence[str],
) -> bytes:
    """Compile a program to a ``cubin`` or ``ptx``; ``folders`` have CUDA's headers.

    ::

        compile("scale", program, "sm_90", "cubin", ctypes.CDLL("libnvrtc.so"), [])
    """
    names = list(program.headers)
    count = len(names)
    texts = (ctypes.c_char_p * count)(*(program.headers[each].encode() for each in names))
    titles = (ctypes.c_char_p * count)(*(each.encode() for each in names))
    options = [f"--gpu-architecture={arch}", *program.flags]
    options += [f"--include-path={folder}" for folder in folders]
    words = (ctypes.c_char_p * len(options))(*(each.encode() for each in options))
    handle = ctypes.c_void_p()

    def check(what: str, result: int) -> None:
        if result != 0:
            library.nvrtcGetErrorString.restype = ctypes.c_char_p
            said = library.nvrtcGetErrorString(result).decode()
            raise CompileFailed(
                kernel=name, problem=f"NVRTC failed in {what}: {said}", trace=_log(library, handle)
            )

    text = program.text.encode()
    created = library.nvrtcCreateProgram(
        ctypes.byref(handle), text, b"tzero-main.cu", count, texts, titles
    )
    check("nvrtcCreateProgram", created)
    try:
        if library.nvrtcCompileProgram(handle, len(options), words) != 0:
            log = _log(library, handle)
            raise CompileFailed(kernel=name, problem=c_source.gist("NVRTC", 1, log), trace=log)
        size = ctypes.c_size_t()
        of_size, of_bytes = f"nvrtcGet{kind.upper()}Size", f"nvrtcGet{kind.upper()}"
        check(of_size, getattr(library, of_size)(handle, ctypes.byref(size)))
        made = ctypes.create_string_buffer(size.value)
        check(of_bytes, getattr(library, of_bytes)(handle, made))
        return made.raw
    finally:
        library.nvrtcDestroyProgram(ctypes.byref(handle))


def _log(library: ctypes.CDLL, handle: ctypes.c_void_p) -> str:
    """NVRTC's log for a program."""
    size = ctypes.c_size_t()
    if not handle or library.nvrtcGetProgramLogSize(handle, ctypes.byref(size)) != 0:
        return ""
    log = ctypes.create_string_buffer(max(size.value, 1))
    return (
        log.value.decode(errors="replace") if library.nvrtcGetProgramLog(handle, log) == 0 else ""
    )
