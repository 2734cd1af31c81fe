"""Every row of `torch_map` against PyTorch: its state in, its outputs out, and the same state back.

tests/vectors/torch_map.npz holds what PyTorch's own modules, and transformers' GPT-2, made of their state.
"""

import inspect
from pathlib import Path

import numpy as np
import pytest
from outside import case_names, close, load, numbered, part

import gpulayers as gl
from gpulayers import layers, torch_map
from gpulayers.layers import __all__ as exported
from gpulayers.layers.layer import Layer
from gpulayers.parameter import Parameter
from gpulayers.torch_map import from_torch, to_torch

DIM, HEADS = 6, 2


class Own(Layer):
    """A module of one's own: a list, a dictionary, a parameter, a tie."""

    def __init__(self) -> None:
        self.table = gl.Embedding(7, 4)
        self.blocks = [gl.Linear(4, 5), gl.LayerNorm(5)]
        self.towers = {"left": gl.Linear(5, 4)}
        self.scale = Parameter(np.ones(4, np.float32))
        self.head = gl.TiedLinear(self.table.weight)

    def forward(self, ids, train=None):
        x = self.table(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(self.towers["left"](x) * self.scale.data), None


def gpt(tied: bool) -> gl.GPT:
    return gl.GPT(gl.GPTConfig(vocab=11, context=6, layers=2, heads=2, dim=8, tied=tied))


def block(kind: type[Layer], norm_first: bool) -> Layer:
    return kind(DIM, HEADS, hidden=10, norm_first=norm_first, activation="relu")


def attention(**sizes) -> Layer:
    return gl.MultiHeadAttention(DIM, HEADS, **sizes)


NO_COUNTERPART = {"AdditiveAttention", "MultiplicativeAttention"}
CASES = {
    "Linear": lambda: gl.Linear(DIM, 4),
    "Linear no bias": lambda: gl.Linear(DIM, 4, bias=False),
    "Embedding": lambda: gl.Embedding(7, 4),
    "LayerNorm": lambda: gl.LayerNorm(DIM),
    "LayerNorm no bias": lambda: gl.LayerNorm(DIM, bias=False),
    "LayerNorm two axes": lambda: gl.LayerNorm((3, DIM)),
    "RMSNorm": lambda: gl.RMSNorm(DIM),
    "BatchNorm": lambda: gl.BatchNorm(3, axis=1),
    "GroupNorm": lambda: gl.GroupNorm(2, 4, axis=1),
    "InstanceNorm": lambda: gl.InstanceNorm(3, affine=True, track_running_stats=True, axis=1),
    "PReLU": lambda: gl.PReLU(DIM),
    "attention": attention,
    "attention no bias": lambda: attention(bias=False),
    "attention cross": lambda: attention(kdim=DIM),
    "attention kdim": lambda: attention(kdim=5),
    "attention vdim": lambda: attention(kdim=5, vdim=7),
    "attention three": lambda: attention(kdim=DIM, vdim=DIM),
    "Sequential": lambda: gl.Sequential(gl.Linear(DIM, 4), gl.ReLU(), gl.Linear(4, 2)),
    "a module of one's own": Own,
    **{f"encoder {first}": lambda first=first: block(gl.EncoderBlock, first) for first in (False, True)},
    **{f"decoder {first}": lambda first=first: block(gl.DecoderBlock, first) for first in (False, True)},
    **{f"GPT-2 {tied}": lambda tied=tied: gpt(tied) for tied in (False, True)},
}
for name in ("RNN", "GRU", "LSTM"):
    CASES[name] = lambda name=name: getattr(gl, name)(DIM, 4, num_layers=2, bidirectional=True)
    CASES[f"{name} no bias"] = lambda name=name: getattr(gl, name)(DIM, 4, bias=False)
    CASES[f"{name}Cell"] = lambda name=name: getattr(gl, f"{name}Cell")(DIM, 4)


def recorded(name: str) -> tuple[dict[str, np.ndarray], list[np.ndarray], np.ndarray]:
    """(state, inputs, output) of a case."""
    found = part(load("torch_map"), f"{name}/")
    return part(found, "state "), numbered(found, "x"), found["y"]


def output(layer: Layer, inputs: list[np.ndarray]) -> np.ndarray:
    y = layer(*(x.astype(np.float64) if x.dtype.kind == "f" else x for x in inputs))
    return y[0] if isinstance(y, tuple) else y


@pytest.mark.parametrize("name", CASES)
def test_from_torch(name):
    """Its state in: PyTorch's outputs come out. The way back: the same names, the same layouts, every bit."""
    layer, (state, inputs, y) = CASES[name](), recorded(name)
    layer.to(dtype="float64")
    before = output(layer, inputs)
    assert from_torch(layer, state) == ([], [])
    assert not np.allclose(before, y)
    close(output(layer, inputs), y, "float64")
    back = to_torch(layer)
    assert back.keys() == state.keys()
    for key, array in back.items():
        assert np.array_equal(array, state[key]), key
        assert array.flags.c_contiguous


def test_what_an_optimizer_has_packed_is_written_in_place():
    layer, (state, inputs, y) = CASES["decoder True"]().to(dtype="float64"), recorded("decoder True")
    flat = gl.pack(layer)
    memory = flat.data
    from_torch(layer, state)
    close(output(layer, inputs), y, "float64")
    assert flat.data is memory
    assert all(np.shares_memory(parameter.data, memory) for parameter in layer.parameters())


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_masters_are_written_too(dtype):
    layer, (state, _, _) = CASES["Linear"]().to(dtype=dtype), recorded("Linear")
    gl.AdamW(layer)
    from_torch(layer, state)
    assert all(np.array_equal(array, state[key]) for key, array in to_torch(layer).items())


def test_every_case_of_the_file_is_run():
    assert case_names("torch_map") == CASES.keys()


def test_every_row_is_run():
    """Each class that has a row is in a case, or in a layer of one."""
    seen = {type(one) for make in CASES.values() for one in (make(), *(inner for _, inner in make().named_layers()))}
    seen.add(layers.LearnedPositions)
    assert not [kind.__name__ for kind in torch_map.ROWS if not any(issubclass(one, kind) for one in seen)]


def test_every_layer_with_parameters_has_a_row():
    """What PyTorch does not have is refused, rather than mapped by guess."""
    kinds = {getattr(layers, name) for name in exported} - {Layer}
    without = {kind.__name__ for kind in kinds if not any(issubclass(kind, row) for row in torch_map.ROWS)}
    own = {name for name in without if "Parameter(" in inspect.getsource(getattr(layers, name))}
    assert own <= NO_COUNTERPART, f"no row in gpulayers/torch_map.py for {own - NO_COUNTERPART}"


def test_the_page_shows_the_table():
    page = (Path(__file__).parents[1] / "docs" / "torch-map.md").read_text(encoding="utf-8")
    assert torch_map.table() in page, "python -c 'from gpulayers import torch_map; print(torch_map.table())'"


# ------------------------------------------------------------------------------------------------- what does not fit


def test_names_that_do_not_match():
    layer, (state, _, _) = CASES["Linear"](), recorded("Linear")
    before = layer.state_dict()
    state["scale"] = state.pop("bias")
    with pytest.raises(
        ValueError, match=r"from_torch: this Linear misses \['bias'\], and has no place for \['scale'\]"
    ):
        from_torch(layer, state)
    assert all(np.array_equal(array, before[key]) for key, array in layer.state_dict().items())
    assert from_torch(layer, state, strict=False) == (["bias"], ["scale"])
    assert np.array_equal(layer.weight.data, state["weight"].T)
    assert np.array_equal(layer.bias.data, before["bias"])


def test_a_part_of_a_state():
    state = {f"encoder.layers.0.{key}": array for key, array in recorded("encoder True")[0].items()}
    layer = CASES["encoder True"]()
    assert from_torch(layer, state, prefix="encoder.layers.0.") == ([], [])
    assert np.array_equal(to_torch(layer)["norm1.weight"], state["encoder.layers.0.norm1.weight"])


@pytest.mark.parametrize("name", ["Linear", "attention kdim"])
def test_a_wrong_shape_changes_nothing(name):
    layer, (state, _, _) = CASES[name](), recorded(name)
    before = layer.state_dict()
    key = "weight" if name == "Linear" else "v_proj_weight"
    shape = state[key].shape
    state[key] = state[key].T
    with pytest.raises(ValueError, match=rf"from_torch: {key} has shape .*, this .* takes \({shape[0]}, {shape[1]}\)"):
        from_torch(layer, state)
    state[key] = np.zeros(shape, int)
    with pytest.raises(ValueError, match=rf"from_torch: {key} is int64, this .* has float32"):
        from_torch(layer, state)
    assert all(np.array_equal(array, before[key]) for key, array in layer.state_dict().items())


def test_a_tied_head_that_differs_is_refused():
    layer, (state, _, _) = gpt(tied=True), recorded("GPT-2 True")
    state["lm_head.weight"] = state["lm_head.weight"] + 1
    before = layer.state_dict()
    with pytest.raises(
        ValueError, match=r"lm_head\.weight differs from transformer\.wte\.weight, and this GPT has them"
    ):
        from_torch(layer, state)
    assert all(np.array_equal(array, before[key]) for key, array in layer.state_dict().items())


def test_published_gpt2_names():
    """Without `transformer.`, without the tied head, with the causal mask that old files carry."""
    state, inputs, y = recorded("GPT-2 True")
    published = {key.removeprefix("transformer."): a for key, a in state.items() if key != "lm_head.weight"}
    published |= {"h.0.attn.bias": np.ones((1, 1, 6, 6)), "h.0.attn.masked_bias": np.array(-1e4)}
    model = gpt(tied=True).to(dtype="float64")
    assert from_torch(model, published) == ([], [])
    close(model(inputs[0]), y, "float64")


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: attention(kv_heads=1), "as many heads of keys as of queries"),
        (lambda: attention(head_dim=4), "dim // heads wide"),
        (lambda: gl.MultiHeadAttention(8, 2, rotary=True), "no rotary positions"),
        (lambda: attention(value_head_dim=2), "no value_head_dim=2"),
        (lambda: attention(softcap=20.0), "no softcap=20.0"),
        (lambda: gl.AdditiveAttention(3, 4, 5), "AdditiveAttention has no counterpart in PyTorch"),
        (lambda: gl.GPT(gl.GPTConfig(vocab=5, heads=2, dim=8, rotary=True)), "GPT-2 has learned positions"),
        (lambda: gl.GPT(gl.GPTConfig(vocab=5, heads=2, dim=8, activation="glu")), "no gated feed-forward, as GLU is"),
        (lambda: gl.EncoderBlock(8, 2, activation="swiglu"), "no gated feed-forward, as SwiGLU is"),
        (lambda: gl.DecoderBlock(8, 2, activation="geglu"), "no gated feed-forward, as GEGLU is"),
    ],
)
def test_what_pytorch_does_not_have(make, sentence):
    with pytest.raises(TypeError, match=sentence):
        to_torch(make())
    with pytest.raises(TypeError, match=sentence):
        from_torch(make(), {})


def test_on_a_device():
    layer, (state, _, _) = CASES["attention cross"](), recorded("attention cross")
    from_torch(layer.to("emulated"), state)
    assert all(np.array_equal(array, state[key]) for key, array in to_torch(layer).items())
