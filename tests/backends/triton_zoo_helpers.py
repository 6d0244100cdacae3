"""What `triton_zoo` reads through a module, and through a module of that."""

from tests.backends import triton_zoo_deeper as deeper

FACTOR = 3.0
NEVER_READ = object()

__all__ = ["FACTOR", "deeper"]
