"""The registry of `bench.ops`: one case per op, with the sizes, the bytes and operations it cannot do without, and
PyTorch's counterpart where there is one.

Arrays are about 16 MB, beyond the caches of a laptop, unless a shape of the GPT step says more.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpulayers.ops.adafactor import adafactor
from gpulayers.ops.adam import adam
from gpulayers.ops.adam_rules import adamax, amsgrad, lamb, lion, nadam, radam
from gpulayers.ops.add import add
from gpulayers.ops.additive_scores import additive_scores, additive_scores_backward
from gpulayers.ops.attention import attention, attention_backward
from gpulayers.ops.batchnorm import batchnorm, batchnorm_backward, batchnorm_statistics, batchnorm_update
from gpulayers.ops.cosine_embedding import cosine_embedding
from gpulayers.ops.cross_entropy_rows import cross_entropy_rows
from gpulayers.ops.dropout import dropout
from gpulayers.ops.elementwise import multiply
from gpulayers.ops.embedding import embedding, scatter_add
from gpulayers.ops.gelu import gelu, gelu_backward, gelu_with_derivative, gelu_with_derivative_inplace
from gpulayers.ops.gradient_rules import adadelta, adagrad, asgd, muon, rmsprop, rprop
from gpulayers.ops.groupnorm import groupnorm, groupnorm_backward
from gpulayers.ops.layernorm import add_layernorm, layernorm, layernorm_backward
from gpulayers.ops.masked_softmax import masked_softmax, masked_softmax_backward
from gpulayers.ops.matmul import product
from gpulayers.ops.move import follow, move
from gpulayers.ops.mse import mse
from gpulayers.ops.newton_schulz import newton_schulz
from gpulayers.ops.nll import nll
from gpulayers.ops.op import Op
from gpulayers.ops.pointwise_loss import pointwise_loss
from gpulayers.ops.relu import leaky_relu, leaky_relu_backward, prelu, prelu_backward, relu, relu_backward
from gpulayers.ops.rmsnorm import rmsnorm, rmsnorm_backward
from gpulayers.ops.rotary import rotary, rotary_tables
from gpulayers.ops.sgd import sgd
from gpulayers.ops.sigmoid import sigmoid, sigmoid_backward, silu, silu_with_derivative, tanh, tanh_backward
from gpulayers.ops.soft_cross_entropy import soft_cross_entropy
from gpulayers.ops.softcap import softcap, softcap_backward
from gpulayers.ops.softmax import log_softmax, log_softmax_backward, softmax, softmax_backward
from gpulayers.ops.sum_of_squares import sum_of_squares
from gpulayers.ops.sum_rows import sum_rows
from gpulayers.ops.update_control import OUTCOME_SIZE, Control, update_control
from gpulayers.step import Key


@dataclass(frozen=True)
class Case:
    """op: what is called. arguments: draws its arguments, float32, from a generator.

    peer(torch, *arguments): returns a function that does the same in PyTorch and gives the same results, fewer of
    them, or None for those that cannot be compared. written: indices of arguments that the call writes; they are
    results after what it returns. flops: of its matrix products. moved: the bytes that have to be moved, by default
    all arrays read and all results written, each once. factor: on the tolerance, for long sums.
    """

    op: Op
    arguments: Callable[[np.random.Generator], tuple[Any, ...]]
    peer: Callable[..., Callable[[], Any]] | None = None
    written: tuple[int, ...] = ()
    flops: Callable[..., float] | None = None
    moved: Callable[..., float] | None = None
    factor: float = 1.0

    def fresh(self) -> tuple[Any, ...]:
        return self.arguments(np.random.default_rng(0))

    def bytes(self, arguments: tuple[Any, ...], results: tuple[Any, ...]) -> float:
        if self.moved:
            return self.moved(*arguments)
        return sum(a.nbytes for a in (*arguments, *results) if isinstance(a, np.ndarray))


ROWS, COLS = 4096, 1024
N = ROWS * COLS


def draw(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape, np.float32)


def matrices(count: int, *others: Any) -> Callable[[np.random.Generator], tuple[Any, ...]]:
    """`count` arrays (ROWS, COLS), then the other arguments."""
    return lambda rng: (*(draw(rng, ROWS, COLS) for _ in range(count)), *others)


def aten(name: str, *others: Any) -> Callable[..., Callable[[], Any]]:
    """The PyTorch operator of this name on the case's tensors."""

    def peer(torch: Any, *arguments: Any) -> Callable[[], Any]:
        operator, tensors = getattr(torch.ops.aten, name), [a for a in arguments if isinstance(a, torch.Tensor)]
        return lambda: operator(*tensors, *others)

    return peer


def gradients(torch: Any, function: Callable[..., Any], inputs: tuple[Any, ...], dy: Any) -> Callable[[], Any]:
    """PyTorch's backward pass alone: the graph is made once."""
    leaves = [t.requires_grad_() for t in inputs]
    y = function(*leaves)
    return lambda: torch.autograd.grad(y, leaves, dy, retain_graph=True)


def loss_and_gradient(torch: Any, loss: Callable[[Any], Any], x: Any) -> Callable[[], Any]:
    def run() -> Any:
        leaf = x.detach().requires_grad_()
        return (None, *torch.autograd.grad(loss(leaf), leaf))

    return run


# ------------------------------------------------------------------------------------------------- normalisation

EPS = 1e-5


def norm_arguments(rng: np.random.Generator) -> tuple[Any, ...]:
    return draw(rng, ROWS, COLS), draw(rng, COLS), draw(rng, COLS), EPS


def layernorm_backward_arguments(rng: np.random.Generator) -> tuple[Any, ...]:
    x, weight, bias, eps = norm_arguments(rng)
    _, mean, rstd = layernorm.reference(x, weight, bias, eps)
    return draw(rng, ROWS, COLS), x, mean, rstd, weight


def rmsnorm_backward_arguments(rng: np.random.Generator) -> tuple[Any, ...]:
    x, weight, _, eps = norm_arguments(rng)
    return draw(rng, ROWS, COLS), x, rmsnorm.reference(x, weight, eps)[1], weight


def layernorm_peer(torch: Any, x: Any, weight: Any, bias: Any, eps: float) -> Callable[[], Any]:
    return lambda: torch.nn.functional.layer_norm(x, (COLS,), weight, bias, eps)


def add_layernorm_peer(torch: Any, x: Any, f: Any, weight: Any, bias: Any, eps: float) -> Callable[[], Any]:
    def run() -> Any:
        total = x + f
        return total, torch.nn.functional.layer_norm(total, (COLS,), weight, bias, eps)

    return run


def layernorm_backward_peer(torch: Any, dy: Any, x: Any, mean: Any, rstd: Any, weight: Any) -> Callable[[], Any]:
    norm = torch.nn.functional.layer_norm
    return gradients(torch, lambda x, w, b: norm(x, (COLS,), w, b, EPS), (x, weight, torch.zeros(COLS)), dy)


def rmsnorm_peer(torch: Any, x: Any, weight: Any, eps: float) -> Callable[[], Any]:
    return lambda: torch.nn.functional.rms_norm(x, (COLS,), weight, eps)


def rmsnorm_backward_peer(torch: Any, dy: Any, x: Any, rstd: Any, weight: Any) -> Callable[[], Any]:
    return gradients(torch, lambda x, w: torch.nn.functional.rms_norm(x, (COLS,), w, EPS), (x, weight), dy)


def batchnorm_arguments(rng: np.random.Generator) -> tuple[Any, ...]:
    x, weight, bias, eps = norm_arguments(rng)
    return x, *batchnorm_statistics.reference(x), weight, bias, eps


def batchnorm_backward_arguments(rng: np.random.Generator) -> tuple[Any, ...]:
    x, mean, var, weight, _, eps = batchnorm_arguments(rng)
    return draw(rng, ROWS, COLS), x, mean, var, weight, eps


def batchnorm_update_arguments(rng: np.random.Generator) -> tuple[Any, ...]:
    return np.zeros(COLS, np.float32), np.ones(COLS, np.float32), np.zeros(1, np.int64), *running(rng), ROWS, 0.1


def running(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    return draw(rng, COLS), abs(draw(rng, COLS))


def batchnorm_peer(torch: Any, x: Any, mean: Any, var: Any, weight: Any, bias: Any, eps: float) -> Callable[[], Any]:
    return lambda: torch.nn.functional.batch_norm(x, mean, var, weight, bias, False, 0.0, eps)


def batchnorm_backward_peer(
    torch: Any, dy: Any, x: Any, mean: Any, var: Any, weight: Any, eps: float
) -> Callable[[], Any]:
    norm = torch.nn.functional.batch_norm
    inputs = (x, weight, torch.zeros(COLS))
    return gradients(torch, lambda x, w, b: norm(x, None, None, w, b, True, 0.0, eps), inputs, dy)


GROUPS = 32


def groupnorm_arguments(rng: np.random.Generator) -> tuple[Any, ...]:
    """Eight images of 256 channels."""
    return draw(rng, 8, 256, N // 2048), draw(rng, 256), draw(rng, 256), GROUPS, EPS


def groupnorm_backward_arguments(rng: np.random.Generator) -> tuple[Any, ...]:
    x, weight, bias, groups, eps = groupnorm_arguments(rng)
    return draw(rng, *x.shape), x, *groupnorm.reference(x, weight, bias, groups, eps)[1:], weight, eps


def groupnorm_peer(torch: Any, x: Any, weight: Any, bias: Any, groups: int, eps: float) -> Callable[[], Any]:
    return lambda: torch.nn.functional.group_norm(x, groups, weight, bias, eps)


def groupnorm_backward_peer(
    torch: Any, dy: Any, x: Any, mean: Any, var: Any, weight: Any, eps: float
) -> Callable[[], Any]:
    norm = torch.nn.functional.group_norm
    inputs = (x, weight, torch.zeros_like(weight))
    return gradients(torch, lambda x, w, b: norm(x, GROUPS, w, b, eps), inputs, dy)


# ------------------------------------------------------------------------------------------------- attention

B, T, H, D = 8, 128, 4, 64  # of the GPT step; causal, so half of every product is left out
SCALE = D**-0.5
HEAD_FLOPS = B * H * T * T * D  # one product of a causal square: 2 B H T T d / 2


def heads(rng: np.random.Generator, count: int) -> tuple[np.ndarray, ...]:
    return tuple(draw(rng, B, T, H, D) for _ in range(count))


def attention_backward_arguments(rng: np.random.Generator) -> tuple[Any, ...]:
    q, k, v, dout = heads(rng, 4)
    saved = attention.reference(q, k, v, None, True, SCALE, 0.0, None)
    return dout, q, k, v, *saved, None, True, SCALE, 0.0, None, *(np.empty_like(x) for x in (q, k, v))


def fused_attention(torch: Any) -> Callable[..., Any]:
    def run(q: Any, k: Any, v: Any) -> Any:
        parts = (x.transpose(1, 2) for x in (q, k, v))
        return torch.nn.functional.scaled_dot_product_attention(*parts, is_causal=True).transpose(1, 2)

    return run


def attention_peer(torch: Any, q: Any, k: Any, v: Any, *_: Any) -> Callable[[], Any]:
    return lambda: fused_attention(torch)(q, k, v)


def attention_backward_peer(torch: Any, dout: Any, q: Any, k: Any, v: Any, *_: Any) -> Callable[[], Any]:
    return gradients(torch, fused_attention(torch), (q, k, v), dout)


def scores(rng: np.random.Generator) -> tuple[Any, ...]:
    return draw(rng, 8, 12, 256, 256), None, 0.125, True


def scores_backward(rng: np.random.Generator) -> tuple[Any, ...]:
    z, *options = scores(rng)
    return draw(rng, *z.shape), masked_softmax.reference(z, *options), *options


def future(torch: Any, z: Any) -> Any:
    return torch.ones(z.shape[-2:], dtype=torch.bool).triu(1)


def masked_softmax_peer(torch: Any, z: Any, *_: Any) -> Callable[[], Any]:
    hide = future(torch, z)
    return lambda: torch.softmax((z * 0.125).masked_fill(hide, float("-inf")), -1)


def masked_softmax_backward_peer(torch: Any, dw: Any, w: Any, *_: Any) -> Callable[[], Any]:
    return lambda: torch.ops.aten._softmax_backward_data(dw, w, -1, torch.float32) * 0.125


def rotary_arguments(rng: np.random.Generator) -> tuple[Any, ...]:
    x = draw(rng, 8, 512, 16, 64)
    return x, *rotary_tables(512, 64, 10000.0, like=x)


def additive_arguments(rng: np.random.Generator) -> tuple[Any, ...]:
    """One step of a decoder: a query a sample, as in a batch of 64 dates."""
    return draw(rng, 64, 1, 128), draw(rng, 64, 32, 128), draw(rng, 128)


def additive_peer(torch: Any, query: Any, keys: Any, v: Any) -> Callable[[], Any]:
    def run() -> Any:
        u = torch.tanh(query[:, :, None] + keys[:, None])
        return u @ v, u

    return run


def additive_backward_arguments(rng: np.random.Generator) -> tuple[Any, ...]:
    scores, u = additive_scores(*additive_arguments(rng))
    return draw(rng, *scores.shape), u, draw(rng, 128)


def additive_backward_peer(torch: Any, dscores: Any, u: Any, v: Any) -> Callable[[], Any]:
    def run() -> Any:
        dz = dscores[..., None] * v * (1 - u * u)
        return dz.sum(2), dz.sum(1), dscores.reshape(-1) @ u.reshape(-1, u.shape[-1])

    return run


def rotary_peer(torch: Any, x: Any, cos: Any, sin: Any) -> Callable[[], Any]:
    c, s = cos[:, None], sin[:, None]

    def run() -> Any:
        x1, x2 = x[..., :32], x[..., 32:]
        return torch.cat([x1 * c - x2 * s, x2 * c + x1 * s], dim=-1)

    return run


# ------------------------------------------------------------------------------------------------- ends of the network

V, TABLE_ROWS = 8192, 50257


def cross_entropy_arguments(rng: np.random.Generator) -> tuple[Any, ...]:
    count = np.asarray(1 / 1024, np.float32)
    return draw(rng, 1024, V), rng.integers(0, V, 1024), None, count, -100, 0.0, 0.0, False


def cross_entropy_peer(torch: Any, logits: Any, targets: Any, *_: Any) -> Callable[[], Any]:
    return loss_and_gradient(torch, lambda z: torch.nn.functional.cross_entropy(z, targets), logits)


def soft_cross_entropy_arguments(rng: np.random.Generator) -> tuple[Any, ...]:
    targets = np.abs(draw(rng, 1024, V)) / V
    return draw(rng, 1024, V), targets, None, np.asarray(1 / 1024, np.float32), 0.0, 0.0, False


def softcap_peer(torch: Any, x: Any, cap: float) -> Callable[[], Any]:
    return lambda: cap * torch.tanh(x / cap)


def softcap_backward_peer(torch: Any, x: Any, dy: Any, cap: float, _: bool) -> Callable[[], Any]:
    return gradients(torch, lambda z: cap * torch.tanh(z / cap), (x,), dy)


def nll_arguments(rng: np.random.Generator) -> tuple[Any, ...]:
    return draw(rng, 1024, V), rng.integers(0, V, 1024), None, np.asarray(1 / 1024, np.float32), -100


def nll_moved(x: Any, targets: Any, *_: Any) -> float:
    return x.nbytes + targets.size * (targets.itemsize + 2 * x.itemsize)  # dx, and a number of each row


def nll_peer(torch: Any, x: Any, targets: Any, *_: Any) -> Callable[[], Any]:
    return loss_and_gradient(torch, lambda z: torch.nn.functional.nll_loss(z, targets), x)


def cosine_arguments(rng: np.random.Generator) -> tuple[Any, ...]:
    target = rng.choice(np.array([-1, 1], np.float32), ROWS)
    return draw(rng, ROWS, COLS), draw(rng, ROWS, COLS), target, 0.0, 1.0, None


def cosine_peer(torch: Any, x1: Any, x2: Any, target: Any, *_: Any) -> Callable[[], Any]:
    def run() -> Any:
        leaves = [x.detach().requires_grad_() for x in (x1, x2)]
        losses = torch.nn.functional.cosine_embedding_loss(*leaves, target, reduction="none")
        return losses.detach(), *torch.autograd.grad(losses.sum(), leaves)

    return run


def mse_peer(torch: Any, x: Any, target: Any, _: float) -> Callable[[], Any]:
    return loss_and_gradient(torch, lambda z: torch.nn.functional.mse_loss(z, target), x)


def huber_arguments(rng: np.random.Generator) -> tuple[Any, ...]:
    return "huber", draw(rng, N), draw(rng, N), None, None, 1.0, 1 / N, None, False


def huber_peer(torch: Any, _: str, x: Any, target: Any, *__: Any) -> Callable[[], Any]:
    return loss_and_gradient(torch, lambda z: torch.nn.functional.huber_loss(z, target), x)


def zipf_ids(rng: np.random.Generator, count: int = 8192) -> np.ndarray:
    p = 1 / np.arange(1, TABLE_ROWS + 1)
    return rng.choice(TABLE_ROWS, count, p=p / p.sum())


def scatter_moved(dy: Any, ids: Any, out: Any) -> float:
    return dy.nbytes + ids.nbytes + 2 * len(np.unique(ids)) * out[0].nbytes


def scatter_peer(torch: Any, dy: Any, ids: Any, _: Any) -> Callable[[], Any]:
    return lambda: torch.ops.aten.embedding_dense_backward(dy, ids, TABLE_ROWS, -1, False)


# ------------------------------------------------------------------------------------------------- optimizers


def first_step() -> np.ndarray:
    """The first step of Adam with betas 0.9 and 0.999, not clipped."""
    return np.array(Control(1, 1, np.inf, 1e-3, 1 - 0.9, 1 - 0.999), np.float32)


def adam_arguments(rng: np.random.Generator) -> tuple[Any, ...]:
    p, g = draw(rng, N), draw(rng, N)
    return p, np.zeros_like(p), np.zeros_like(p), g, first_step(), 1.0, 0.9, 0.999, 1e-8, 0.01, True, 0.0


def sgd_arguments(rng: np.random.Generator) -> tuple[Any, ...]:
    p, g = draw(rng, N), draw(rng, N)
    return p, np.zeros_like(p), g, first_step(), 1.0, 0.9, False, 0.0, 0.0


# name: op, which of m, v, w it has, its numbers
RULES: dict[str, tuple[Op, str, tuple[float, ...]]] = {
    "amsgrad": (amsgrad, "mvw", (0.9, 0.999, 1e-8)),
    "nadam": (nadam, "mv", (0.9, 0.999, 1e-8)),
    "radam": (radam, "mv", (0.9, 0.999, 1e-8)),
    "adamax": (adamax, "mv", (0.9, 0.999, 1e-8)),
    "lion": (lion, "m", (0.9, 0.99)),
    "lamb": (lamb, "mvw", (0.9, 0.999, 1e-6, 0.01)),
    "rmsprop": (rmsprop, "v", (0.99, 1e-8, 0.0)),
    "rmsprop centered momentum": (rmsprop, "mvw", (0.99, 1e-8, 0.9)),
    "adagrad": (adagrad, "v", (0.0, 1e-10)),
    "adadelta": (adadelta, "mv", (0.9, 1e-6)),
    "rprop": (rprop, "mv", (0.5, 1.2, 1e-6, 50.0)),
    "asgd": (asgd, "m", (1e-4, 0.75, 1e6)),
    "muon": (muon, "mw", (0.95, True)),
}


def rule_state(name: str) -> tuple[str | None, ...]:
    """Of m, v and w the letters of those that the rule has, None for the others."""
    return tuple(letter if letter in RULES[name][1] else None for letter in "mvw")


def move_arguments(rng: np.random.Generator) -> tuple[Any, ...]:
    """A step of LAMB."""
    p, u = draw(rng, N), draw(rng, N)
    totals = (np.array([float(np.vdot(a, a))]) for a in (p, u))
    return p, u, first_step(), 1.0, 1.0, 0.0, *totals


def adafactor_arguments(rng: np.random.Generator) -> tuple[Any, ...]:
    p, g = draw(rng, ROWS, COLS), draw(rng, ROWS, COLS)
    row, col = np.ones(ROWS, np.float32), np.ones(COLS, np.float32)
    control = np.array(Control(1, 1, np.inf, 1e-2, 1, 1, 2), np.float32)
    return p, row, col, None, g, control, 1.0, -0.8, 1e-7, 1e-3, 1.0, 0.0, 0.0


def newton_schulz_flops(g: Any, *_: Any) -> float:
    short, long = sorted(g.shape)
    return 5 * (4 * short * short * long + 2 * short**3)


def rule_written(name: str) -> tuple[int, ...]:
    """Indices of the arguments that a rule writes: p, unless it finds a direction only, and its state."""
    state = tuple(i for i, letter in enumerate(rule_state(name), 1) if letter)
    return state if name in ("lamb", "muon") else (0, *state)


def rule_arguments(name: str) -> Callable[[np.random.Generator], tuple[Any, ...]]:
    """No decay, first step."""

    def arguments(rng: np.random.Generator) -> tuple[Any, ...]:
        p, g = draw(rng, N), draw(rng, N)
        state = (None if letter is None else np.full_like(p, 0.01 * (letter == "v")) for letter in rule_state(name))
        control = np.array(Control(1, 1, np.inf, 1e-3, 1 - 0.9, 1 - 0.999, 1, 0.4), np.float32)
        return p, *state, g, control, 1.0, RULES[name][2], 0.0, False, 0.0

    return arguments


def optimizer_peer(make: str, gradient: int, **options: Any) -> Callable[..., Callable[[], Any]]:
    def peer(torch: Any, p: Any, *others: Any) -> Callable[[], Any]:
        p.requires_grad_()
        p.grad = others[gradient - 1]
        optimizer = getattr(torch.optim, make)([p], lr=1e-3, fused=True, **options)

        def run() -> Any:
            optimizer.step()
            return p

        return run

    return peer


def update_control_arguments(rng: np.random.Generator) -> tuple[Any, ...]:
    written = first_step(), np.zeros(2, np.int64), np.zeros(OUTCOME_SIZE)
    totals, count, rates, loss = np.ones(4), np.ones(1), np.full(100, 1e-3, np.float32), np.ones(1)
    return *written, totals, None, count, rates, 1.0, None, 0.9, 0.999, math.inf, None, loss


# ------------------------------------------------------------------------------------------------- the registry

TANH, EXACT = (None, "tanh"), (None, "none")


def probabilities(rng: np.random.Generator, function: Op) -> tuple[Any, ...]:
    return draw(rng, ROWS, COLS), function.reference(draw(rng, ROWS, COLS))


def gelu_peer(name: str, approximate: str) -> Callable[..., Callable[[], Any]]:
    def peer(torch: Any, *arguments: Any) -> Callable[[], Any]:
        tensors = [a for a in arguments if isinstance(a, torch.Tensor)]
        return lambda: getattr(torch.ops.aten, name)(*tensors, approximate=approximate)

    return peer


def prelu_backward_peer(torch: Any, dy: Any, x: Any, weight: Any) -> Callable[[], Any]:
    return gradients(torch, torch.nn.functional.prelu, (x, weight), dy)


def softmax_backward_peer(name: str) -> Callable[..., Callable[[], Any]]:
    return lambda torch, dy, y: lambda: getattr(torch.ops.aten, name)(dy, y, 1, torch.float32)


CASES: dict[str, Case] = {
    "matmul": Case(
        product,
        lambda rng: (draw(rng, 1024, 256), draw(rng, 256, 1024)),
        lambda torch, a, b: lambda: torch.mm(a, b),
        flops=lambda a, b: 2.0 * a.shape[0] * a.shape[1] * b.shape[1],
    ),
    "sum_rows": Case(sum_rows, matrices(1), lambda torch, x: lambda: x.sum(0)),
    "batchnorm_statistics": Case(
        batchnorm_statistics,
        matrices(1),
        lambda torch, x: lambda: torch.var_mean(x, 0, correction=0)[::-1],
        factor=3,
    ),
    "batchnorm": Case(batchnorm, batchnorm_arguments, batchnorm_peer),
    "batchnorm_backward": Case(batchnorm_backward, batchnorm_backward_arguments, batchnorm_backward_peer, factor=3),
    "batchnorm_update": Case(batchnorm_update, batchnorm_update_arguments, written=(0, 1, 2)),
    "layernorm": Case(layernorm, norm_arguments, layernorm_peer),
    "add_layernorm": Case(add_layernorm, lambda rng: (draw(rng, ROWS, COLS), *norm_arguments(rng)), add_layernorm_peer),
    "layernorm_backward": Case(layernorm_backward, layernorm_backward_arguments, layernorm_backward_peer, factor=3),
    "rmsnorm": Case(rmsnorm, lambda rng: (draw(rng, ROWS, COLS), draw(rng, COLS), EPS), rmsnorm_peer),
    "rmsnorm_backward": Case(rmsnorm_backward, rmsnorm_backward_arguments, rmsnorm_backward_peer, factor=3),
    "groupnorm": Case(groupnorm, groupnorm_arguments, groupnorm_peer),
    "groupnorm_backward": Case(groupnorm_backward, groupnorm_backward_arguments, groupnorm_backward_peer, factor=3),
    "attention": Case(
        attention,
        lambda rng: (*heads(rng, 3), None, True, SCALE, 0.0, None, False),
        attention_peer,
        flops=lambda *_: 2 * HEAD_FLOPS,
    ),
    "attention_backward": Case(
        attention_backward,
        attention_backward_arguments,
        attention_backward_peer,
        flops=lambda *_: 4 * HEAD_FLOPS,
        moved=lambda dout, *_: 8 * dout.nbytes + B * H * T * T * 2,  # q, k, v, out, dout, dq, dk, dv; half of weights
    ),
    "masked_softmax": Case(masked_softmax, scores, masked_softmax_peer),
    "masked_softmax_backward": Case(masked_softmax_backward, scores_backward, masked_softmax_backward_peer),
    "additive_scores": Case(additive_scores, additive_arguments, additive_peer),
    "additive_scores_backward": Case(
        additive_scores_backward, additive_backward_arguments, additive_backward_peer, factor=3
    ),  # sums over the batch
    "rotary": Case(rotary, rotary_arguments, rotary_peer),
    "softmax": Case(softmax, matrices(1), lambda torch, x: lambda: torch.softmax(x, 1)),
    "softmax_backward": Case(
        softmax_backward, lambda rng: probabilities(rng, softmax), softmax_backward_peer("_softmax_backward_data")
    ),
    "log_softmax": Case(log_softmax, matrices(1), lambda torch, x: lambda: torch.log_softmax(x, 1)),
    "log_softmax_backward": Case(
        log_softmax_backward,
        lambda rng: probabilities(rng, log_softmax),
        softmax_backward_peer("_log_softmax_backward_data"),
    ),
    "cross_entropy": Case(cross_entropy_rows, cross_entropy_arguments, cross_entropy_peer),
    "soft_cross_entropy": Case(soft_cross_entropy, soft_cross_entropy_arguments, cross_entropy_peer),
    "softcap": Case(softcap, matrices(1, 30.0), softcap_peer),
    "softcap_backward": Case(softcap_backward, matrices(2, 30.0, False), softcap_backward_peer),
    "nll": Case(nll, nll_arguments, nll_peer, moved=nll_moved),
    "cosine_embedding": Case(cosine_embedding, cosine_arguments, cosine_peer),
    "mse": Case(mse, lambda rng: (draw(rng, N), draw(rng, N), 1 / N), mse_peer),
    "pointwise_loss": Case(pointwise_loss, huber_arguments, huber_peer),
    "embedding": Case(
        embedding,
        lambda rng: (zipf_ids(rng), draw(rng, TABLE_ROWS, 256)),
        lambda torch, ids, table: lambda: torch.nn.functional.embedding(ids, table),
        moved=lambda ids, table: ids.nbytes + 2 * ids.size * table[0].nbytes,
    ),
    "scatter_add": Case(
        scatter_add,
        lambda rng: (draw(rng, 8192, 256), zipf_ids(rng), np.zeros((TABLE_ROWS, 256), np.float32)),
        scatter_peer,
        moved=scatter_moved,
    ),
    "dropout": Case(
        dropout,
        matrices(1, Key(0, 0, 0, 0), 0.1),
        lambda torch, x, key, p: lambda: (None, torch.nn.functional.dropout(x, p))[:1],  # other random bits
    ),
    "add": Case(add, matrices(2), aten("add")),
    "multiply": Case(multiply, matrices(2), aten("mul")),
    "relu": Case(relu, matrices(1), aten("relu")),
    "relu_backward": Case(relu_backward, matrices(2), aten("threshold_backward", 0)),
    "leaky_relu": Case(leaky_relu, matrices(1, 0.01), aten("leaky_relu", 0.01)),
    "leaky_relu_backward": Case(leaky_relu_backward, matrices(2, 0.01), aten("leaky_relu_backward", 0.01, False)),
    "prelu": Case(prelu, matrices(1, np.full(1, 0.25, np.float32)), aten("prelu")),
    "prelu_backward": Case(
        prelu_backward, matrices(2, np.full(1, 0.25, np.float32)), prelu_backward_peer, factor=10
    ),  # a sum over all elements
    "gelu": Case(gelu, matrices(1, *TANH), gelu_peer("gelu", "tanh")),
    "gelu exact": Case(
        gelu,
        lambda rng: (draw(rng, 512, COLS), *EXACT),  # its reference is an integral: small, to be done this year
        gelu_peer("gelu", "none"),
    ),
    "gelu_backward": Case(gelu_backward, matrices(2, *TANH), gelu_peer("gelu_backward", "tanh")),
    "gelu_with_derivative": Case(gelu_with_derivative, matrices(1, *TANH)),
    "gelu_with_derivative_inplace": Case(gelu_with_derivative_inplace, matrices(1, *TANH), written=(0,)),
    "silu": Case(silu, matrices(1), aten("silu")),
    "silu_with_derivative": Case(silu_with_derivative, matrices(1)),
    "sigmoid": Case(sigmoid, matrices(1), aten("sigmoid")),
    "sigmoid_backward": Case(sigmoid_backward, matrices(2), aten("sigmoid_backward")),
    "tanh": Case(tanh, matrices(1), aten("tanh")),
    "tanh_backward": Case(tanh_backward, matrices(2), aten("tanh_backward")),
    "adam": Case(adam, adam_arguments, optimizer_peer("AdamW", 3, weight_decay=0.01), written=(0, 1, 2)),
    "sgd": Case(sgd, sgd_arguments, optimizer_peer("SGD", 2, momentum=0.9), written=(0, 1)),
    **{name: Case(RULES[name][0], rule_arguments(name), written=rule_written(name)) for name in RULES},
    "move": Case(move, move_arguments, written=(0,)),
    "follow": Case(follow, lambda rng: (draw(rng, N), draw(rng, N), 0.999), written=(0,)),
    "adafactor": Case(adafactor, adafactor_arguments, written=(0, 1, 2)),
    "newton_schulz": Case(newton_schulz, lambda rng: (draw(rng, 1024, 256),), flops=newton_schulz_flops, factor=20),
    "sum_of_squares": Case(
        sum_of_squares,
        lambda rng: (draw(rng, N),),
        lambda torch, x: lambda: (x * x).sum().reshape(1),  # vector_norm is faster, and off by 2e-4 at this size
    ),
    "update_control": Case(update_control, update_control_arguments, written=(0, 1, 2)),
}
