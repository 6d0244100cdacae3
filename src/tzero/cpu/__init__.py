"""Triton's CPU backend, a plugin that Triton finds through its ``triton.backends`` entry point.

Enters: Triton imports ``tzero.cpu.compiler`` and ``tzero.cpu.driver`` during its own import.
Leaves: kernels compiled through C and run on the threads of this machine.

    compiler.py  TTIR -> ttir.py (parse) -> lower/ (C text) -> toolchain.py (shared object)
    driver.py    the CPU as Triton's device; launcher.py packs a call, pool.py has the threads
    sealing.py   which objects may be loaded; loading.py loads them, from memory
    runtime/     the C headers of generated kernels, and the thread pool

Since Triton imports this package on every machine, ``TZERO_INSTALL`` is read here too
(installing.py).
"""

# Triton scans the two modules for its backend classes, so they must be fully imported by then.
# Importing triton first guarantees that, whichever module of this package is imported first.
import triton  # noqa: F401

from tzero.cpu import installing
from tzero.errors import InvalidSetting

try:
    installing.begin()
except InvalidSetting as error:
    raise error.with_traceback(None) from None  # it ends `import triton`: only its frames are shown
