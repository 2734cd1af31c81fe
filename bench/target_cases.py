"""Cases of `bench.ops` at the sizes that have a target: forward and backward together, on one thread and on several.

Each stands for a stretch of a step, so its op is made up here: `reference` calls the references, `cpu` the ops. Where
`gpulayers train` shares a batch out to threads, so does the body `threads`: each takes its part of the rows.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from threadpoolctl import ThreadpoolController

from bench.cases import (
    COLS,
    EPS,
    SCALE,
    B,
    Case,
    D,
    H,
    T,
    draw,
    fused_attention,
    heads,
    norm_arguments,
    zipf_ids,
)  # fmt: skip
from gpulayers.backend import zeros
from gpulayers.layers.layer import Layer
from gpulayers.ops.attention import attention, attention_backward
from gpulayers.ops.cross_entropy_rows import cross_entropy_rows
from gpulayers.ops.embedding import scatter_add
from gpulayers.ops.layernorm import layernorm, layernorm_backward
from gpulayers.ops.op import Op
from gpulayers.optim import Adam
from gpulayers.parameter import Parameter

Function = Callable[..., Any]


@dataclass(frozen=True)
class TargetCase(Case):
    """threaded: number of threads -> a function like op.cpu. aims: body -> the most its time may be of PyTorch's."""

    threaded: Callable[[int], Function] | None = None
    aims: tuple[tuple[str, float], ...] = ()


def in_rows(function: Function, shared: Sequence[int]) -> Callable[[int], Function]:
    """`function` on threads, its arguments cut along their first axis, but for those whose numbers are in `shared`.

    It returns the results of each part.
    """

    def threaded(threads: int) -> Function:
        pool, blas = ThreadPoolExecutor(max(1, threads - 1)), ThreadpoolController().select(user_api="blas")

        def run(*arguments: Any) -> list[tuple[Any, ...]]:
            rows = len(arguments[0])
            bounds = pairwise(rows * i // threads for i in range(threads + 1))
            parts = [
                tuple(a if i in shared else a[start:stop] for i, a in enumerate(arguments)) for start, stop in bounds
            ]
            with blas.limit(limits=1):
                others = [pool.submit(function, *part) for part in parts[1:]]
                return [function(*parts[0]), *(other.result() for other in others)]

        return run

    return threaded


# ------------------------------------------------------------------------------------------------ cross-entropy

VOCAB, TOKENS = 50257, 1024


def cross_entropy_arguments(rng: np.random.Generator) -> tuple[Any, ...]:
    return draw(rng, TOKENS, VOCAB), rng.integers(0, VOCAB, TOKENS)


def cross_entropy_with(rows: Function) -> Function:
    scale = np.asarray(1 / TOKENS, np.float32)
    return lambda logits, targets: rows(logits, targets, None, scale.astype(logits.dtype), -100, 0.0, 0.0, False)


def cross_entropy_reference(logits: Any, targets: Any) -> tuple[Any, ...]:
    """64 rows at a time: the reference has six arrays like the logits, in float64."""
    exact = cross_entropy_with(cross_entropy_rows.reference)
    parts = [exact(logits[i : i + 64], targets[i : i + 64]) for i in range(0, len(targets), 64)]
    return tuple(np.concatenate(part) for part in zip(*parts, strict=True))


def cross_entropy_peer(torch: Any, logits: Any, targets: Any) -> Callable[[], Any]:
    def run() -> Any:
        leaf = logits.detach().requires_grad_()
        return None, *torch.autograd.grad(torch.nn.functional.cross_entropy(leaf, targets), leaf)

    return run


# ------------------------------------------------------------------------------------------------ norm and attention


def layernorm_with(forward: Function, backward: Function) -> Function:
    def run(x: Any, dy: Any, weight: Any, bias: Any) -> tuple[Any, ...]:
        y, mean, rstd = forward(x, weight, bias, EPS)
        return y, *backward(dy, x, mean, rstd, weight)

    return run


def layernorm_arguments(rng: np.random.Generator) -> tuple[Any, ...]:
    x, weight, bias, _ = norm_arguments(rng)
    return x, draw(rng, *x.shape), weight, bias


def layernorm_peer(torch: Any, x: Any, dy: Any, weight: Any, bias: Any) -> Callable[[], Any]:
    leaves = [t.requires_grad_() for t in (x, weight, bias)]

    def run() -> Any:
        y = torch.nn.functional.layer_norm(x, (COLS,), weight, bias, EPS)
        return y, *torch.autograd.grad(y, leaves, dy)

    return run


def attention_with(forward: Function, backward: Function) -> Function:
    def run(q: Any, k: Any, v: Any, dout: Any) -> tuple[Any, ...]:
        saved = forward(q, k, v, None, True, SCALE, 0.0, None)
        gradients = tuple(np.empty_like(a) for a in (q, k, v))
        backward(dout, q, k, v, *saved, None, True, SCALE, 0.0, None, *gradients)
        return saved[0], *gradients

    return run


def attention_peer(torch: Any, q: Any, k: Any, v: Any, dout: Any) -> Callable[[], Any]:
    leaves = [t.requires_grad_() for t in (q, k, v)]

    def run() -> Any:
        out = fused_attention(torch)(*leaves)
        return out, *torch.autograd.grad(out, leaves, dout)

    return run


# ------------------------------------------------------------------------------------------------ embedding and Adam

WIDE = 768


def table_gradient_with(scatter: Function) -> Function:
    def run(dy: Any, ids: Any) -> Any:
        table = zeros((VOCAB, WIDE), dy.dtype, like=dy)
        scatter(dy, ids, table)
        return table

    return run


def table_gradient_peer(torch: Any, dy: Any, ids: Any) -> Callable[[], Any]:
    return lambda: torch.ops.aten.embedding_dense_backward(dy, ids, VOCAB, -1, False)


TENSORS, EACH = 20, 500_032  # 10 million, each a multiple of what flat memory pads to


class Tensors(Layer):
    def __init__(self, values: np.ndarray) -> None:
        self.tensors = [Parameter(row) for row in values]


def adam_arguments(rng: np.random.Generator) -> tuple[Any, ...]:
    return draw(rng, TENSORS, EACH), draw(rng, TENSORS, EACH) * np.float32(0.01)


def adam_reference(p: Any, g: Any) -> Any:
    """The first step from zero moments: m_hat = g, v_hat = g^2."""
    return p - 1e-3 * g / (abs(g) + 1e-8)


def adam_on(threads: int) -> Function:
    """A whole step of the optimizer, with the norm of the gradient, which PyTorch's has not."""
    made: dict[int, Any] = {}

    def run(p: Any, g: Any) -> Any:
        if id(p) not in made:
            optimizer = made[id(p)] = Adam(Tensors(p), lr=1e-3, threads=threads)
            optimizer.flat.grad[...] = g.reshape(-1)
        optimizer = made[id(p)]
        for segment in optimizer.flat.segments:
            segment.parameter.grad_to_update()  # the gradient is there: a step has not cleared it, only marked it
        optimizer.step()
        return optimizer.flat.data.reshape(p.shape)

    return run


def adam_peer(fused: bool) -> Callable[..., Callable[[], Any]]:
    def peer(torch: Any, p: Any, g: Any) -> Callable[[], Any]:
        parameters = [torch.nn.Parameter(row.clone()) for row in p]
        for parameter, gradient in zip(parameters, g, strict=True):
            parameter.grad = gradient
        optimizer = torch.optim.Adam(parameters, lr=1e-3, fused=fused or None)
        optimizer.step()
        first = torch.stack([parameter.detach() for parameter in parameters])

        def run() -> Any:
            optimizer.step()
            return first

        return run

    return peer


def adam_case(fused: bool, aim: float) -> TargetCase:
    op = Op("adam step", reference=adam_reference, cpu=adam_on(1))
    return TargetCase(
        op,
        adam_arguments,
        adam_peer(fused),
        moved=lambda p, _: 7 * p.nbytes,  # reads p, g, m, v, writes p, m, v
        threaded=adam_on,
        aims=(("threads", aim),),
    )


# ------------------------------------------------------------------------------------------------ the registry


def both(name: str, make: Callable[..., Function], *ops: Op) -> Op:
    return Op(name, reference=make(*(op.reference for op in ops)), cpu=make(*ops))


CROSS_ENTROPY = Op("cross_entropy both", cross_entropy_reference, cross_entropy_with(cross_entropy_rows))
LAYERNORM = both("layernorm both", layernorm_with, layernorm, layernorm_backward)
ATTENTION = both("attention both", attention_with, attention, attention_backward)
TABLE = both("embedding gradient", table_gradient_with, scatter_add)

CASES: dict[str, TargetCase] = {
    "cross_entropy 1024x50257": TargetCase(
        CROSS_ENTROPY,
        cross_entropy_arguments,
        cross_entropy_peer,
        threaded=in_rows(cross_entropy_with(cross_entropy_rows), ()),
        aims=(("cpu", 0.40), ("threads", 0.22)),
    ),
    "layernorm both": TargetCase(LAYERNORM, layernorm_arguments, layernorm_peer, factor=3, aims=(("cpu", 4.0),)),
    "attention both": TargetCase(
        ATTENTION,
        lambda rng: heads(rng, 4),
        attention_peer,
        flops=lambda *_: 6.0 * B * H * T * T * D,
        threaded=in_rows(attention_with(attention, attention_backward), ()),
        aims=(("threads", 1.0),),
    ),
    "embedding gradient": TargetCase(
        TABLE,
        lambda rng: (draw(rng, 8192, WIDE), zipf_ids(rng)),
        table_gradient_peer,
        factor=10,
        aims=(("cpu", 0.2),),
    ),
    "adam 20 tensors": adam_case(fused=False, aim=0.75),
    "adam 20 tensors, fused": adam_case(fused=True, aim=2.0),
}
