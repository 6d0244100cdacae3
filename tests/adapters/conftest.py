"""Fixtures of the adapters' tests: those of launches."""

from tests.launches.conftest import device, world

__all__ = ["device", "world"]
