"""A device's compute capability, cached.

Enters: a torch device. Leaves: its type and capability, which decide what code it can run. It must
not know kernels or keys.

Calling torch costs microseconds, so the result is cached per device index. A function that replaces
torch's, as in tests, is called every time.

    >>> capability(torch.device("cpu"))
    ('cpu', None)
"""

from __future__ import annotations

import torch

__all__ = ["capability"]

_asked = torch.cuda.get_device_capability
_known: dict[int, tuple[int, int]] = {}


def capability(device: torch.device) -> tuple[str, tuple[int, int] | None]:
    """A device's type, and for CUDA its compute capability; without an index, the current one's.

    >>> capability(torch.device("meta"))
    ('meta', None)
    """
    kind: str = device.type
    if kind != "cuda":
        return (kind, None)
    index: int | None = device.index
    if index is None:
        index = torch.cuda.current_device()
    if torch.cuda.get_device_capability is not _asked:
        return (kind, torch.cuda.get_device_capability(index))
    found = _known.get(index)
    if found is None:
        found = _known[index] = _asked(index)
    return (kind, found)
