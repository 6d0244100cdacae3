"""Flash attention over sequences whose lengths change: one plan serves all of them."""

import torch
import triton
import triton.language as tl

import tzero

DEVICE = triton.runtime.driver.active.get_active_torch_device()


@triton.jit
def attention_kernel(
    q, k, v, out, length, scale, SIZE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):
    head, rows = tl.program_id(1) * length * SIZE, tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    at = head + rows[:, None] * SIZE + tl.arange(0, SIZE)[None, :]
    inside = rows[:, None] < length
    query = tl.load(q + at, mask=inside, other=0.0)
    most = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    result = tl.zeros([ROWS, SIZE], tl.float32)
    for start in range(0, length, COLUMNS):
        columns = start + tl.arange(0, COLUMNS)
        there = head + columns[:, None] * SIZE + tl.arange(0, SIZE)[None, :]
        key = tl.load(k + there, mask=columns[:, None] < length, other=0.0)
        score = tl.dot(query, tl.trans(key)) * scale
        score = tl.where(columns[None, :] <= rows[:, None], score, float("-inf"))
        new = tl.maximum(most, tl.max(score, axis=1))
        power, decay = tl.exp(score - new[:, None]), tl.exp(most - new)
        value = tl.load(v + there, mask=columns[:, None] < length, other=0.0)
        total = total * decay + tl.sum(power, axis=1)
        result = result * decay[:, None] + tl.dot(power.to(value.dtype), value)
        most = new
    tl.store(out + at, (result / total[:, None]).to(query.dtype), mask=inside)


@tzero.kernel
def attention(q, k, v):
    heads, length, size = q.shape
    out = torch.empty_like(q)
    grid = (triton.cdiv(length, 32), heads)
    attention_kernel[grid](q, k, v, out, length, size**-0.5, SIZE=size, ROWS=32, COLUMNS=32)
    return out


if __name__ == "__main__":
    for length in (33, 70, 45, 90, 101, 57, 64, 83):
        q, k, v = (torch.randn(4, length, 32, device=DEVICE) for _ in range(3))
        expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        torch.testing.assert_close(attention(q, k, v), expected, rtol=2e-3, atol=2e-3)
    print(attention.explain(q, k, v))
    print(attention.stats())
