"""Keys on a machine with a GPU: they contain the device, and devices must not be mixed."""

from __future__ import annotations

import pytest
import torch

import tzero

pytestmark = pytest.mark.gpu


@tzero.kernel
def first(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x


def test_the_gpu_and_the_cpu_have_keys_of_their_own() -> None:
    on_cpu = (torch.zeros(4), torch.zeros(4))
    on_gpu = tuple(tensor.cuda() for tensor in on_cpu)
    assert first.key(*on_cpu) != first.key(*on_gpu)
    assert first.key(*on_gpu)[-1] == ("cuda", torch.cuda.get_device_capability())
    assert first.bind(*on_cpu) is not first.bind(*on_gpu)
    assert first(*on_gpu) is on_gpu[0]


@pytest.mark.parametrize("order", [("cpu", "cuda"), ("cuda", "cpu")], ids="-".join)
def test_tensors_on_two_devices_have_no_key_also_after_a_hit(order: tuple[str, str]) -> None:
    for device in order:
        first(torch.zeros(4, device=device), torch.zeros(4, device=device))
    x, y = (torch.zeros(4, device=device) for device in order)
    with pytest.raises(tzero.InvalidArgument, match="'y' is on") as raised:
        first.bind(x, y)
    assert "first" in str(raised.value)
    assert first(x, y) is x


def test_a_device_without_an_index_is_the_current_one() -> None:
    @tzero.kernel
    def made(device: torch.device) -> torch.Tensor:
        return torch.zeros(1, device=device)

    current = torch.cuda.current_device()
    assert made.bind(torch.device("cuda")) is made.bind(torch.device("cuda", current))
    assert made.bind(torch.device("cuda")) is not made.bind(torch.device("cpu"))
