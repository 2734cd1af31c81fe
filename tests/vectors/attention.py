"""MultiHeadAttention: self, cross, grouped heads, masks, rotary; sinusoidal and learned positions.

Weights are (in, out) and given as q, k, v and out, however a layer packs them. Masks hide where True.
"""

import numpy as np
import torch
import torch.nn.functional as F
from vectors.recorder import Recorder

B, T, S, DIM, HEADS = 2, 5, 7, 8, 4


def write() -> None:
    r = Recorder(seed=2)
    torch_module(r)
    masks(r)
    cross(r)
    positions(r)
    r.write("attention")


def weights(r: Recorder, kdim: int = DIM, vdim: int = DIM, kv_heads: int = HEADS, bias: bool = True):
    d = DIM // HEADS
    shapes = {"q": (DIM, DIM), "k": (kdim, kv_heads * d), "v": (vdim, kv_heads * d), "out": (DIM, DIM)}
    found = {f"{name}.weight": r.draw(*shape, scale=0.5) for name, shape in shapes.items()}
    if bias:
        found.update({f"{name}.bias": r.draw(shape[1], scale=0.5) for name, shape in shapes.items()})
    return found


def attend(hide=None, rotate=None, kv_heads=HEADS):
    """Attention in PyTorch's fused form; `hide` broadcasts to (B, H, T, S)."""

    def forward(x, key, value, q_weight, k_weight, v_weight, out_weight, **biases):
        def heads(x, weight, name, count):
            y = F.linear(x, weight.T, biases.get(f"{name}_bias"))
            return y.view(len(x), -1, count, DIM // HEADS).transpose(1, 2)  # (B, H, length, d)

        q, k, v = (
            heads(x, q_weight, "q", HEADS),
            heads(key, k_weight, "k", kv_heads),
            heads(value, v_weight, "v", kv_heads),
        )
        if rotate is not None:
            q, k = rotate(q), rotate(k)
        keep = None if hide is None else torch.tensor(~hide)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=keep, enable_gqa=kv_heads != HEADS)
        return F.linear(y.transpose(1, 2).reshape(len(x), -1, DIM), out_weight.T, biases.get("out_bias"))

    return forward


def self_attend(*args, **options):
    forward = attend(*args, **options)
    return lambda x, **parameters: forward(x, x, x, **parameters)


def torch_module(r: Recorder) -> None:
    """torch.nn.MultiheadAttention itself, so that the rest does not stand on `attend` above alone."""
    for name, bias in (("self", True), ("self no bias", False)):

        def forward(x, q_weight, k_weight, v_weight, out_weight, bias=bias, **biases):
            return F.multi_head_attention_forward(
                *[x.transpose(0, 1)] * 3,
                embed_dim_to_check=DIM,
                num_heads=HEADS,
                in_proj_weight=torch.cat([q_weight, k_weight, v_weight], dim=1).T,
                in_proj_bias=torch.cat([biases[f"{n}_bias"] for n in "qkv"]) if bias else None,
                bias_k=None,
                bias_v=None,
                add_zero_attn=False,
                dropout_p=0.0,
                out_proj_weight=out_weight.T,
                out_proj_bias=biases.get("out_bias"),
                need_weights=False,
            )[0].transpose(0, 1)

        r.case(name, forward, [r.draw(B, T, DIM)], weights(r, bias=bias))


def causal(queries: int, keys: int) -> np.ndarray:
    """Bottom-right: the last query sees all keys."""
    return np.arange(keys) > np.arange(queries)[:, None] + keys - queries


def masks(r: Recorder) -> None:
    x = r.draw(B, T, DIM)
    r.case("causal", self_attend(causal(T, T)), [x], weights(r))
    padding = np.arange(T) >= np.array([T, 3])[:, None, None, None]  # (B, 1, 1, T)
    arbitrary = r.rng.random_sample((B, HEADS, T, T)) < 0.3
    arbitrary[1, 2, 3] = True  # one row in which every key is hidden: weights, output and gradients are 0
    r.put(padding=padding, arbitrary=arbitrary)
    r.case("padding", self_attend(padding), [x], weights(r))
    r.case("causal padding arbitrary", self_attend(causal(T, T) | padding | arbitrary), [x], weights(r))
    r.case("grouped", self_attend(kv_heads=2), [x], weights(r, kv_heads=2))
    r.case("grouped causal padding no bias", self_attend(causal(T, T) | padding, kv_heads=1), [x],
           weights(r, kv_heads=1, bias=False))  # fmt: skip


def cross(r: Recorder) -> None:
    x, key, value = r.draw(B, T, DIM), r.draw(B, S, 6), r.draw(B, S, 3)
    r.case("cross", attend(), [x, key, value], weights(r, kdim=6, vdim=3))
    r.case("cross grouped no bias", attend(kv_heads=2), [x, key, value], weights(r, 6, 3, kv_heads=2, bias=False))
    r.case("cross causal", attend(causal(T, S)), [x, r.draw(B, S, DIM), r.draw(B, S, DIM)], weights(r))
    padding = np.arange(S) >= np.array([4, S])[:, None, None, None]
    r.put(cross_padding=padding)
    shared = attend(padding)
    r.case(
        "cross shared padding", lambda x, memory, **p: shared(x, memory, memory, **p), [x, r.draw(B, S, 6)],
        weights(r, kdim=6, vdim=6),
    )  # fmt: skip


def positions(r: Recorder) -> None:
    angles = torch.arange(T, dtype=torch.float64)[:, None] / 10000 ** (
        torch.arange(0, DIM, 2, dtype=torch.float64) / DIM
    )
    table = torch.stack([angles.sin(), angles.cos()], dim=-1).reshape(T, DIM)  # sin and cos take turns
    r.case("sinusoidal", lambda x: x + table, [r.draw(B, T, DIM)])
    r.case("learned positions", lambda x, weight: x + weight[:T], [r.draw(B, T, DIM)], {"weight": r.draw(T + 3, DIM)})
    r.case("rotary attention", self_attend(causal(T, T), rotate=rotate), [r.draw(B, T, DIM)], weights(r))
    r.case("rotary", lambda x: rotate(x.transpose(1, 2)).transpose(1, 2), [r.draw(B, T, HEADS, 6)])


def rotate(x: torch.Tensor, base: float = 10000.0) -> torch.Tensor:
    """x: (..., T, d). Elements i and i + d/2 are a pair, turned by the angle t / base^(2 i / d)."""
    d = x.shape[-1]
    angle = torch.arange(x.shape[-2], dtype=torch.float64)[:, None] / base ** (
        torch.arange(0, d, 2, dtype=torch.float64) / d
    )
    first, second = x[..., : d // 2], x[..., d // 2 :]
    return torch.cat([first * angle.cos() - second * angle.sin(), first * angle.sin() + second * angle.cos()], dim=-1)
