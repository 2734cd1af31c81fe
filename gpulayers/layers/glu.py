"""Gated linear units: half of an axis decides how much of the other half passes."""

import math

from gpulayers.backend import Array
from gpulayers.layers.layer import Layer, check_choice, check_integer, floating_input, gradient_of
from gpulayers.ops.glu import glu, glu_backward
from gpulayers.step import Train


class GLU(Layer):
    """y = a s(b) with s(b) = 1 / (1 + exp(-b)), where a is the first half of x along `axis` and b the second.

    x: any shape, floating, `axis` of even size 2 n. y: the same with n along `axis`.
    saved: x. Backward computes the gate again, which costs less than to keep it.

    Raises TypeError for an input that is not floating, ValueError for an axis that it lacks or whose size is odd.
    Source: Dauphin et al., Language modeling with gated convolutional networks, 2016, section 2.
    """

    def __init__(self, axis: int = -1) -> None:
        check_integer(type(self).__name__, axis=axis)
        self.axis = axis
        self.gate = "sigmoid"

    def forward(self, x: Array, train: Train | None = None) -> tuple[Array, Array]:
        self._check(x)
        return glu(self._rows(x), self.gate).reshape(self._halved(x)), x

    def backward(self, dy: Array, saved: Array) -> Array:
        x = saved
        gradient_of(dy, self._halved(x), type(self).__name__)
        rows = self._rows(x)
        dx = glu_backward(dy.reshape(rows.shape[0], rows.shape[1] // 2), rows, self.gate)
        return dx.reshape(x.shape)

    def _check(self, x: Array) -> None:
        who = type(self).__name__
        floating_input(x, who)
        if not -x.ndim <= self.axis < x.ndim:
            raise ValueError(f"{who} works along axis {self.axis}, which an input of shape {x.shape} does not have")
        if x.shape[self.axis] % 2:
            raise ValueError(
                f"{who} halves axis {self.axis}, so its size must be even, got an input of shape {x.shape}"
            )

    def _rows(self, x: Array) -> Array:
        """(rows, 2 cols): with all axes behind it in a row, the halves of any axis are two runs."""
        axis = self.axis % x.ndim
        return x.reshape(math.prod(x.shape[:axis]), math.prod(x.shape[axis:]))

    def _halved(self, x: Array) -> tuple[int, ...]:
        axis = self.axis % x.ndim
        return *x.shape[:axis], x.shape[axis] // 2, *x.shape[axis + 1 :]


class GEGLU(GLU):
    """y = a b Phi(b): a gated unit, as `GLU`, whose gate is GELU.

    approximate: "none", exact; or "tanh", as in `GELU`.
    Raises as `GLU` does, and ValueError for another `approximate`.
    Source: Shazeer, GLU variants improve transformer, 2020, equation 5.
    """

    def __init__(self, axis: int = -1, approximate: str = "none") -> None:
        super().__init__(axis)
        check_choice("GEGLU", ("none", "tanh"), approximate=approximate)
        self.approximate = approximate
        self.gate = "gelu" if approximate == "none" else "gelu_tanh"


class SwiGLU(GLU):
    """y = a b s(b) with s(b) = 1 / (1 + exp(-b)): a gated unit, as `GLU`, whose gate is SiLU. LLaMA has it.

    Raises as `GLU` does.
    Source: Shazeer, GLU variants improve transformer, 2020, equation 5.
    """

    def __init__(self, axis: int = -1) -> None:
        super().__init__(axis)
        self.gate = "silu"
