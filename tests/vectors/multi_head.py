"""torch.nn.MultiheadAttention in its layouts, with its masks and weights; soft cap and grouped heads written out.

Weights are (in, out) and given as q, k, v and out, however a layer packs them. Masks hide where True, as this module of
PyTorch has it too.
"""

import numpy as np
import torch
import torch.nn.functional as F
from vectors.attention import weights
from vectors.recorder import Recorder
from vectors.scaled_dot_product import capped

B, T, S, DIM, HEADS, KDIM, VDIM = 2, 5, 7, 8, 4, 6, 3


def module(cross: bool = False, **options):
    """The module as a function of inputs and parameters; cross: key and value of sizes of their own."""
    sizes = {"kdim": KDIM, "vdim": VDIM} if cross else {}
    attend = torch.nn.MultiheadAttention(DIM, HEADS, dtype=torch.float64, **sizes, **options)

    def forward(*inputs, q_weight, k_weight, v_weight, out_weight, masks=None, need_weights=False, **biases):
        parameters = {
            "in_proj_bias": torch.cat([biases[f"{name}_bias"] for name in "qkv"]),
            "out_proj.weight": out_weight.T,
            "out_proj.bias": biases["out_bias"],
        }
        if cross:
            given = {"q": q_weight, "k": k_weight, "v": v_weight}
            parameters |= {f"{name}_proj_weight": weight.T for name, weight in given.items()}
        else:
            parameters["in_proj_weight"] = torch.cat([q_weight, k_weight, v_weight], dim=1).T
        options = {"need_weights": need_weights, "average_attn_weights": False, **(masks or {})}
        inputs = inputs * 3 if len(inputs) == 1 else inputs
        return torch.func.functional_call(attend, parameters, inputs, options)[0 if not need_weights else slice(None)]

    return forward


def tensors(**masks):
    return {name: torch.tensor(mask) for name, mask in masks.items()}


def write() -> None:
    r = Recorder(seed=14)
    x, key, value = r.draw(B, T, DIM), r.draw(B, S, KDIM), r.draw(B, S, VDIM)
    swapped = [np.ascontiguousarray(a.swapaxes(0, 1)) for a in (x, key, value)]
    first, second = {"batch_first": True}, {"batch_first": False}
    padding = np.arange(S) >= np.array([S, 3])[:, None]  # (B, S)
    rows = r.rng.random_sample((T, S)) < 0.4
    heads = r.rng.random_sample((B, HEADS, T, S)) < 0.4
    sample = r.rng.random_sample((B, 1, T, S)) < 0.4
    for mask in (rows, heads, sample):
        mask[..., 0] = False  # every query sees a key: the module gives NaN otherwise
    r.put(padding=padding, rows=rows, heads=heads, sample=sample)
    flat = np.broadcast_to(sample, heads.shape).reshape(B * HEADS, T, S)

    def case(name, forward, inputs, parameters, **masks):
        masks = tensors(**masks)
        r.case(name, lambda *x, **p: forward(*x, masks=masks, **p), inputs, parameters)

    case("batch second", module(**second), swapped[:1], weights(r))
    case("one sample", module(**second), [x[0]], weights(r))
    case("cross", module(True, **first), [x, key, value], weights(r, KDIM, VDIM))
    case("cross batch second", module(True, **second), swapped, weights(r, KDIM, VDIM))
    case("cross one sample", module(True, **first), [x[0], key[0], value[0]], weights(r, KDIM, VDIM))
    case("rows", module(True, **first), [x, key, value], weights(r, KDIM, VDIM), attn_mask=rows)
    case("key padding", module(True, **first), [x, key, value], weights(r, KDIM, VDIM), key_padding_mask=padding)
    case("both batch second", module(True, **second), swapped, weights(r, KDIM, VDIM),
         attn_mask=rows, key_padding_mask=padding)  # fmt: skip
    case("heads", module(True, **first), [x, key, value], weights(r, KDIM, VDIM),
         attn_mask=heads.reshape(B * HEADS, T, S))  # fmt: skip
    case("sample batch second", module(True, **second), swapped, weights(r, KDIM, VDIM), attn_mask=flat)
    attention_weights(r, x, key, value, rows)
    case("softcap", by_hand(1.5), [x], weights(r))
    case("softcap grouped heads", by_hand(0.8, heads), [x, key, value], weights(r, KDIM, VDIM, kv_heads=2))
    r.write("multi_head")


def attention_weights(r: Recorder, x, key, value, rows) -> None:
    """What need_weights=True returns, for each head."""
    parameters = weights(r, KDIM, VDIM)
    given = {name.replace(".", "_"): torch.tensor(array, dtype=torch.float64) for name, array in parameters.items()}
    inputs = [torch.tensor(a, dtype=torch.float64) for a in (x, key, value)]
    masks = tensors(attn_mask=rows)
    found = module(True, batch_first=True)(*inputs, masks=masks, need_weights=True, **given)[1]
    r.put(attention_weights=found.numpy(), weights_x=x, weights_key=key, weights_value=value)
    r.put(**{f"weights parameter {name}": array for name, array in parameters.items()})


def by_hand(cap: float, hide=None):
    def forward(x, *others, q_weight, k_weight, v_weight, out_weight, masks, **biases):
        key, value = others or (x, x)
        q, k, v = (
            F.linear(a, w.T, biases[f"{name}_bias"]).unflatten(-1, (-1, DIM // HEADS)).transpose(1, 2)
            for a, w, name in ((x, q_weight, "q"), (key, k_weight, "k"), (value, v_weight, "v"))
        )
        y = capped(cap, (DIM // HEADS) ** -0.5, hide)(q, k, v).transpose(1, 2).flatten(2)
        return F.linear(y, out_weight.T, biases["out_bias"])

    return forward
