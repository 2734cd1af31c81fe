"""scaled_dot_product_attention: heads and none, masks, causal, scale, grouped heads, soft cap, values of another size.

Masks hide where True, and causal is bottom-right: PyTorch gets both as the boolean mask that says what to keep. What it
has no option for is written out.
"""

import numpy as np
import torch
import torch.nn.functional as F
from vectors.recorder import Recorder

B, H, T, S, D = 2, 4, 5, 7, 6


def causal(queries: int, keys: int) -> np.ndarray:
    return np.arange(keys) > np.arange(queries)[:, None] + keys - queries


def fused(hide=None, **options):
    keep = None if hide is None else torch.tensor(~hide)
    return lambda q, k, v: F.scaled_dot_product_attention(q, k, v, attn_mask=keep, **options)


def capped(cap, scale=D**-0.5, hide=None):
    """By hand: soft cap, then mask, then softmax; a row that sees nothing is 0."""

    def forward(q, k, v):
        group = q.shape[-3] // k.shape[-3]
        k, v = (x.repeat_interleave(group, dim=-3) for x in (k, v))
        scores = cap * torch.tanh(q @ k.transpose(-1, -2) * scale / cap)
        if hide is None:
            return torch.softmax(scores, dim=-1) @ v
        hidden = torch.tensor(np.broadcast_to(hide, scores.shape))
        e = torch.exp(scores) * ~hidden
        total = e.sum(dim=-1, keepdim=True)
        return e / torch.where(total == 0, 1, total) @ v

    return forward


def write() -> None:
    r = Recorder(seed=13)
    q, k, v = r.draw(B, H, T, D), r.draw(B, H, S, D), r.draw(B, H, S, 3)
    padding = np.arange(S) >= np.array([S, 3])[:, None, None, None]
    rows = r.rng.random_sample((T, S)) < 0.4
    rows[2] = True  # a query that sees nothing
    heads = r.rng.random_sample((B, H, T, S)) < 0.4
    per_sample = r.rng.random_sample((B, 1, T, S)) < 0.4
    r.put(padding=padding, rows=rows, heads=heads, per_sample=per_sample)
    r.case("plain", fused(), [q, k, v])
    r.case("scale", fused(scale=0.3), [q, k, v])
    r.case("causal", fused(causal(T, S)), [q, k, v])
    r.case("causal square", fused(is_causal=True), [q, k[:, :, :T], v[:, :, :T]])  # the corners meet: PyTorch's own
    r.case("causal more queries", fused(causal(T, 3)), [q, k[:, :, :3], v[:, :, :3]])
    r.case("padding", fused(padding), [q, k, v])
    r.case("rows", fused(rows), [q, k, v])
    r.case("heads causal", fused(heads | causal(T, S)), [q, k, v])
    r.case("per sample", fused(per_sample), [q, k, v])
    r.case("grouped", fused(enable_gqa=True), [q, k[:, :2], v[:, :2]])
    r.case("grouped padding causal", fused(padding | causal(T, S), enable_gqa=True), [q, k[:, :1], v[:, :1]])
    r.case("no heads", fused(rows), [q[:, 0], k[:, 0], v[:, 0]])
    r.case("no batch", fused(causal(T, S)), [q[0, 0], k[0, 0], v[0, 0]])
    r.case("softcap", capped(2.0), [2 * q, 2 * k, v])
    r.case("softcap large", capped(50.0, scale=1.0), [q, k, v])
    r.case("softcap grouped masked", capped(1.5, 0.4, heads | padding | causal(T, S)), [q, k[:, :2], v[:, :2]])
    r.write("scaled_dot_product")
