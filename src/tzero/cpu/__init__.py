"""Triton's CPU backend: the plugin that Triton finds in its ``triton.backends`` entry points.

Enters: Triton, which imports ``tzero.cpu.compiler`` and ``tzero.cpu.driver`` while it is itself
being imported. Leaves: kernels compiled through C, run on the threads of this machine.
"""

# Triton looks for the backend's classes in modules that must be complete by then. So whoever
# imports one of them first starts Triton's import, which brings them in, in order.
import triton  # noqa: F401
