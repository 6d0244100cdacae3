"""A decode step of a small Llama-shaped model as a guarded graph: one decorator, no static buffers.

python examples/decode.py --layers 16 --width 1024 --plot decode.svg
python examples/decode.py --liger     # with norms and gates of Liger-Kernel
"""

import argparse
import time

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import nn

import tzero

DEVICE = triton.runtime.driver.active.get_active_torch_device()


@triton.jit
def norm_kernel(x, weight, out, n, eps, BLOCK: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, BLOCK)
    inside = at < n
    given = tl.load(x + row * n + at, mask=inside, other=0.0).to(tl.float32)
    by = 1.0 / tl.sqrt(tl.sum(given * given) / n + eps)
    scale = tl.load(weight + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * n + at, given * by * scale, mask=inside)


@triton.jit
def gate_kernel(gate, up, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    given = tl.load(gate + at, mask=inside, other=0.0).to(tl.float32)
    given = given / (1.0 + tl.exp(-given)) * tl.load(up + at, mask=inside, other=0.0)
    tl.store(out + at, given, mask=inside)


@triton.jit
def rotate_kernel(x, out, position, heads, HALF: tl.constexpr):
    head, at = tl.program_id(0), tl.arange(0, HALF)
    angle = tl.load(position + head // heads).to(tl.float32) * tl.exp(at * (-9.21034 / HALF))
    first = tl.load(x + head * 2 * HALF + at).to(tl.float32)
    second = tl.load(x + head * 2 * HALF + HALF + at).to(tl.float32)
    tl.store(out + head * 2 * HALF + at, first * tl.cos(angle) - second * tl.sin(angle))
    tl.store(out + head * 2 * HALF + HALF + at, second * tl.cos(angle) + first * tl.sin(angle))


class Norm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        out, n = torch.empty_like(x), x.shape[-1]
        block = triton.next_power_of_2(n)
        norm_kernel[(x.numel() // n,)](x, self.weight, out, n, 1e-5, BLOCK=block)
        return out


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x, keys, values, position, mask):
        batch, length, width = x.shape
        both, value = self.qkv(x).split((2 * width, width), dim=-1)
        both = both.contiguous()
        turned = torch.empty_like(both)
        half = width // self.heads // 2
        rotate_kernel[(2 * self.heads * batch,)](both, turned, position, 2 * self.heads, HALF=half)
        shape = (batch, length, 2, self.heads, -1)
        query, key = turned.view(shape).transpose(1, 3).unbind(2)
        value = value.view(batch, length, self.heads, -1).transpose(1, 2)
        keys.index_copy_(2, position, key)
        values.index_copy_(2, position, value)
        found = F.scaled_dot_product_attention(query, keys, values, attn_mask=mask)
        return self.out(found.transpose(1, 2).reshape(batch, length, width))


class Feed(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.gate = nn.Linear(width, 2 * width, bias=False)
        self.up = nn.Linear(width, 2 * width, bias=False)
        self.down = nn.Linear(2 * width, width, bias=False)

    def forward(self, x):
        gate, up = self.gate(x), self.up(x)
        out, n = torch.empty_like(gate), gate.numel()
        gate_kernel[(triton.cdiv(n, 1024),)](gate, up, out, n, BLOCK=1024)
        return self.down(out)


class LigerNorm(Norm):
    """The same by Liger-Kernel, as its users call it."""

    def forward(self, x):
        from liger_kernel.ops.rms_norm import LigerRMSNormFunction

        return LigerRMSNormFunction.apply(x, self.weight, 1e-5, 0.0, "llama", False)


class LigerFeed(Feed):
    def forward(self, x):
        from liger_kernel.ops.swiglu import LigerSiLUMulFunction

        return self.down(LigerSiLUMulFunction.apply(self.gate(x), self.up(x)))


class Layer(nn.Module):
    def __init__(self, width, heads, liger):
        super().__init__()
        norm, feed = (LigerNorm, LigerFeed) if liger else (Norm, Feed)
        self.before, self.after = norm(width), norm(width)
        self.attention, self.feed = Attention(width, heads), feed(width)

    def forward(self, x, keys, values, position, mask):
        x = x + self.attention(self.before(x), keys, values, position, mask)
        return x + self.feed(self.after(x))


class Model(nn.Module):
    def __init__(self, layers=2, width=64, heads=4, words=128, length=64, liger=False):
        super().__init__()
        self.shape = (1, heads, length, width // heads)
        self.embed = nn.Embedding(words, width)
        self.layers = nn.ModuleList(Layer(width, heads, liger) for _ in range(layers))
        self.norm = LigerNorm(width) if liger else Norm(width)
        self.head = nn.Linear(width, words, bias=False)
        self.register_buffer("places", torch.arange(length))

    def caches(self):
        like = self.head.weight
        return [torch.zeros(self.shape, dtype=like.dtype, device=like.device) for _ in self.layers]

    def forward(self, token, position, keys, values):
        x = self.embed(token)
        mask = (self.places <= position)[None, None, None, :]
        for layer, k, v in zip(self.layers, keys, values, strict=True):
            x = layer(x, k, v, position, mask)
        return self.head(self.norm(x))


class Step(Model):
    """The same model with a guarded graph of its step: the decorator is all that is new."""

    forward = tzero.kernel(graph=True)(Model.forward)


def decode(model, steps):
    """Logits of some steps, each for the likeliest word of the last, and the seconds of a step."""
    keys, values = model.caches(), model.caches()
    token, logits = torch.zeros(1, 1, dtype=torch.long, device=DEVICE), []
    start = time.perf_counter()
    for k in range(steps):
        if k == steps // 2:
            start = finished()
        position = torch.full((1,), k % model.shape[2], device=DEVICE)
        logits.append(model(token, position, keys, values))
        token = logits[-1].argmax(-1)
    return torch.stack(logits), (finished() - start) / (steps - steps // 2)


def finished():
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def by_hand(model):
    """The step as a CUDA graph made by hand: static inputs, copies, and nothing that is checked."""
    inputs = None

    def step(token, position, keys, values):
        nonlocal inputs
        if inputs is None:
            token, position = token.clone(), position.clone()
            for _ in range(2):
                model(token, position, [k.clone() for k in keys], [v.clone() for v in values])
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                out = model(token, position, keys, values)
            inputs = token, position, graph, out
        inputs[0].copy_(token)
        inputs[1].copy_(position)
        inputs[2].replay()
        return inputs[3].clone()

    step.caches, step.shape = model.caches, model.shape
    return step


def compiled(model):
    step = torch.compile(model, mode="reduce-overhead")
    made = lambda *given: step(*given).clone()  # noqa: E731 - its memory is written again
    made.caches, made.shape = model.caches, model.shape
    return made


def plot(path, rates):
    """Bars of tokens a second, as an SVG."""
    most, lines = max(rates.values()), []
    for k, (name, rate) in enumerate(rates.items()):
        y, width = 20 + 34 * k, 420 * rate / most
        lines.append(f'<text x="150" y="{y + 16}" text-anchor="end">{name}</text>')
        lines.append(f'<rect x="160" y="{y}" width="{width:.0f}" height="22" fill="#4c72b0"/>')
        lines.append(f'<text x="{166 + width:.0f}" y="{y + 16}">{rate:,.0f}</text>')
    size = f'width="660" height="{30 + 34 * len(rates)}" font-family="sans-serif" font-size="13"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size}><title>Tokens a second</title>'
    with open(path, "w") as file:
        file.write("\n".join([head, *lines, "</svg>\n"]))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--compile", action="store_true", help="torch.compile too")
    parser.add_argument("--liger", action="store_true", help="with kernels of Liger-Kernel")
    parser.add_argument("--plot", metavar="FILE")
    given = parser.parse_args()
    torch.manual_seed(0)
    heads = max(4, given.width // 64)
    model = Model(given.layers, given.width, heads, liger=given.liger)
    step = Step(given.layers, given.width, heads, liger=given.liger)
    step.load_state_dict(model.state_dict())
    dtype = torch.bfloat16 if DEVICE.type == "cuda" else torch.float32
    for each in (model, step):
        each.to(DEVICE, dtype).requires_grad_(False)
    ways = {"plain": model, "graph=True": step}
    if DEVICE.type == "cuda":
        ways["by hand"] = by_hand(model)
    if given.compile:
        ways["torch.compile"] = compiled(model)
    rates, wanted = {}, None
    with torch.no_grad():
        for name, way in ways.items():
            logits, seconds = decode(way, given.steps)
            wanted = logits if wanted is None else wanted
            rates[name] = 1 / seconds
            same = "the same logits" if torch.equal(logits, wanted) else "other logits"
            print(f"{name:14} {1 / seconds:8.0f} tokens a second, {same}")
        tzero.install()
        _, seconds = decode(model, given.steps)
        rates["tzero.install"] = 1 / seconds
        print(f"{'tzero.install':14} {1 / seconds:8.0f} tokens a second")
    if given.plot:
        plot(given.plot, rates)


if __name__ == "__main__":
    main()
