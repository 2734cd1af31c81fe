"""The registry of `bench.gpu`: one case for each op that has a kernel, at the sizes of a GPT-2 step, bfloat16.

`bench/cases.py` is its sibling for the CPU; these arrays are made on the device and are several times its L2 cache.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from bench import gpu_peers as peers
from bench.cases import EPS, RULES, first_step, rule_state, rule_written, update_control_arguments, zipf_ids
from gpulayers.backend import Array, is_array
from gpulayers.cuda import bytes_of
from gpulayers.ops.activation import activation, activation_backward
from gpulayers.ops.adam import adam
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
from gpulayers.ops.glu import glu, glu_backward
from gpulayers.ops.groupnorm import groupnorm, groupnorm_backward
from gpulayers.ops.gru_cell import gru_cell, gru_cell_backward
from gpulayers.ops.layernorm import add_layernorm, layernorm, layernorm_backward
from gpulayers.ops.lstm_cell import lstm_cell, lstm_cell_backward
from gpulayers.ops.masked_softmax import masked_softmax, masked_softmax_backward
from gpulayers.ops.matmul import product
from gpulayers.ops.move import follow, move
from gpulayers.ops.mse import mse
from gpulayers.ops.nll import nll
from gpulayers.ops.op import Op
from gpulayers.ops.pointwise_loss import pointwise_loss
from gpulayers.ops.relu import leaky_relu, leaky_relu_backward, prelu, prelu_backward, relu, relu_backward
from gpulayers.ops.rmsnorm import rmsnorm, rmsnorm_backward
from gpulayers.ops.rnn_cell import rnn_cell, rnn_cell_backward
from gpulayers.ops.rotary import rotary, rotary_tables
from gpulayers.ops.sgd import sgd
from gpulayers.ops.sigmoid import sigmoid, sigmoid_backward, silu, silu_with_derivative, tanh, tanh_backward
from gpulayers.ops.soft_cross_entropy import soft_cross_entropy
from gpulayers.ops.softcap import softcap, softcap_backward
from gpulayers.ops.softmax import (
    log_softmax,
    log_softmax_backward,
    softmax,
    softmax_backward,
    softmin,
    softmin_backward,
)
from gpulayers.ops.sum_of_squares import sum_of_squares
from gpulayers.ops.sum_rows import sum_rows
from gpulayers.ops.swap_time import swap_time
from gpulayers.ops.update_control import Control, update_control
from gpulayers.step import Key


class Sizes(NamedTuple):
    tokens: int
    dim: int
    logit_rows: int
    vocab: int
    batch: int
    heads: int
    length: int
    parameters: int
    period: int  # of the random numbers, a prime


FULL = Sizes(32768, 768, 8192, 50257, 8, 12, 1024, 124_439_808, 16_777_259)
TINY = Sizes(7, 40, 3, 67, 2, 3, 9, 1000, 4099)  # for the tests of this folder, on the emulated device


class Draw:
    """Makes the arrays of a case on a device, the same ones for the same seed.

    Normal numbers are drawn once by NumPy, and every array is another stretch of them: nobody waits for 400 million.
    """

    def __init__(self, xp: Any, sizes: Sizes, seed: int = 0) -> None:
        self.xp, self.sizes, self.seed = xp, sizes, seed
        numbers = np.random.default_rng(seed).standard_normal(sizes.period, np.float32)
        self._numbers = {"float32": xp.asarray(numbers), "bfloat16": xp.asarray(numbers.astype(ml_dtypes.bfloat16))}
        self.again()

    def again(self) -> "Draw":
        """From the first number on."""
        self.rng, self._next = np.random.default_rng(self.seed), 0
        return self

    def normal(self, *shape: int, dtype: str = "bfloat16") -> Array:
        numbers = self._numbers[dtype]
        flat = self.xp.empty(int(np.prod(shape)), numbers.dtype)
        start = 0
        while start < flat.size:
            taken = min(flat.size - start, numbers.size - self._next)
            flat[start : start + taken] = numbers[self._next : self._next + taken]
            start, self._next = start + taken, (self._next + taken) % numbers.size
        return flat.reshape(shape)

    def ids(self, count: int, below: int) -> Array:
        return self.xp.asarray(self.rng.integers(0, below, count))

    def there(self, array: np.ndarray) -> Array:
        return self.xp.asarray(array)


@dataclass(frozen=True)
class Target:
    """What the kernel is meant to reach: share of the floor, and time over that of PyTorch's variants."""

    share: float
    ratio: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Case:
    """op: what is called. arguments: makes its arguments.

    peers: variant -> `make(torch, wrap, *arguments)`, see `gpu_peers.py`. written: indices of arguments that the call
    writes; they are results after what it returns. moved: the bytes that have to be moved, by default all arrays read
    and all results written, each once. flops: of its matrix products. check: how results are compared, "rows" if each
    index of the first axis is computed by itself (then some of them are), "first rows" if also its number matters,
    "all". unfused: whether the reference is timed, as array code, on the device. factor: on the tolerance, which is
    that of each result's dtype, or of `kind`.
    """

    op: Op
    arguments: Callable[[Draw], tuple[Any, ...]]
    peers: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    written: tuple[int, ...] = ()
    moved: Callable[..., float] | None = None
    flops: Callable[..., float] | None = None
    check: str = "rows"
    unfused: bool = True
    factor: float = 1.0
    kind: str | None = None
    target: Target | None = None

    def bytes(self, arguments: tuple[Any, ...], results: tuple[Any, ...]) -> float:
        return self.moved(*arguments) if self.moved else bytes_of(*arguments, *results)


# ------------------------------------------------------------------------------------------------- arguments


def activations(count: int, *others: Any) -> Callable[[Draw], tuple[Any, ...]]:
    """`count` arrays (tokens, 4 dim), as inside a feed-forward, then the other arguments."""
    return lambda d: (*(d.normal(d.sizes.tokens, 4 * d.sizes.dim) for _ in range(count)), *others)


def of_kind(name: str, count: int) -> Callable[[Draw], tuple[Any, ...]]:
    """The kind of activation, then `count` arrays as inside a feed-forward."""
    return lambda d: (name, *activations(count)(d))


def gated(gate: str, count: int) -> Callable[[Draw], tuple[Any, ...]]:
    """`count` arrays (tokens, 2 dim), then one twice as wide, as inside a gated feed-forward, and its gate."""

    def arguments(d: Draw) -> tuple[Any, ...]:
        tokens, cols = d.sizes.tokens, 2 * d.sizes.dim
        return *(d.normal(tokens, cols) for _ in range(count)), d.normal(tokens, 2 * cols), gate

    return arguments


def stream(count: int, *others: Any) -> Callable[[Draw], tuple[Any, ...]]:
    """`count` arrays (tokens, dim), as between the layers, then the other arguments."""
    return lambda d: (*(d.normal(d.sizes.tokens, d.sizes.dim) for _ in range(count)), *others)


def with_weight(count: int) -> Callable[[Draw], tuple[Any, ...]]:
    """`count` arrays (tokens, dim) and one weight for all, of PReLU."""
    return lambda d: (*stream(count)(d), d.normal(1))


def soft_cross_entropy_arguments(d: Draw) -> tuple[Any, ...]:
    """Targets of a teacher, as of distillation: each row's sum is near 1."""
    rows, vocab = d.sizes.logit_rows, d.sizes.vocab
    targets = d.normal(rows, vocab)
    targets *= targets.dtype.type(1 / vocab)
    return d.normal(rows, vocab), targets, None, d.there(np.asarray(1 / rows, np.float32)), 0.0, 0.0, False


def nll_arguments(d: Draw) -> tuple[Any, ...]:
    rows, vocab = d.sizes.logit_rows, d.sizes.vocab
    return d.normal(rows, vocab), d.ids(rows, vocab), None, d.there(np.asarray(1 / rows, np.float32)), -100


def nll_moved(x: Array, targets: Array, *_: Any) -> float:
    """dx, and two numbers of each row: what its target says, and its loss."""
    return x.nbytes + targets.size * (targets.itemsize + x.itemsize + 4)


def cosine_arguments(d: Draw) -> tuple[Any, ...]:
    signs = np.resize(np.array([1, -1], ml_dtypes.bfloat16), d.sizes.tokens)
    return *stream(2)(d), d.there(signs), 0.0, 1.0, None


def softcap_backward_arguments(d: Draw) -> tuple[Any, ...]:
    """Of logits; their gradient is float32."""
    shape = d.sizes.tokens, d.sizes.dim
    return d.normal(*shape), d.normal(*shape, dtype="float32"), 30.0, False


def gates(d: Draw, count: int) -> tuple[Array, Array]:
    """The two products of a cell, each (tokens, count dim): a batch that fills the card, of one step."""
    s = d.sizes
    return d.normal(s.tokens, count * s.dim), d.normal(s.tokens, count * s.dim)


def rnn_backward_arguments(d: Draw) -> tuple[Any, ...]:
    return *stream(3)(d), rnn_cell(*stream(3)(d))


def gru_arguments(d: Draw) -> tuple[Any, ...]:
    return *gates(d, 3), d.normal(d.sizes.dim), *stream(1)(d)


def gru_backward_arguments(d: Draw) -> tuple[Any, ...]:
    gi, gh, bias, h = gru_arguments(d)
    _, made, hn = gru_cell(gi, gh, bias, h)
    return *stream(3)(d), made, hn, h


def lstm_arguments(d: Draw) -> tuple[Any, ...]:
    return *gates(d, 4), *stream(2)(d)


def lstm_backward_arguments(d: Draw) -> tuple[Any, ...]:
    gi, gh, h, c = lstm_arguments(d)
    _, c_new, made = lstm_cell(gi, gh, h, c)
    return *stream(4)(d), made, c, c_new


def logits(inplace: bool) -> Callable[[Draw], tuple[Any, ...]]:
    def arguments(d: Draw) -> tuple[Any, ...]:
        rows, vocab = d.sizes.logit_rows, d.sizes.vocab
        mean = d.there(np.asarray(1 / rows, np.float32))
        return d.normal(rows, vocab), d.ids(rows, vocab), None, mean, -100, 0.0, 0.0, inplace

    return arguments


def scores(d: Draw) -> tuple[Any, ...]:
    s = d.sizes
    return d.normal(s.batch, s.heads, s.length, s.length), None, 0.125, True


def scores_backward(d: Draw) -> tuple[Any, ...]:
    z, *options = scores(d)
    return d.normal(*z.shape), masked_softmax(z, *options), *options


def causal_bytes(arrays: int) -> Callable[..., float]:
    """`arrays` read where they are visible, and one written whole."""

    def moved(x: Array, *_: Any) -> float:
        T = x.shape[-1]
        return x.nbytes * (arrays * (T + 1) / (2 * T) + 1)

    return moved


def norm_arguments(d: Draw) -> tuple[Any, ...]:
    return *stream(1)(d), d.normal(d.sizes.dim), d.normal(d.sizes.dim), EPS


def layernorm_backward_arguments(d: Draw) -> tuple[Any, ...]:
    x, weight, bias, eps = norm_arguments(d)
    _, mean, rstd = layernorm(x, weight, bias, eps)
    return *stream(1)(d), x, mean, rstd, weight


def rmsnorm_arguments(d: Draw) -> tuple[Any, ...]:
    return *stream(1)(d), d.normal(d.sizes.dim), EPS


def rmsnorm_backward_arguments(d: Draw) -> tuple[Any, ...]:
    x, weight, eps = rmsnorm_arguments(d)
    return *stream(1)(d), x, rmsnorm(x, weight, eps)[1], weight


def batchnorm_arguments(d: Draw) -> tuple[Any, ...]:
    x, weight, bias, eps = norm_arguments(d)
    return x, *batchnorm_statistics(x), weight, bias, eps


def batchnorm_backward_arguments(d: Draw) -> tuple[Any, ...]:
    x, mean, var, weight, _, eps = batchnorm_arguments(d)
    return *stream(1)(d), x, mean, var, weight, eps


def batchnorm_update_arguments(d: Draw) -> tuple[Any, ...]:
    cols, batches = d.sizes.dim, d.there(np.zeros(1, np.int64))
    mean, var, new_mean, new_var = (d.normal(cols, dtype="float32") for _ in range(4))
    return mean, abs(var), batches, new_mean, abs(new_var), d.sizes.tokens, 0.1


def groupnorm_arguments(d: Draw) -> tuple[Any, ...]:
    """Images of `dim` channels, in 32 groups where that divides them."""
    dim, groups = d.sizes.dim, math.gcd(d.sizes.dim, 32)
    x = d.normal(d.sizes.batch, dim, d.sizes.tokens // d.sizes.batch)
    return x, d.normal(dim), d.normal(dim), groups, EPS


def groupnorm_backward_arguments(d: Draw) -> tuple[Any, ...]:
    x, weight, bias, groups, eps = groupnorm_arguments(d)
    _, mean, var = groupnorm(x, weight, bias, groups, eps)
    return d.normal(*x.shape), x, mean, var, weight, eps


HEAD = 64


def heads(d: Draw, count: int) -> tuple[Array, ...]:
    s = d.sizes
    return tuple(d.normal(s.batch, s.length, s.heads, HEAD) for _ in range(count))


def attention_backward_arguments(d: Draw) -> tuple[Any, ...]:
    q, k, v, dout = heads(d, 4)
    saved = attention(q, k, v, None, True, HEAD**-0.5, 0.0, None)
    gradients = [d.xp.empty_like(x) for x in (q, k, v)]
    for gradient in gradients:
        gradient.view(np.uint8).fill(0xFF)  # NaN
    return dout, q, k, v, *saved, None, True, HEAD**-0.5, 0.0, None, *gradients


def head_flops(products: int, first: int) -> Callable[..., float]:
    """Of `products` products of a causal square; the first one's left side is argument `first`."""

    def flops(*arguments: Any) -> float:
        B, T, H, size = arguments[first].shape
        return products * B * H * T * T * size

    return flops


def attention_bytes(d_arrays: int) -> Callable[..., float]:
    """Of a fused kernel, which writes no weights: q, k, v, out and so on, all of one size."""
    return lambda x, *_: d_arrays * x.nbytes


QUERIES = 16  # of additive attention, which makes an array (B, QUERIES, S, D) of them


def additive_arguments(d: Draw) -> tuple[Any, ...]:
    s = d.sizes
    return d.normal(s.batch, QUERIES, s.dim), d.normal(s.batch, s.length, s.dim), d.normal(s.dim)


def additive_backward_arguments(d: Draw) -> tuple[Any, ...]:
    scores, u = additive_scores(*additive_arguments(d))
    return d.normal(*scores.shape), u, d.normal(d.sizes.dim)


def rotary_arguments(d: Draw) -> tuple[Any, ...]:
    (x,) = heads(d, 1)
    return x, *rotary_tables(d.sizes.length, HEAD, 10000.0, like=x)


def zipf(d: Draw, count: int) -> Array:
    """Ids as frequent as words are; a tiny vocabulary takes the rest modulo its size."""
    return d.there(zipf_ids(d.rng, count) % d.sizes.vocab)


def embedding_arguments(d: Draw) -> tuple[Any, ...]:
    return zipf(d, d.sizes.tokens), d.normal(d.sizes.vocab, d.sizes.dim)


def scatter_arguments(d: Draw) -> tuple[Any, ...]:
    out = d.xp.zeros((d.sizes.vocab, d.sizes.dim), ml_dtypes.bfloat16)
    return *stream(1)(d), zipf(d, d.sizes.tokens), out


def scatter_bytes(dy: Array, ids: Array, out: Array) -> float:
    return dy.nbytes + ids.nbytes + 2 * len(np.unique(ids.get())) * out[0].nbytes


def adam_arguments(clear: bool = False, copy: bool = False) -> Callable[[Draw], tuple[Any, ...]]:
    def arguments(d: Draw) -> tuple[Any, ...]:
        n = d.sizes.parameters
        p, g = d.normal(n, dtype="float32"), d.normal(n, dtype="float32")
        m, v = d.xp.zeros_like(p), d.xp.zeros_like(p)
        rule = (1.0, 0.9, 0.999, 1e-8, 0.01, True, 0.0)
        low = d.xp.zeros(n, ml_dtypes.bfloat16) if copy else None
        return p, m, v, g, d.there(first_step()), *rule, low, clear

    return arguments


def rule_arguments(name: str) -> Callable[[Draw], tuple[Any, ...]]:
    """As `bench.cases.rule_arguments`, at the size of a model."""

    def arguments(d: Draw) -> tuple[Any, ...]:
        n = d.sizes.parameters
        p, g = d.normal(n, dtype="float32"), d.normal(n, dtype="float32")
        state = (None if a is None else d.xp.full_like(p, 0.01 * (a == "v")) for a in rule_state(name))
        control = d.there(np.array(Control(1, 1, np.inf, 1e-3, 1 - 0.9, 1 - 0.999, 1, 0.4), np.float32))
        return p, *state, g, control, 1.0, RULES[name][2], 0.0, False, 0.0

    return arguments


def move_arguments(d: Draw) -> tuple[Any, ...]:
    n = d.sizes.parameters
    totals = (d.there(np.array([2.0])), d.there(np.array([0.5])))
    return d.normal(n, dtype="float32"), d.normal(n, dtype="float32"), d.there(first_step()), 1.0, 1.0, 0.0, *totals


def follow_arguments(d: Draw) -> tuple[Any, ...]:
    n = d.sizes.parameters
    return d.normal(n, dtype="float32"), d.normal(n, dtype="float32"), 0.999


def per_parameter(nbytes: int) -> Callable[..., float]:
    return lambda p, *_: nbytes * p.size


def sgd_arguments(d: Draw) -> tuple[Any, ...]:
    n = d.sizes.parameters
    p, g = d.normal(n, dtype="float32"), d.normal(n, dtype="float32")
    return p, d.xp.zeros_like(p), g, d.there(first_step()), 1.0, 0.9, False, 0.0, 0.0


def control_arguments(d: Draw) -> tuple[Any, ...]:
    return tuple(d.there(a) if is_array(a) else a for a in update_control_arguments(d.rng))


def product_arguments(d: Draw) -> tuple[Any, ...]:
    return *stream(1)(d), d.normal(d.sizes.dim, 4 * d.sizes.dim)


# ------------------------------------------------------------------------------------------------- the registry

TANH = (None, "tanh")
EAGER, COMPILED, FUSED = "torch", "torch compiled", "torch fused"


def both(make: Callable[..., Any]) -> dict[str, Callable[..., Any]]:
    """The same function as it comes, and through torch.compile."""
    return {EAGER: make, COMPILED: make}


CROSS_ENTROPY = Target(0.95, {EAGER: 0.25, COMPILED: 0.5})

CASES: dict[str, Case] = {
    "cross_entropy": Case(cross_entropy_rows, logits(False), both(peers.cross_entropy), target=CROSS_ENTROPY),
    "cross_entropy inplace": Case(cross_entropy_rows, logits(True), both(peers.cross_entropy), target=CROSS_ENTROPY),
    "masked_softmax": Case(
        masked_softmax, scores, both(peers.masked_softmax), moved=causal_bytes(1), target=Target(0.93, {EAGER: 0.6})
    ),
    "masked_softmax_backward": Case(
        masked_softmax_backward,
        scores_backward,
        both(peers.masked_softmax_backward),
        moved=causal_bytes(2),
        factor=2,
        target=Target(0.93, {EAGER: 0.6}),
    ),
    "additive_scores": Case(additive_scores, additive_arguments, both(peers.additive_scores)),
    "additive_scores_backward": Case(
        additive_scores_backward,
        additive_backward_arguments,
        both(peers.additive_scores_backward),
        moved=lambda dscores, u, v: 2 * (dscores.nbytes + u.nbytes),  # two sums, in two directions
        check="all",
        factor=3,
    ),
    "adam": Case(
        adam,
        adam_arguments(),
        {EAGER: peers.optimizer("AdamW", 3, foreach=True), FUSED: peers.optimizer("AdamW", 3, fused=True)},
        written=(0, 1, 2),
        moved=per_parameter(28),
        target=Target(0.95, {FUSED: 1.0, EAGER: 0.5}),
    ),
    "adam clear": Case(adam, adam_arguments(True), written=(0, 1, 2, 3), moved=per_parameter(32)),
    "adam clear copy": Case(adam, adam_arguments(True, True), written=(0, 1, 2, 3, 12), moved=per_parameter(34)),
    "batchnorm_statistics": Case(
        batchnorm_statistics, stream(1), both(peers.batchnorm_statistics), check="all", factor=3
    ),
    "batchnorm": Case(batchnorm, batchnorm_arguments, both(peers.batchnorm)),
    "batchnorm_backward": Case(
        batchnorm_backward, batchnorm_backward_arguments, both(peers.batchnorm_backward), check="all", factor=3
    ),
    "batchnorm_update": Case(batchnorm_update, batchnorm_update_arguments, written=(0, 1, 2), check="all"),
    "layernorm": Case(layernorm, norm_arguments, both(peers.layernorm), target=Target(0.90, {EAGER: 1.0})),
    "layernorm_backward": Case(
        layernorm_backward,
        layernorm_backward_arguments,
        both(peers.layernorm_backward),
        check="all",
        factor=3,
        target=Target(0.85, {EAGER: 0.9}),
    ),
    "add_layernorm": Case(
        add_layernorm,
        lambda d: (*stream(1)(d), *norm_arguments(d)),
        both(peers.add_layernorm),
        kind="bfloat16",  # the statistics are those of the rounded sum
    ),
    "rmsnorm": Case(rmsnorm, rmsnorm_arguments, both(peers.rmsnorm)),
    "rmsnorm_backward": Case(
        rmsnorm_backward, rmsnorm_backward_arguments, both(peers.rmsnorm_backward), check="all", factor=3
    ),
    "groupnorm": Case(groupnorm, groupnorm_arguments, both(peers.groupnorm)),
    "groupnorm_backward": Case(
        groupnorm_backward, groupnorm_backward_arguments, both(peers.groupnorm_backward), check="all", factor=3
    ),
    "attention": Case(
        attention,
        lambda d: (*heads(d, 3), None, True, HEAD**-0.5, 0.0, None, False),
        {EAGER: peers.attention, FUSED: peers.fused_attention},
        moved=attention_bytes(4),
        flops=head_flops(2, first=0),
    ),
    "attention_backward": Case(
        attention_backward,
        attention_backward_arguments,
        {EAGER: peers.attention_backward, FUSED: peers.fused_attention_backward},
        moved=attention_bytes(8),
        flops=head_flops(4, first=1),
        factor=3,
    ),
    "rotary": Case(rotary, rotary_arguments, both(peers.rotary)),
    "softmax": Case(softmax, activations(1), both(peers.softmax)),
    "softmax_backward": Case(
        softmax_backward, lambda d: (*activations(1)(d), softmax(*activations(1)(d))), {EAGER: peers.softmax_backward}
    ),
    "log_softmax": Case(log_softmax, activations(1), both(peers.log_softmax)),
    "log_softmax_backward": Case(
        log_softmax_backward,
        lambda d: (*activations(1)(d), log_softmax(*activations(1)(d))),
        {EAGER: peers.log_softmax_backward},
        factor=2,
    ),
    "softmin": Case(softmin, activations(1), both(peers.softmin)),
    "softmin_backward": Case(softmin_backward, lambda d: (*activations(1)(d), softmin(*activations(1)(d)))),
    "soft_cross_entropy": Case(
        soft_cross_entropy,
        soft_cross_entropy_arguments,
        both(peers.cross_entropy),
    ),
    "softcap": Case(softcap, lambda d: (*stream(1)(d), 30.0), both(peers.softcap)),
    "softcap_backward": Case(softcap_backward, softcap_backward_arguments, both(peers.softcap_backward)),
    "nll": Case(nll, nll_arguments, both(peers.nll), moved=nll_moved),
    "cosine_embedding": Case(cosine_embedding, cosine_arguments, both(peers.cosine_embedding)),
    "mse": Case(
        mse,
        lambda d: (*stream(2)(d), 1 / (d.sizes.tokens * d.sizes.dim)),
        both(peers.mse),
        check="all",
    ),
    "pointwise_loss": Case(
        pointwise_loss,
        lambda d: ("huber", *stream(2)(d), None, None, 1.0, 1 / (d.sizes.tokens * d.sizes.dim), None, False),
        both(peers.huber),
        check="all",
    ),
    "embedding": Case(
        embedding,
        embedding_arguments,
        both(peers.embedding),
        moved=lambda ids, table: ids.nbytes + 2 * ids.size * table[0].nbytes,
        unfused=False,  # it looks at the ids, for which the host waits
    ),
    "scatter_add": Case(
        scatter_add, scatter_arguments, {EAGER: peers.scatter_add}, moved=scatter_bytes, check="all", factor=2
    ),
    "dropout": Case(
        dropout,
        activations(1, Key(0, 0, 0, 0), 0.1),
        both(peers.dropout),
        check="first rows",
        unfused=False,  # its bits come from the host
    ),
    "add": Case(add, activations(2), both(peers.add)),
    "multiply": Case(multiply, activations(2), both(peers.multiply)),
    "gelu": Case(gelu, activations(1, *TANH), both(peers.gelu)),
    "gelu_backward": Case(gelu_backward, activations(2, *TANH), {EAGER: peers.gelu_backward}),
    "gelu_with_derivative": Case(gelu_with_derivative, activations(1, *TANH)),
    "gelu_with_derivative_inplace": Case(gelu_with_derivative_inplace, activations(1, *TANH), written=(0,)),
    "relu": Case(relu, activations(1), both(peers.relu)),
    "relu_backward": Case(relu_backward, activations(2), {EAGER: peers.relu_backward}),
    "leaky_relu": Case(leaky_relu, activations(1, 0.01), both(peers.leaky_relu)),
    "leaky_relu_backward": Case(leaky_relu_backward, activations(2, 0.01), {EAGER: peers.leaky_relu_backward}),
    "prelu": Case(prelu, with_weight(1), both(peers.prelu)),
    "prelu_backward": Case(prelu_backward, with_weight(2), {EAGER: peers.prelu_backward}, check="all", factor=20),
    "silu": Case(silu, activations(1), both(peers.silu)),
    "silu_with_derivative": Case(silu_with_derivative, activations(1)),
    "sigmoid": Case(sigmoid, activations(1), both(peers.sigmoid)),
    "sigmoid_backward": Case(sigmoid_backward, activations(2), {EAGER: peers.sigmoid_backward}),
    "tanh": Case(tanh, activations(1), both(peers.tanh)),
    "tanh_backward": Case(tanh_backward, activations(2), {EAGER: peers.tanh_backward}),
    "activation mish": Case(activation, of_kind("mish", 1), both(peers.activation)),
    "activation_backward mish": Case(activation_backward, of_kind("mish", 2), both(peers.activation_backward)),
    "activation hardswish": Case(activation, of_kind("hardswish", 1), both(peers.activation)),
    "activation_backward hardswish": Case(
        activation_backward, of_kind("hardswish", 2), both(peers.activation_backward), factor=2
    ),
    "glu silu": Case(glu, gated("silu", 0), both(peers.swiglu)),
    "glu_backward silu": Case(glu_backward, gated("silu", 1), both(peers.swiglu_backward)),
    "sgd": Case(
        sgd,
        sgd_arguments,
        {
            EAGER: peers.optimizer("SGD", 2, foreach=True, momentum=0.9),
            FUSED: peers.optimizer("SGD", 2, fused=True, momentum=0.9),
        },
        written=(0, 1),
    ),
    **{name: Case(RULES[name][0], rule_arguments(name), written=rule_written(name)) for name in RULES},
    "move": Case(move, move_arguments, written=(0,), moved=per_parameter(12)),
    "follow": Case(follow, follow_arguments, written=(0,), moved=per_parameter(12)),
    "sum_of_squares": Case(
        sum_of_squares,
        lambda d: (d.normal(d.sizes.tokens * d.sizes.dim),),
        both(peers.sum_of_squares),
        check="all",
    ),
    "rnn_cell": Case(rnn_cell, stream(3)),
    "rnn_cell_backward": Case(rnn_cell_backward, rnn_backward_arguments),
    "gru_cell": Case(gru_cell, gru_arguments),
    "gru_cell_backward": Case(gru_cell_backward, gru_backward_arguments),
    "lstm_cell": Case(lstm_cell, lstm_arguments),
    "lstm_cell_backward": Case(lstm_cell_backward, lstm_backward_arguments),
    "swap_time": Case(
        swap_time, lambda d: (d.normal(d.sizes.batch, d.sizes.length, d.sizes.dim),), both(peers.swap_time), check="all"
    ),
    "sum_rows": Case(sum_rows, stream(1), both(peers.sum_rows), check="all", factor=3),
    "update_control": Case(update_control, control_arguments, written=(0, 1, 2), check="all"),
    "matmul": Case(
        product,
        product_arguments,
        {EAGER: peers.matmul},
        flops=lambda a, b: 2.0 * a.shape[0] * a.shape[1] * b.shape[1],
        unfused=False,  # CuPy's own product refuses bfloat16
    ),
}
