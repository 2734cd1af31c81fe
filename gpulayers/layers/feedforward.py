"""FeedForward: the transformer's two linear layers with an activation, or a gated unit, between them."""

from collections.abc import Callable
from typing import Any, NamedTuple

from gpulayers import initialize
from gpulayers.backend import Array
from gpulayers.initialize import Init, Rng
from gpulayers.layers.activation import (
    CELU,
    ELU,
    SELU,
    Hardsigmoid,
    Hardswish,
    Hardtanh,
    LogSigmoid,
    Mish,
    ReLU6,
    Softplus,
    Softsign,
)
from gpulayers.layers.dropout import Dropout
from gpulayers.layers.gelu import GELU
from gpulayers.layers.glu import GEGLU, GLU, SwiGLU
from gpulayers.layers.layer import Layer, Once, check_choice, check_sizes, floating_like, last_axis
from gpulayers.layers.leaky_relu import LeakyReLU
from gpulayers.layers.linear import Linear
from gpulayers.layers.relu import ReLU
from gpulayers.layers.sigmoid import Sigmoid
from gpulayers.layers.silu import SiLU
from gpulayers.layers.tanh import Tanh
from gpulayers.ops.gelu import gelu, gelu_with_derivative_inplace
from gpulayers.ops.matmul import matmul
from gpulayers.ops.op import as_rows
from gpulayers.step import Train

ACTIVATIONS: dict[str, Callable[[], Layer]] = {
    "gelu": lambda: GELU("none"),
    "gelu_tanh": lambda: GELU("tanh"),
    "relu": ReLU,
    "sigmoid": Sigmoid,
    "silu": SiLU,
    "tanh": Tanh,
    "glu": GLU,
    "geglu": GEGLU,
    "swiglu": SwiGLU,
    "relu6": ReLU6,
    "leaky_relu": LeakyReLU,
    "elu": ELU,
    "selu": SELU,
    "celu": CELU,
    "mish": Mish,
    "softplus": Softplus,
    "softsign": Softsign,
    "hardtanh": Hardtanh,
    "hardsigmoid": Hardsigmoid,
    "hardswish": Hardswish,
    "logsigmoid": LogSigmoid,
}


class Saved(NamedTuple):
    """What the parts keep, in the order of forward."""

    up: Any
    hidden: Once  # of the activation, of down: backward takes them out, writes over the one and lets the other go
    dropout: Any


class FeedForward(Layer):
    """y = dropout(activation(x up + b1) down + b2).

    x, y: (..., dim). up: Linear (dim, hidden), hidden = 4 dim by default. down: Linear (hidden, dim).
    activation: "gelu_tanh" (GPT-2), "gelu" (exact), "relu", "silu", "sigmoid", "tanh", "relu6", "leaky_relu", "elu",
    "selu", "celu", "mish", "softplus", "softsign", "hardtanh", "hardsigmoid", "hardswish", "logsigmoid", with their
    layers' defaults; or a gated unit, "swiglu" (LLaMA), "geglu", "glu". Then up is a Linear (dim, 2 hidden), the values
    before the gates, and hidden by default 8 dim / 3, rounded up to a multiple of 8: as many weights as 4 dim without.
    init, down_init: initialisers of the two weights, `init(shape, rng)`; down_init is init by default.
    saved: x, the hidden layer after the activation, as much again for what the activation keeps (not for relu, sigmoid
    and tanh, whose output tells the derivative; twice as much for a gated unit), and the key of the dropout.
    Raises ValueError for another activation, a wrong last dimension or p outside 0..1, TypeError for a wrong dtype.
    Sources: Vaswani et al., Attention is all you need, 2017, equation 2; Shazeer, GLU variants improve transformer,
    2020, equation 6.
    """

    def __init__(
        self,
        dim: int,
        hidden: int | None = None,
        activation: str = "gelu_tanh",
        bias: bool = True,
        dropout: float = 0.0,
        *,
        init: Init | None = None,
        down_init: Init | None = None,
        rng: Rng = None,
        dtype: str = "float32",
    ) -> None:
        check_choice("FeedForward", ACTIVATIONS, activation=activation)
        check_sizes("FeedForward", dim=dim)
        layer = ACTIVATIONS[activation]()
        gated = isinstance(layer, GLU)
        if hidden is None:
            hidden = -(-dim // 3) * 8 if gated else 4 * dim
        check_sizes("FeedForward", hidden=hidden)
        rng = initialize.generator(rng)
        self.up = Linear(dim, 2 * hidden if gated else hidden, bias, init=init, rng=rng, dtype=dtype)
        self.activation = layer
        self.down = Linear(hidden, dim, bias, init=down_init or init, rng=rng, dtype=dtype)
        self.dropout = Dropout(dropout)

    def __call__(self, x: Array) -> Array:
        if isinstance(self.activation, GELU):
            h = gelu(self._up(x), self._up_bias, self.activation.approximate)
        else:
            h = self.activation(self.up(x))
        return self.down(h)

    def forward(self, x: Array, train: Train | None = None) -> tuple[Array, Saved]:
        if isinstance(self.activation, GELU):
            # The pre-activation is ours and nobody needs it again, so GELU puts its derivative there. It adds the
            # bias as well, while its pieces are in cache.
            saved_up, saved_activation = x, self._up(x)  # Linear keeps x
            h = gelu_with_derivative_inplace(saved_activation, self._up_bias, self.activation.approximate)
        else:
            h, saved_up = self.up.forward(x, train)
            h, saved_activation = self.activation.forward(h, train)
        y, saved_down = self.down.forward(h, train)
        y, saved_dropout = self.dropout.forward(y, train)
        return y, Saved(saved_up, Once([saved_activation, saved_down]), saved_dropout)

    def without_input(self, saved: Saved) -> Saved:
        """`saved` without x, for a caller who can make x again and hands it to `backward`."""
        return saved._replace(up=None)

    def backward(self, dy: Array, saved: Saved, x: Array = None) -> Array:
        """x: the input, where `without_input` has taken it out of saved."""
        dy = self.dropout.backward(dy, saved.dropout)
        saved_down = saved.hidden.pop()
        if isinstance(self.activation, GELU):
            # over h, which only `down` has kept
            over = {"out": as_rows(saved_down)} if type(self.down) is Linear else {}
            dh = self.down.backward(dy, saved_down, **over)
            dh *= saved.hidden.pop()  # the derivative
        else:
            dh = self.down.backward(dy, saved_down)
            dh = self.activation.backward(dh, saved.hidden.pop())
        return self.up.backward(dh, saved.up if x is None else x)

    @property
    def _up_bias(self) -> Array:
        return None if self.up.bias is None else self.up.bias.data

    def _up(self, x: Array) -> Array:
        """x up without the bias, always a fresh array."""
        floating_like(x, self.up.weight, "FeedForward")
        last_axis(x, self.up.in_features, "FeedForward")
        y = matmul(as_rows(x), self.up.weight.data)
        return y.reshape(*x.shape[:-1], self.up.out_features)
