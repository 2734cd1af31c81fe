"""PyTorch's counterparts of the GPU cases: `make(torch, wrap, *arguments)` gives the function to time.

wrap: the identity for eager mode, `torch.compile` for the compiled variant; it goes around the forward function, whose
backward PyTorch then compiles too. The function returns results in the order of the op's, fewer of them, or None for
those that cannot be compared. Tensors share the memory of the arrays that they are made of.
"""

import importlib
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from gpulayers.backend import is_array

Make = Callable[..., Callable[[], Any]]


def to_tensor(torch: Any, array: Any) -> Any:
    """The same memory as a tensor, on the GPU or in host memory. bfloat16 goes as 16-bit integers."""
    low = array.dtype == ml_dtypes.bfloat16
    whole = array.view(np.int16) if low else array
    tensor = torch.from_numpy(whole) if isinstance(whole, np.ndarray) else torch.from_dlpack(whole)
    return tensor.view(torch.bfloat16) if low else tensor


def to_array(tensor: Any) -> np.ndarray:
    """A copy in host memory; bfloat16 as float32, which is exact."""
    tensor = tensor.detach().cpu()
    return (tensor.float() if tensor.is_floating_point() and tensor.element_size() == 2 else tensor).numpy()


def build(torch: Any, make: Make, arguments: tuple[Any, ...], compiled: bool) -> Callable[[], Any]:
    """The function to time, on tensors in place of arrays."""
    return make(torch, _compiler(torch) if compiled else _same, *_tensors(torch, arguments))


def _tensors(torch: Any, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(to_tensor(torch, a) if is_array(a) else a for a in arguments)


def _same(function: Any) -> Any:
    return function


def _compiler(torch: Any) -> Any:
    functorch: Any = importlib.import_module("torch._functorch.config")
    if hasattr(functorch, "donated_buffer"):
        functorch.donated_buffer = False  # a backward pass that is timed runs many times on what forward saved
    torch.compiler.reset()
    return lambda function: torch.compile(function, dynamic=False)


def gradients(torch: Any, function: Any, inputs: tuple[Any, ...], dy: Any) -> Callable[[], Any]:
    """The backward pass alone: forward runs once."""
    leaves = [x.detach().requires_grad_() for x in inputs]
    y = function(*leaves)
    return lambda: torch.autograd.grad(y, leaves, dy, retain_graph=True)


def loss_and_gradient(torch: Any, loss: Any, x: Any, more: Callable[[Any], Any]) -> Callable[[], Any]:
    """Forward and backward. more: what is returned of the loss."""

    def run() -> Any:
        leaf = x.detach().requires_grad_()
        value = loss(leaf)
        return (more(value), *torch.autograd.grad(value, leaf))

    return run


def elementwise(name: str) -> Make:
    """torch.nn.functional.<name> of the tensors, with the numbers among the arguments."""

    def make(torch: Any, wrap: Any, *arguments: Any) -> Callable[[], Any]:
        function = wrap(getattr(torch.nn.functional, name))
        return lambda: function(*arguments)

    return make


def aten(name: str, *others: Any, **named: Any) -> Make:
    """PyTorch's operator of this name on the tensors among the arguments."""

    def make(torch: Any, wrap: Any, *arguments: Any) -> Callable[[], Any]:
        operator = getattr(torch.ops.aten, name)
        tensors = [a for a in arguments if isinstance(a, torch.Tensor)]
        function = wrap(lambda *inputs: operator(*inputs, *others, **named))
        return lambda: function(*tensors)

    return make


relu, leaky_relu, prelu, silu = (elementwise(name) for name in ("relu", "leaky_relu", "prelu", "silu"))
add, multiply, sigmoid, tanh = (aten(name) for name in ("add", "mul", "sigmoid", "tanh"))
relu_backward, sigmoid_backward = aten("threshold_backward", 0), aten("sigmoid_backward")
tanh_backward, leaky_relu_backward = aten("tanh_backward"), aten("leaky_relu_backward", 0.01, False)
gelu, gelu_backward = aten("gelu", approximate="tanh"), aten("gelu_backward", approximate="tanh")
matmul = aten("mm")


def prelu_backward(torch: Any, wrap: Any, dy: Any, x: Any, weight: Any) -> Callable[[], Any]:
    return gradients(torch, wrap(torch.nn.functional.prelu), (x, weight), dy)


def activation(torch: Any, wrap: Any, kind: str, x: Any) -> Callable[[], Any]:
    function = wrap(getattr(torch.nn.functional, kind))
    return lambda: function(x)


def activation_backward(torch: Any, wrap: Any, kind: str, dy: Any, x: Any) -> Callable[[], Any]:
    return gradients(torch, wrap(getattr(torch.nn.functional, kind)), (x,), dy)


def _swiglu(torch: Any) -> Callable[[Any], Any]:
    def run(x: Any) -> Any:
        a, b = x.chunk(2, dim=-1)
        return a * torch.nn.functional.silu(b)

    return run


def swiglu(torch: Any, wrap: Any, x: Any, gate: str) -> Callable[[], Any]:
    function = wrap(_swiglu(torch))
    return lambda: function(x)


def swiglu_backward(torch: Any, wrap: Any, dy: Any, x: Any, gate: str) -> Callable[[], Any]:
    return gradients(torch, wrap(_swiglu(torch)), (x,), dy)


def dropout(torch: Any, wrap: Any, x: Any, key: Any, p: float) -> Callable[[], Any]:
    function = wrap(lambda t: torch.nn.functional.dropout(t, p))

    def run() -> Any:
        function(x)  # other random bits, so nothing to compare

    return run


# ------------------------------------------------------------------------------------------------- normalisation


def batchnorm_statistics(torch: Any, wrap: Any, x: Any) -> Callable[[], Any]:
    function = wrap(lambda t: torch.var_mean(t.float(), 0, correction=0)[::-1])
    return lambda: function(x)


def batchnorm(
    torch: Any, wrap: Any, x: Any, mean: Any, var: Any, weight: Any, bias: Any, eps: float
) -> Callable[[], Any]:
    norm = torch.nn.functional.batch_norm
    function = wrap(lambda *inputs: norm(*inputs, False, 0.0, eps))
    vectors = mean, var, weight.float(), bias.float()  # as PyTorch's own mixed precision has them
    return lambda: function(x, *vectors)


def batchnorm_backward(
    torch: Any, wrap: Any, dy: Any, x: Any, mean: Any, var: Any, weight: Any, eps: float
) -> Callable[[], Any]:
    function = wrap(lambda t, w, b: torch.nn.functional.batch_norm(t, None, None, w, b, True, 0.0, eps))
    return gradients(torch, function, (x, weight.float(), torch.zeros_like(weight).float()), dy)


def groupnorm(torch: Any, wrap: Any, x: Any, weight: Any, bias: Any, groups: int, eps: float) -> Callable[[], Any]:
    function = wrap(lambda t, w, b: torch.nn.functional.group_norm(t, groups, w, b, eps))
    return lambda: function(x, weight, bias)


def groupnorm_backward(
    torch: Any, wrap: Any, dy: Any, x: Any, mean: Any, var: Any, weight: Any, eps: float
) -> Callable[[], Any]:
    groups = mean.shape[1]
    function = wrap(lambda t, w, b: torch.nn.functional.group_norm(t, groups, w, b, eps))
    return gradients(torch, function, (x, weight, torch.zeros_like(weight)), dy)


def layernorm(torch: Any, wrap: Any, x: Any, weight: Any, bias: Any, eps: float) -> Callable[[], Any]:
    function = wrap(lambda t, w, b: torch.nn.functional.layer_norm(t, t.shape[-1:], w, b, eps))
    return lambda: function(x, weight, bias)


def layernorm_backward(torch: Any, wrap: Any, dy: Any, x: Any, mean: Any, rstd: Any, weight: Any) -> Callable[[], Any]:
    function = wrap(lambda t, w, b: torch.nn.functional.layer_norm(t, t.shape[-1:], w, b, 1e-5))
    return gradients(torch, function, (x, weight, torch.zeros_like(weight)), dy)


def add_layernorm(torch: Any, wrap: Any, x: Any, f: Any, weight: Any, bias: Any, eps: float) -> Callable[[], Any]:
    def both(t: Any, u: Any, w: Any, b: Any) -> Any:
        total = t + u
        return total, torch.nn.functional.layer_norm(total, t.shape[-1:], w, b, eps)

    function = wrap(both)
    return lambda: function(x, f, weight, bias)


def rmsnorm(torch: Any, wrap: Any, x: Any, weight: Any, eps: float) -> Callable[[], Any]:
    function = wrap(lambda t, w: torch.nn.functional.rms_norm(t, t.shape[-1:], w, eps))
    return lambda: function(x, weight)


def rmsnorm_backward(torch: Any, wrap: Any, dy: Any, x: Any, rstd: Any, weight: Any) -> Callable[[], Any]:
    function = wrap(lambda t, w: torch.nn.functional.rms_norm(t, t.shape[-1:], w, 1e-5))
    return gradients(torch, function, (x, weight), dy)


# ------------------------------------------------------------------------------------------------- attention


def _hide(torch: Any, z: Any) -> Any:
    return torch.ones(z.shape[-2:], dtype=torch.bool, device=z.device).triu(1)


def masked_softmax(torch: Any, wrap: Any, z: Any, hide: Any, scale: float, causal: bool) -> Callable[[], Any]:
    hide = _hide(torch, z)
    function = wrap(lambda t, h: torch.softmax((t * scale).masked_fill(h, float("-inf")), -1))
    return lambda: function(z, hide)


def masked_softmax_backward(
    torch: Any, wrap: Any, dw: Any, w: Any, hide: Any, scale: float, causal: bool
) -> Callable[[], Any]:
    """Backward of the above. Its own forward, on log(w) / scale, gives the same weights w."""
    hide = _hide(torch, w)
    z = torch.log(w.float().clamp_min(1e-30)).div(scale).to(w.dtype)
    function = wrap(lambda t, h: torch.softmax((t * scale).masked_fill(h, float("-inf")), -1))
    return gradients(torch, lambda t: function(t, hide), (z,), dw)


def _scores_and_sum(torch: Any, q: Any, k: Any, v: Any) -> Any:
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    z = (q @ k.transpose(-1, -2)) * q.shape[-1] ** -0.5
    return (torch.softmax(z.masked_fill(_hide(torch, z), float("-inf")), -1) @ v).transpose(1, 2)


def _scaled_dot_product(torch: Any, q: Any, k: Any, v: Any) -> Any:
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)


def attention(torch: Any, wrap: Any, q: Any, k: Any, v: Any, *_: Any) -> Callable[[], Any]:
    return lambda: _scores_and_sum(torch, q, k, v)


def fused_attention(torch: Any, wrap: Any, q: Any, k: Any, v: Any, *_: Any) -> Callable[[], Any]:
    return lambda: _scaled_dot_product(torch, q, k, v)


def attention_backward(torch: Any, wrap: Any, dout: Any, q: Any, k: Any, v: Any, *_: Any) -> Callable[[], Any]:
    return gradients(torch, lambda *inputs: _scores_and_sum(torch, *inputs), (q, k, v), dout)


def fused_attention_backward(torch: Any, wrap: Any, dout: Any, q: Any, k: Any, v: Any, *_: Any) -> Callable[[], Any]:
    return gradients(torch, lambda *inputs: _scaled_dot_product(torch, *inputs), (q, k, v), dout)


def additive_scores(torch: Any, wrap: Any, query: Any, keys: Any, v: Any) -> Callable[[], Any]:
    def scores(q: Any, k: Any, w: Any) -> Any:
        u = torch.tanh(q[:, :, None] + k[:, None])
        return u @ w, u

    function = wrap(scores)
    return lambda: function(query, keys, v)


def additive_scores_backward(torch: Any, wrap: Any, dscores: Any, u: Any, v: Any) -> Callable[[], Any]:
    def gradient(d: Any, y: Any, w: Any) -> Any:
        dz = d[..., None] * w * (1 - y * y)
        return dz.sum(2), dz.sum(1), d.reshape(-1) @ y.reshape(-1, y.shape[-1])

    function = wrap(gradient)
    return lambda: function(dscores, u, v)


def rotary(torch: Any, wrap: Any, x: Any, cos: Any, sin: Any) -> Callable[[], Any]:
    def turn(t: Any, c: Any, s: Any) -> Any:
        half = t.shape[-1] // 2
        a, b = t[..., :half], t[..., half:]
        return torch.cat([a * c - b * s, b * c + a * s], dim=-1)

    function, cos, sin = wrap(turn), cos[:, None].to(x.dtype), sin[:, None].to(x.dtype)
    return lambda: function(x, cos, sin)


# ------------------------------------------------------------------------------------------------- the rest


def softmax(torch: Any, wrap: Any, x: Any) -> Callable[[], Any]:
    function = wrap(lambda t: torch.softmax(t, -1))
    return lambda: function(x)


def softmin(torch: Any, wrap: Any, x: Any) -> Callable[[], Any]:
    function = wrap(lambda t: torch.nn.functional.softmin(t, -1))
    return lambda: function(x)


def log_softmax(torch: Any, wrap: Any, x: Any) -> Callable[[], Any]:
    function = wrap(lambda t: torch.log_softmax(t, -1))
    return lambda: function(x)


def softmax_backward(torch: Any, wrap: Any, dy: Any, y: Any) -> Callable[[], Any]:
    return lambda: torch.ops.aten._softmax_backward_data(dy, y, -1, y.dtype)


def log_softmax_backward(torch: Any, wrap: Any, dy: Any, y: Any) -> Callable[[], Any]:
    return lambda: torch.ops.aten._log_softmax_backward_data(dy, y, -1, y.dtype)


def cross_entropy(torch: Any, wrap: Any, logits: Any, targets: Any, *_: Any) -> Callable[[], Any]:
    """The mean loss is one number in place of the op's loss of each row, so only the gradient is compared."""
    loss = wrap(lambda z, t: torch.nn.functional.cross_entropy(z, t))
    return loss_and_gradient(torch, lambda z: loss(z, targets), logits, lambda value: None)


def nll(torch: Any, wrap: Any, x: Any, targets: Any, *_: Any) -> Callable[[], Any]:
    loss = wrap(lambda z, t: torch.nn.functional.nll_loss(z, t))
    return loss_and_gradient(torch, lambda z: loss(z, targets), x, lambda value: None)


def cosine_embedding(torch: Any, wrap: Any, x1: Any, x2: Any, target: Any, *_: Any) -> Callable[[], Any]:
    loss = wrap(lambda a, b: torch.nn.functional.cosine_embedding_loss(a, b, target, reduction="sum"))

    def run() -> Any:
        leaves = [x.detach().requires_grad_() for x in (x1, x2)]
        return None, *torch.autograd.grad(loss(*leaves), leaves)

    return run


def softcap(torch: Any, wrap: Any, x: Any, cap: float) -> Callable[[], Any]:
    function = wrap(lambda t: cap * torch.tanh(t.float() / cap))
    return lambda: function(x)


def softcap_backward(torch: Any, wrap: Any, x: Any, dy: Any, cap: float, _: bool) -> Callable[[], Any]:
    return gradients(torch, wrap(lambda t: cap * torch.tanh(t.float() / cap)), (x,), dy)


def mse(torch: Any, wrap: Any, x: Any, target: Any, scale: float) -> Callable[[], Any]:
    loss = wrap(lambda a, b: torch.nn.functional.mse_loss(a, b))
    return loss_and_gradient(torch, lambda a: loss(a, target), x, lambda value: value.detach())


def huber(torch: Any, wrap: Any, _: str, x: Any, target: Any, *__: Any) -> Callable[[], Any]:
    loss = wrap(lambda a, b: torch.nn.functional.huber_loss(a, b))
    return loss_and_gradient(torch, lambda a: loss(a, target), x, lambda value: value.detach())


def embedding(torch: Any, wrap: Any, ids: Any, table: Any) -> Callable[[], Any]:
    function = wrap(lambda i, t: torch.nn.functional.embedding(i, t))
    return lambda: function(ids, table)


def scatter_add(torch: Any, wrap: Any, dy: Any, ids: Any, out: Any) -> Callable[[], Any]:
    return lambda: torch.ops.aten.embedding_dense_backward(dy, ids, len(out), -1, False)


def sum_of_squares(torch: Any, wrap: Any, x: Any) -> Callable[[], Any]:
    function = wrap(lambda t: t.float().square().sum().reshape(1))
    return lambda: function(x)


def sum_rows(torch: Any, wrap: Any, x: Any) -> Callable[[], Any]:
    function = wrap(lambda t: t.sum(0, dtype=torch.float32))
    return lambda: function(x)


def swap_time(torch: Any, wrap: Any, x: Any) -> Callable[[], Any]:
    function = wrap(lambda t: t.transpose(0, 1).contiguous())
    return lambda: function(x)


def optimizer(name: str, gradient: int, **options: Any) -> Make:
    """torch.optim.<name> over tensors as large as GPT-2's parameters; argument `gradient` of the op is the gradient."""

    def make(torch: Any, wrap: Any, *arguments: Any) -> Callable[[], Any]:
        p, g = arguments[0], arguments[gradient]
        parts = []
        for start, stop in _pieces(p.numel()):
            parts.append(p[start:stop].detach().requires_grad_())
            parts[-1].grad = g[start:stop]
        decay = {"weight_decay": 0.01} if name == "AdamW" else {}
        step = getattr(torch.optim, name)(parts, lr=1e-3, **decay, **options).step

        def run() -> Any:
            step()
            return p

        return run

    return make


def _pieces(size: int, dim: int = 768, layers: int = 12) -> list[tuple[int, int]]:
    """(start, stop) of GPT-2's 148 tensors; in another size, of as many as fit, and one for the rest."""
    block = [dim, dim, 3 * dim * dim, 3 * dim, dim * dim, dim, dim, dim, 4 * dim * dim, 4 * dim, 4 * dim * dim, dim]
    pieces, start = [], 0
    for length in [50257 * dim, 1024 * dim, *block * layers, dim, dim]:
        if start + length <= size:
            pieces.append((start, start + length))
            start += length
    return pieces + ([(start, size)] if start < size else [])
