"""A program that trains layers of flash-linear-attention and Liger Kernel for a few steps.

It knows nothing of tzero: `test_programs.py` runs it as it is, and under ``python -m tzero run``.
Enters: names of layers, or none for all, and ``--device cuda`` for a GPU. Leaves: for each, a line
with the digest of its outputs and gradients.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import sys
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from triton.runtime.autotuner import Autotuner

STEPS, BATCH, TOKENS, HEADS, WIDTH = 3, 1, 64, 2, 16


def attention(name: str) -> nn.Module:
    """A layer around an operator of flash-linear-attention."""
    from fla.modules import FusedRMSNormGated, ShortConvolution
    from fla.ops import delta_rule, gated_delta_rule, gla, linear_attn, retention

    operators: dict[str, Callable[..., Any]] = {
        "gla": lambda q, k, v, decay, beta: gla.chunk_gla(q, k, v, decay),
        "gla, recurrent": lambda q, k, v, decay, beta: gla.fused_recurrent_gla(q, k, v, gk=decay),
        "delta rule": lambda q, k, v, decay, beta: delta_rule.fused_recurrent_delta_rule(
            q, k, v, beta
        ),
        "gated delta rule": lambda q, k, v, decay, beta: gated_delta_rule.chunk_gated_delta_rule(
            q, k, v, decay[..., 0].contiguous(), beta
        ),
        "retention": lambda q, k, v, decay, beta: retention.fused_recurrent_retention(q, k, v),
        "linear attention": lambda q, k, v, decay, beta: linear_attn.fused_recurrent_linear_attn(
            q, k, v
        ),
    }

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            whole = HEADS * WIDTH
            self.inwards = nn.Linear(whole, 5 * whole + HEADS)
            self.convolution = ShortConvolution(whole, 4, activation="silu")
            self.norm = FusedRMSNormGated(WIDTH)
            self.outwards = nn.Linear(whole, whole)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            whole = HEADS * WIDTH
            q, k, v, decay, gate, beta = self.inwards(x).split([whole] * 5 + [HEADS], dim=-1)
            q, _ = self.convolution(q)
            parts = (each.unflatten(-1, (HEADS, WIDTH)) for each in (q, k, v, decay, gate))
            q, k, v, decay, gate = (each.contiguous() for each in parts)
            k, decay = nn.functional.normalize(k, dim=-1), nn.functional.logsigmoid(decay)
            done = operators[name](q, k, v, decay, beta.sigmoid())
            return self.outwards(self.norm(done[0], gate).flatten(-2))

    return Layer()


def liger(name: str) -> nn.Module:
    """A layer of Liger Kernel."""
    from liger_kernel.transformers import functional
    from liger_kernel.transformers.cross_entropy import LigerCrossEntropyLoss
    from liger_kernel.transformers.group_norm import LigerGroupNorm
    from liger_kernel.transformers.jsd import LigerJSD
    from liger_kernel.transformers.kl_div import LigerKLDIVLoss
    from liger_kernel.transformers.layer_norm import LigerLayerNorm
    from liger_kernel.transformers.rms_norm import LigerRMSNorm

    whole = HEADS * WIDTH

    def loss(x: torch.Tensor) -> torch.Tensor:
        return LigerCrossEntropyLoss()(
            x.flatten(0, 1), torch.arange(TOKENS, device=x.device) % whole
        )

    def diverging(inside: nn.Module) -> Callable[[torch.Tensor], torch.Tensor]:
        def divergence(x: torch.Tensor) -> torch.Tensor:
            rows = x.flatten(0, 1)
            return inside(rows.log_softmax(-1), rows.detach().flip(0).softmax(-1))

        return divergence

    makers: dict[str, Callable[[], nn.Module]] = {
        "rms norm": lambda: LigerRMSNorm(whole),
        "layer norm": lambda: LigerLayerNorm(whole),
        "group norm": lambda: LigerGroupNorm(TOKENS, 4),
        "cross entropy": lambda: Function(loss),
        "kl divergence": lambda: Function(diverging(LigerKLDIVLoss())),
        "jsd": lambda: Function(diverging(LigerJSD())),
        "swiglu": lambda: Function(lambda x: functional.liger_swiglu(x, x.flip(-1))),
    }
    return makers[name]()


class Function(nn.Module):
    """A layer without parameters."""

    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.forward = function


LAYERS: dict[str, Callable[[str], nn.Module]] = {
    **dict.fromkeys(("gla", "gla, recurrent", "delta rule", "gated delta rule"), attention),
    **dict.fromkeys(("retention", "linear attention"), attention),
    **dict.fromkeys(("rms norm", "layer norm", "group norm", "cross entropy"), liger),
    **dict.fromkeys(("kl divergence", "jsd", "swiglu"), liger),
}


def train(name: str, device: str) -> str:
    """Train a layer, and return the digest of what it computed."""
    torch.manual_seed(0)
    layer = LAYERS[name](name).to(device)
    seen = hashlib.sha256()
    for _ in range(STEPS):
        x = torch.randn(BATCH, TOKENS, HEADS * WIDTH).to(device).requires_grad_()
        out = layer(x)
        out.square().sum().backward()
        for each in (out, x.grad, *(parameter.grad for parameter in layer.parameters())):
            if each is not None:
                seen.update(each.detach().double().cpu().numpy().tobytes())
        with torch.no_grad():
            for parameter in layer.parameters():
                if parameter.grad is not None:
                    parameter -= 1e-3 * parameter.grad
                    parameter.grad = None
    return seen.hexdigest()


def main(given: list[str]) -> None:
    """Train layers. Autotuners take their first config: the fastest may differ from run to run."""
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*")
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args(given)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    numbers = itertools.count()
    Autotuner._bench = lambda self, *args, config, **meta: [float(next(numbers))] * 3
    for name in options.names or LAYERS:
        print(f"{name}: {train(name, options.device)}")


if __name__ == "__main__":
    main(sys.argv[1:])
