"""Loads shared objects from bytes, and unloads them.

Enters: the bytes of a shared object that the caller has verified. Leaves: the loaded library. It
must not know where the bytes come from. No other user can change the bytes between the check and
the load: they never are in a file that others can reach.
"""

from __future__ import annotations

import ctypes
import itertools
import os
from _ctypes import dlopen

from tzero import scratch

__all__ = ["close_object", "open_object"]

_serial = itertools.count(1)
_this_program = ctypes.CDLL(None)
_dlclose = _this_program.dlclose


class _Object(ctypes.CDLL):
    """A loaded object. `ctypes.CDLL` makes a class for the functions of each library, which takes
    about as long as loading a small one; these objects share a class."""

    def __init__(self, path: str, mode: int) -> None:
        self._name, self._FuncPtr = path, _this_program._FuncPtr
        self._handle = dlopen(path, mode)


def open_object(
    binary: bytes, name: str = "kernel", mode: int = ctypes.DEFAULT_MODE
) -> ctypes.CDLL:
    """Load a shared object from memory; ``name`` is what debuggers and profilers show. Each call
    loads it anew, also where the bytes are equal."""
    try:
        return _open_in_memory(binary, name, mode)
    except OSError:
        # No memfd (macOS), no /proc, or a system that runs no code from a memfd. If the object
        # itself is at fault, the copy raises too.
        return _open_copy(binary, mode)


def _open_in_memory(binary: bytes, name: str, mode: int) -> ctypes.CDLL:
    if not hasattr(os, "memfd_create"):
        raise OSError("this system has no memfd")
    file = os.memfd_create(name.replace("\0", "")[:60], os.MFD_CLOEXEC)  # at most 249 bytes
    try:
        _write_all(file, binary)
        return _Object(_unique_path(file), mode)
    finally:
        os.close(file)


def _unique_path(file: int) -> str:
    """A path of an open file that was never used before. The loader takes equal paths for the same
    object, and descriptors are reused; ``/.`` and ``/`` as digits spell any number."""
    digits = "".join("/." if bit == "1" else "/" for bit in f"{next(_serial):b}")
    return f"/proc/self/fd{digits}/{file}"


def _open_copy(binary: bytes, mode: int) -> ctypes.CDLL:
    """Load through a file in a new directory that only this user can enter."""
    with scratch.folder("object-") as folder:
        path = os.path.join(folder, "object.so")
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            _write_all(file, binary)
        finally:
            os.close(file)
        return _Object(path, mode)


def _write_all(file: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]


def close_object(library: ctypes.CDLL) -> None:
    """Unload a shared object; nothing of it may be running or be called again."""
    if _dlclose(ctypes.c_void_p(library._handle)) != 0:
        raise OSError(f"dlclose failed for {library._name}")
