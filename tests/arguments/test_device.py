"""A device's capability is read once per index, unless torch's function is patched."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from tzero.arguments import device


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The calls of the function that tzero took for torch's own, on a machine without a GPU."""
    calls: list[int] = []

    def answer(index: int) -> tuple[int, int]:
        calls.append(index)
        return (9, index)

    monkeypatch.setattr(torch.cuda, "get_device_capability", answer)
    monkeypatch.setattr(device, "_asked", answer)
    monkeypatch.setattr(device, "_known", {})
    yield calls


def test_the_capability_is_read_once_per_index(asked: list[int]) -> None:
    for _ in range(3):
        for index in (0, 1):
            assert device.capability(torch.device("cuda", index)) == ("cuda", (9, index))
    assert asked == [0, 1]


def test_a_device_without_index_is_the_current_one(
    asked: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    for current in (1, 0, 1):
        monkeypatch.setattr(torch.cuda, "current_device", lambda current=current: current)
        assert device.capability(torch.device("cuda")) == ("cuda", (9, current))
    assert asked == [1, 0]


def test_a_patched_function_is_called_every_time_and_not_cached(
    asked: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = torch.device("cuda", 0)
    assert device.capability(gpu) == ("cuda", (9, 0))
    answers = iter([(8, 0), (7, 5)])
    with monkeypatch.context() as patched:
        patched.setattr(torch.cuda, "get_device_capability", lambda index: next(answers))
        assert device.capability(gpu) == ("cuda", (8, 0))
        assert device.capability(gpu) == ("cuda", (7, 5))
    assert device.capability(gpu) == ("cuda", (9, 0))


def test_other_devices_have_no_capability(asked: list[int]) -> None:
    assert device.capability(torch.device("cpu")) == ("cpu", None)
    assert asked == []
