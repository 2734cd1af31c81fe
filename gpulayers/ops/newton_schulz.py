"""Muon's direction: the nearest (half-)orthogonal matrix, roughly, by matrix products alone.

    X = G / max(|G|, eps)                   (the transpose where G is higher than wide)
    X = a X + (b A + c A A) X,  A = X X'    `steps` times

G = U S V' becomes about U V': five steps bring every singular value that is not tiny to 0.7 .. 1.2, which is all that
the optimizer needs. On a GPU it is three matrix products and a few array calls a step; no kernel would better them.

Source: Jordan et al., Muon: an optimizer for hidden layers in neural networks, 2024; the coefficients are theirs.
"""

from gpulayers.backend import Array, array_module
from gpulayers.ops.matmul import product
from gpulayers.ops.op import Op

COEFFICIENTS = (3.4445, -4.775, 2.0315)


def _reference(
    g: Array, coefficients: tuple[float, float, float] = COEFFICIENTS, steps: int = 5, eps: float = 1e-7
) -> Array:
    """g: (rows, cols), float32 or wider. Returns a new array of that shape."""
    xp, (a, b, c) = array_module(g), coefficients
    x = g.T if g.shape[0] > g.shape[1] else g
    x = x / xp.maximum(xp.sqrt((x * x).sum()), eps)
    for _ in range(steps):
        gram = product(x, x.T)
        x = a * x + product(b * gram + c * product(gram, gram), x)
    return x.T if g.shape[0] > g.shape[1] else x


newton_schulz = Op("newton_schulz", reference=_reference)
