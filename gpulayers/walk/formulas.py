"""What each layer computes, forward and backward, in the names of a walk: {x} in, {y} out, {weight}, {bias}, d for the
gradient of the loss by it, ' for a transpose."""

import re
from typing import NamedTuple

from gpulayers.layers.layer import Layer
from gpulayers.models.feedforward import FeedForwardNet


class Formula(NamedTuple):
    """forward; dx: of the input's gradient, "" for none; parameters: of their gradients, by attribute."""

    forward: str
    dx: str = ""
    parameters: dict[str, str] = {}  # noqa: RUF012 never changed


NORM = {
    "weight": "d{weight} = sum over rows of d{y} xhat,  xhat = ({x} - mean) / std",
    "bias": "d{bias} = sum over rows of d{y}",
}
FORMULAS = {
    "Linear": Formula(
        "{y} = {x} {weight} + {bias}",
        "d{x} = d{y} {weight}'",
        {"weight": "d{weight} = {x}' d{y}", "bias": "d{bias} = sum over rows of d{y}"},
    ),
    "TiedLinear": Formula("{y} = {x} {weight}'", "d{x} = d{y} {weight}", {"weight": "d{weight} += d{y}' {x}"}),
    "Embedding": Formula(
        "{y} = the rows {x} of {weight}", "", {"weight": "d{weight} += the rows of d{y}, at rows {x}"}
    ),
    "LearnedPositions": Formula(
        "{y} = {x} + the first rows of {weight}",
        "d{x} = d{y}",
        {"weight": "d{weight} = sum of d{y} over the samples"},
    ),
    "LayerNorm": Formula(
        "{y} = xhat {weight} + {bias},  xhat = ({x} - mean) / std",
        "d{x} = (g - mean(g) - xhat mean(g xhat)) / std,  g = d{y} {weight}",
        NORM,
    ),
    "BatchNorm": Formula(
        "{y} = xhat {weight} + {bias},  xhat = ({x} - mean) / std over the rows",
        "d{x} = (g - mean(g) - xhat mean(g xhat)) / std,  g = d{y} {weight}",
        NORM,
    ),
    "RMSNorm": Formula("{y} = {x} / rms {weight}", "", {"weight": "d{weight} = sum over rows of d{y} {x} / rms"}),
    "Tanh": Formula("{y} = tanh({x})", "d{x} = d{y} (1 - {y}^2)"),
    "Sigmoid": Formula("{y} = 1 / (1 + exp(-{x}))", "d{x} = d{y} {y} (1 - {y})"),
    "ReLU": Formula("{y} = max({x}, 0)", "d{x} = d{y} where {x} > 0, else 0"),
    "LeakyReLU": Formula("{y} = {x} where {x} > 0, else slope {x}", "d{x} = d{y} where {x} > 0, else slope d{y}"),
    "PReLU": Formula(
        "{y} = {x} where {x} > 0, else {weight} {x}",
        "d{x} = d{y} where {x} > 0, else {weight} d{y}",
        {"weight": "d{weight} = sum of d{y} {x} where {x} <= 0"},
    ),
    "GELU": Formula("{y} = {x} Phi({x})", "d{x} = d{y} (Phi({x}) + {x} phi({x}))"),
    "SiLU": Formula("{y} = {x} sigmoid({x})", "d{x} = d{y} s (1 + {x} (1 - s)),  s = sigmoid({x})"),
    "SinusoidalPositions": Formula("{y} = {x} + sines and cosines of the position", "d{x} = d{y}"),
    "RNN": Formula(
        "h_t = tanh(x_t weight_ih + bias_ih + h_(t-1) weight_hh + bias_hh),  from the first step to the last",
        "from the last step to the first: da_t = dh_t (1 - h_t^2),  dx_t = da_t weight_ih',  "
        "dh_(t-1) += da_t weight_hh'",
    ),
    "GRU": Formula(
        "r, z = sigmoid, n = tanh of their thirds of x_t weight_ih and h_(t-1) weight_hh, r before the latter in n;  "
        "h_t = (1 - z) n + z h_(t-1)",
        "from the last step to the first: dn = dh_t (1 - z), dz = dh_t (h_(t-1) - n), each by its gate's slope",
    ),
    "LSTM": Formula(
        "i, f, o = sigmoid, g = tanh of their quarters of x_t weight_ih + h_(t-1) weight_hh + biases;  "
        "c_t = f c_(t-1) + i g;  h_t = o tanh(c_t)",
        "from the last step to the first: dc_t += dh_t o (1 - tanh(c_t)^2),  dc_(t-1) = dc_t f,  "
        "each by its gate's slope",
    ),
    "Softmax": Formula("{y} = exp({x}) / sum exp({x})", "d{x} = {y} (d{y} - sum(d{y} {y}))"),
}


class OpFormula(NamedTuple):
    """outputs: what the results are called, in order. The inputs have the names of the op's reference body."""

    formula: str = ""
    outputs: tuple[str, ...] = ()


OPS = {
    "attention": OpFormula(
        "w = softmax(q k' / sqrt(d), what is hidden left out);  out = w v;  "
        "kept for backward: w = weights, each row times its inverse if there is one",
        ("out", "weights", "inverse"),
    ),
    "attention_backward": OpFormula(
        "dv = w' dout;  dw = dout v';  ds = w (dw - sum(dw w));  dq = ds k / sqrt(d);  dk = ds' q / sqrt(d)",
        ("dq", "dk", "dv"),
    ),
    "add_layernorm": OpFormula(
        "sum = x + f;  y = xhat weight + bias,  xhat = (sum - mean) / std",
        ("sum", "y", "mean", "1 / std"),
    ),
    "matmul": OpFormula("the product a b, with the bias added if there is one", ("a b",)),
    "gelu_with_derivative_inplace": OpFormula(
        "y = z Phi(z),  z = x + bias; Phi is the normal distribution's; its slope is kept for backward",
        ("y",),
    ),
    "tanh": OpFormula("y = tanh(x)", ("y",)),
    "tanh_backward": OpFormula("dx = dy (1 - y^2)", ("dx",)),
    "sum_rows": OpFormula("the sum of the rows of x", ("sum",)),
    "masked_softmax": OpFormula("weights = softmax(scale scores, what is hidden left out)", ("weights",)),
    "masked_softmax_backward": OpFormula("dscores = scale weights (dweights - sum(dweights weights))", ("dscores",)),
    "cross_entropy": OpFormula(
        "p = softmax(logits);  loss = mean of -log p[target];  dlogits = (p - onehot(target)) / count"
    ),
}


class Names(NamedTuple):
    x: str = "x"
    y: str = "y"
    weight: str = "weight"
    bias: str = "bias"


def names_of(model: Layer, layer: str) -> Names:
    """What the arrays of a layer are called. In the feed-forward network, as its equations call them."""
    if not isinstance(model, FeedForwardNet):
        return Names()
    first = len(model.config.widths) + 1
    if layer == "embedding":
        return Names("ids", f"h{first}", "E")
    if (found := re.fullmatch(r"W\.(\d+)(?:\.(\w+))?", layer)) is None:
        return Names()
    k, part = int(found[1]), found[2]
    after = "logits" if k == 1 else f"{'h' if model.config.activation == 'none' else 'z'}{k - 1}"
    if part == "activation":
        return Names(f"z{k - 1}", f"h{k - 1}")
    if part == "norm":
        return Names()
    return Names(f"h{k}", after, f"W{k}", f"b{k}")


def formula_of(layer: Layer, names: Names) -> Formula:
    """The layer's formula with its names filled in; where none is written down, that of its docstring."""
    kind = type(layer).__name__
    if kind not in FORMULAS:
        first = (type(layer).__doc__ or "").strip().partition("\n")[0].rstrip(".")
        return Formula(first)
    known, values = FORMULAS[kind], dict(names._asdict())
    forward, dx, parameters = known
    if kind == "Linear" and getattr(layer, "bias", None) is None:
        forward = forward.removesuffix(" + {bias}")
    return Formula(
        forward.format(**values),
        dx.format(**values),
        {name: text.format(**values) for name, text in parameters.items()},
    )
