"""torch.nn.TransformerEncoderLayer, TransformerDecoderLayer and a whole net around torch.nn.Transformer.

Parameters have our names and layouts: matrices (in, out), q | k | v side by side. Masks hide where True, which is what
PyTorch's key_padding_mask means; its attn_mask for booleans as well, in these modules.
"""

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from vectors.recorder import Recorder, gradient, leaf, numpy

B, S, T, DIM, HEADS, HIDDEN, LAYERS = 3, 6, 5, 8, 2, 12, 2
SOURCE_VOCAB, TARGET_VOCAB, PAD, BOS = 11, 11, 0, 1
SOURCE_LENGTHS, TARGET_LENGTHS = [6, 4, 0], [3, 5, 4]  # the third source is nothing but padding

ATTENTIONS = {"attention": "self_attn", "cross": "multihead_attn"}


def write() -> None:
    r = Recorder(seed=7)
    r.put(hide=past(SOURCE_LENGTHS, S), hide_target=past(TARGET_LENGTHS, T))
    for order in ("pre-norm", "post-norm"):
        blocks(r, order, norm_first=order == "pre-norm")
    whole(r)
    r.write("transformer")


def past(lengths: list[int], size: int) -> np.ndarray:
    """Where True, there is padding: (B, size)."""
    return np.arange(size) >= np.array(lengths)[:, None]


def causal() -> torch.Tensor:
    return torch.triu(torch.ones(T, T, dtype=torch.bool), 1)


def draw_block(r: Recorder, decoder: bool) -> dict[str, np.ndarray]:
    shapes = {"attention.qkv": (DIM, 3 * DIM), "attention.out": (DIM, DIM)}
    if decoder:
        shapes |= {"cross.q": (DIM, DIM), "cross.kv": (DIM, 2 * DIM), "cross.out": (DIM, DIM)}
    shapes |= {"feedforward.up": (DIM, HIDDEN), "feedforward.down": (HIDDEN, DIM)}
    drawn = {}
    for name, (rows, cols) in shapes.items():
        drawn[f"{name}.weight"], drawn[f"{name}.bias"] = r.draw(rows, cols, scale=0.4), r.draw(cols, scale=0.2)
    for i in range(3 if decoder else 2):
        drawn |= draw_norm(r, f"norm_{i + 1}")
    return drawn


def draw_norm(r: Recorder, name: str) -> dict[str, np.ndarray]:
    return {f"{name}.weight": r.draw(DIM, scale=0.2, shift=1.0), f"{name}.bias": r.draw(DIM, scale=0.2)}


def torch_state(p: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """A block's parameters under PyTorch's names and in its layout."""
    state = {}
    for kind in ("weight", "bias"):
        turn = (lambda t: t.T) if kind == "weight" else (lambda t: t)
        for ours, theirs in ATTENTIONS.items():
            if f"{ours}.out.{kind}" in p:
                parts = ["qkv"] if ours == "attention" else ["q", "kv"]
                joined = torch.cat([p[f"{ours}.{part}.{kind}"] for part in parts], dim=-1)
                state[f"{theirs}.in_proj_{kind}"] = turn(joined)
                state[f"{theirs}.out_proj.{kind}"] = turn(p[f"{ours}.out.{kind}"])
        state[f"linear1.{kind}"] = turn(p[f"feedforward.up.{kind}"])
        state[f"linear2.{kind}"] = turn(p[f"feedforward.down.{kind}"])
        for i in (1, 2, 3):
            if f"norm_{i}.{kind}" in p:
                state[f"norm{i}.{kind}"] = p[f"norm_{i}.{kind}"]
    return state


def module(kind: type[nn.Module], norm_first: bool, activation: str) -> nn.Module:
    options = {"dropout": 0.0, "batch_first": True, "norm_first": norm_first, "activation": activation}
    return kind(DIM, HEADS, HIDDEN, **options, dtype=torch.float64)


def blocks(r: Recorder, order: str, norm_first: bool) -> None:
    hide, hide_target = torch.tensor(past(SOURCE_LENGTHS, S)), torch.tensor(past(TARGET_LENGTHS, T))
    activation = "gelu" if norm_first else "relu"
    encoder = module(nn.TransformerEncoderLayer, norm_first, activation)
    decoder = module(nn.TransformerDecoderLayer, norm_first, activation)

    def dotted(names, p):
        return torch_state({name: p[name.replace(".", "_")] for name in names})

    parameters = draw_block(r, decoder=False)

    def encode(x, **p):
        state = dotted(parameters, p)
        return torch.func.functional_call(encoder, state, (x,), {"src_key_padding_mask": hide})

    r.case(f"encoder {order}", encode, [r.draw(B, S, DIM)], parameters)
    more = draw_block(r, decoder=True)

    def decode(x, memory, **p):
        masks = {"tgt_mask": causal(), "tgt_key_padding_mask": hide_target, "memory_key_padding_mask": hide}
        return torch.func.functional_call(decoder, dotted(more, p), (x, memory), masks)

    r.case(f"decoder {order}", decode, [r.draw(B, T, DIM), r.draw(B, S, DIM)], more)


# ------------------------------------------------------------------------------------------------- the whole net


def draw_net(r: Recorder) -> dict[str, np.ndarray]:
    drawn = {"source.embedding.weight": r.draw(SOURCE_VOCAB, DIM, scale=0.4)}
    drawn["target.embedding.weight"] = r.draw(TARGET_VOCAB, DIM, scale=0.4)
    for side in ("encoder", "decoder"):
        for i in range(LAYERS):
            drawn |= {f"{side}.{i}.{name}": array for name, array in draw_block(r, side == "decoder").items()}
        drawn |= draw_norm(r, f"{side}_norm")
    drawn["head.weight"], drawn["head.bias"] = r.draw(DIM, TARGET_VOCAB, scale=0.4), r.draw(TARGET_VOCAB, scale=0.2)
    return drawn


class Net(nn.Module):
    """Ids to logits around torch.nn.Transformer, which has neither embeddings nor positions nor a head."""

    def __init__(self, norm_first: bool, tied: bool) -> None:
        super().__init__()
        self.tied = tied
        encoder = nn.TransformerEncoder(
            module(nn.TransformerEncoderLayer, norm_first, "relu"), LAYERS,
            nn.LayerNorm(DIM) if norm_first else None, enable_nested_tensor=False,
        )  # fmt: skip
        decoder = nn.TransformerDecoder(
            module(nn.TransformerDecoderLayer, norm_first, "relu"), LAYERS, nn.LayerNorm(DIM) if norm_first else None
        )
        self.transformer = nn.Transformer(
            DIM, HEADS, custom_encoder=encoder, custom_decoder=decoder, batch_first=True, dtype=torch.float64
        )

    def forward(self, p: dict[str, torch.Tensor], source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        tables = [
            p["source.embedding.weight"],
            p["source.embedding.weight" if self.tied else "target.embedding.weight"],
        ]
        x, y = (
            F.embedding(ids, w) * DIM**0.5 + sinusoids(ids.shape[1])
            for ids, w in zip((source, target), tables, strict=True)
        )
        hide, hide_target = source == PAD, target == PAD
        y = torch.func.functional_call(
            self.transformer, self.state(p), (x, y),
            {
                "tgt_mask": causal(), "src_key_padding_mask": hide, "tgt_key_padding_mask": hide_target,
                "memory_key_padding_mask": hide,
            },
        )  # fmt: skip
        return y @ tables[0].T if self.tied else y @ p["head.weight"] + p["head.bias"]

    def state(self, p: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        found = {}
        for side in ("encoder", "decoder"):
            for i in range(LAYERS):
                prefix = f"{side}.{i}."
                block = torch_state({n.removeprefix(prefix): t for n, t in p.items() if n.startswith(prefix)})
                found |= {f"{side}.layers.{i}.{name}": tensor for name, tensor in block.items()}
            for kind in ("weight", "bias"):
                if f"{side}_norm.{kind}" in p:
                    found[f"{side}.norm.{kind}"] = p[f"{side}_norm.{kind}"]
        return found


def sinusoids(length: int) -> torch.Tensor:
    """Sine and cosine take turns."""
    angles = torch.arange(length, dtype=torch.float64)[:, None] / 10000 ** (
        torch.arange(0, DIM, 2, dtype=torch.float64) / DIM
    )
    return torch.stack([angles.sin(), angles.cos()], dim=-1).reshape(length, DIM)


def whole(r: Recorder) -> None:
    drawn = draw_net(r)
    source, target = r.rng.randint(3, SOURCE_VOCAB, (B, S)), r.rng.randint(3, TARGET_VOCAB, (B, T + 1))
    target[:, 0] = BOS
    source[past(SOURCE_LENGTHS, S)], target[:, 1:][past(TARGET_LENGTHS, T)] = PAD, PAD
    r.put(source=source.astype(np.int16), target=target.astype(np.int16))
    r.put(sizes=[SOURCE_VOCAB, TARGET_VOCAB, DIM, HEADS, LAYERS, HIDDEN])
    for name, array in drawn.items():
        r.put(**{f"net parameter {name}": array})
    for form, norm_first, tied in (("pre-norm", True, False), ("post-norm", False, False), ("tied", True, True)):
        p = {name: leaf(array) for name, array in drawn.items() if belongs(name, norm_first, tied)}
        ids, wanted = torch.tensor(target[:, :-1]), torch.tensor(target[:, 1:])
        logits = Net(norm_first, tied)(p, torch.tensor(source), ids)
        loss = F.cross_entropy(logits.flatten(0, 1), wanted.flatten(), ignore_index=PAD)
        loss.backward()
        kept = {"logits": numpy(logits), "loss": loss.item()}
        kept |= {f"gradient {name}": gradient(tensor) for name, tensor in p.items()}
        r.put(**{f"net {form} {key}": array for key, array in kept.items()})


def belongs(name: str, norm_first: bool, tied: bool) -> bool:
    """Whether this form of the net has such a parameter."""
    return (norm_first or "r_norm" not in name) and not (tied and name.startswith(("target.embedding", "head")))
