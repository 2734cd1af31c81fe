import numpy as np
import pytest

from gpulayers.layers.attention import MultiHeadAttention
from gpulayers.layers.embedding import Embedding
from gpulayers.layers.layer import Layer, floating_input, floating_like, last_axis
from gpulayers.layers.linear import Linear
from gpulayers.layers.positions import LearnedPositions
from gpulayers.layers.rmsnorm import RMSNorm
from gpulayers.parameter import Buffer, Parameter, pack
from gpulayers.storage import FileError


class Model(Layer):
    """Lists, a tie, a saved buffer, one that is not saved, one that holds no floats."""

    def __init__(self, seed: int = 0) -> None:
        self.table = Parameter(np.random.default_rng(seed).normal(size=(3, 5)).astype(np.float32))
        self.parts = [Linear(5, 5, rng=seed), Linear(5, 3, bias=False, rng=seed)]
        self.head = Linear(3, 5, rng=seed)
        self.head.weight = self.table
        self.mean = Buffer(np.ones(3, np.float32))
        self.positions = Buffer(np.arange(3), persistent=False)
        self.width = 5

    def forward(self, x, train=None):
        return x * 2, "kept"


NAMES = ["table", "parts.0.weight", "parts.0.bias", "parts.1.weight", "head.bias", "mean"]


# ------------------------------------------------------------------------------------------------- the tree


def test_names_in_order_of_definition_each_once():
    model = Model()
    assert [name for name, _ in model.named_parameters()] == NAMES[:-1]
    assert [name for name, _ in model.named_layers()] == ["parts.0", "parts.1", "head"]
    assert list(model.parameters()) == [p for _, p in model.named_parameters()]


def test_lists_in_lists_and_dicts_belong_to_the_tree():
    model = Layer()
    model.towers = {"left": [Linear(2, 2, bias=False)], "right": ([Linear(2, 2, bias=False)], 3)}
    assert [name for name, _ in model.named_parameters()] == ["towers.left.0.weight", "towers.right.0.0.weight"]


def test_integers_are_not_trained():
    with pytest.raises(TypeError, match="Parameter takes a floating array, got int32"):
        Parameter(np.zeros(2, np.int32))
    with pytest.raises(TypeError, match=r"Linear\.to takes a floating dtype, got int64"):
        Linear(2, 2).to(dtype=int)


def test_parameter_count_counts_a_tie_once():
    model = Model()
    assert model.parameter_count() == 15 + 25 + 5 + 15 + 5
    model.table.trainable = False
    assert model.parameter_count(trainable_only=True) == 25 + 5 + 15 + 5


def test_freeze_by_name():
    model = Model()
    assert model.freeze("parts.*") is model
    assert [name for name, p in model.named_parameters() if not p.trainable] == NAMES[1:4]
    assert model.unfreeze("*.0.bias").parameter_count(trainable_only=True) == 15 + 5 + 5
    assert model.freeze().parameter_count(trainable_only=True) == 0
    assert model.unfreeze().parameter_count(trainable_only=True) == model.parameter_count()
    with pytest.raises(ValueError, match=r"Model\.freeze: no parameter matches 'wte\.\*'"):
        model.freeze("wte.*")


def test_a_layer_used_twice_has_its_parameters_once():
    model = Layer()
    model.a = model.b = Linear(2, 2)
    assert [name for name, _ in model.named_parameters()] == ["a.weight", "a.bias"]


def test_call_is_evaluation():
    assert Model()(np.ones(2)).tolist() == [2, 2]


def test_zero_grad():
    model = Model()
    for p in model.parameters():
        p.grad += np.float32(1)
    model.zero_grad()
    assert not any(p.grad.any() for p in model.parameters())


def test_to_dtype_keeps_ties_and_integers():
    model = Model()
    before = model.state_dict()
    assert model.to(dtype="float64") is model
    assert {str(p.dtype) for p in model.parameters()} == {"float64"}
    assert model.head.weight is model.table
    assert model.mean.data.dtype == np.float64
    assert model.positions.data.dtype == np.arange(3).dtype
    assert all(np.array_equal(array, before[name]) for name, array in model.state_dict().items())


# ------------------------------------------------------------------------------------------------- state


def test_state_dict_holds_copies():
    model = Model()
    state = model.state_dict()
    assert list(state) == NAMES
    for array in state.values():
        array.fill(7)
    assert not any((array == 7).any() for array in model.state_dict().values())


@pytest.mark.parametrize("packed", [False, True])
def test_load_state_dict(packed):
    model, other = Model(0), Model(1)
    if packed:
        pack(model)
    memory = model.table.data
    assert model.load_state_dict(other.state_dict()) == ([], [])
    for name, array in model.state_dict().items():
        assert np.array_equal(array, other.state_dict()[name])
    assert model.table.data is memory  # written in place: optimizers and ties keep looking at it
    assert model.head.weight is model.table


def test_strict_names_what_does_not_match_and_changes_nothing():
    model, state = Model(0), Model(1).state_dict()
    before = model.state_dict()
    state["extra"] = state.pop("head.bias")
    with pytest.raises(ValueError, match=r"missing \['head\.bias'\], unexpected \['extra'\]"):
        model.load_state_dict(state)
    assert all(np.array_equal(array, before[name]) for name, array in model.state_dict().items())
    unmatched = model.load_state_dict(state, strict=False)
    assert (unmatched.missing_keys, unmatched.unexpected_keys) == (["head.bias"], ["extra"])
    assert np.array_equal(model.table.data, state["table"])
    assert np.array_equal(model.head.bias.data, before["head.bias"])


def test_a_wrong_shape_changes_nothing():
    model, state = Model(0), Model(1).state_dict()
    before = model.state_dict()
    state["mean"] = np.ones((1, 3), np.float32)  # would broadcast
    for strict in (True, False):
        with pytest.raises(ValueError, match=r"mean has shape \(1, 3\), this model has \(3,\)"):
            model.load_state_dict(state, strict)
    assert all(np.array_equal(array, before[name]) for name, array in model.state_dict().items())


@pytest.mark.parametrize("dtype", ["int32", "bool", "complex64", "U4", "object"])
def test_a_wrong_kind_of_dtype_changes_nothing(dtype):
    model, state = Model(0), Model(1).state_dict()
    before = model.state_dict()
    state["mean"] = np.ones(3).astype(dtype)
    with pytest.raises(ValueError, match=r"mean has dtype .*, this model has float32"):
        model.load_state_dict(state)
    assert all(np.array_equal(array, before[name]) for name, array in model.state_dict().items())


def test_load_casts_to_the_model():
    model = Model().to(dtype="float64")
    model.load_state_dict(Model(1).state_dict())
    assert model.table.data.dtype == np.float64


def test_save_and_load(tmp_path):
    model, path = Model(0), tmp_path / "model.safetensors"
    model.save(path, {"note": "hello"})
    other = Model(1)
    assert other.load(path) is other
    for name, array in other.state_dict().items():
        assert array.tobytes() == model.state_dict()[name].tobytes()
    assert [p.name for p in tmp_path.iterdir()] == ["model.safetensors"]


def test_load_of_another_model_is_one_sentence_and_changes_nothing(tmp_path):
    path = tmp_path / "linear.safetensors"
    Linear(2, 2).save(path)
    model = Model()
    before = model.state_dict()
    with pytest.raises(
        FileError, match=r"linear\.safetensors does not fit this model: .*missing .*unexpected"
    ) as caught:
        model.load(path)
    assert "\n" not in str(caught.value)
    assert all(np.array_equal(array, before[name]) for name, array in model.state_dict().items())
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(FileError, match=r"linear\.safetensors is not a whole safetensors file"):
        model.load(path)


# ------------------------------------------------------------------------------------------------- the door


@pytest.mark.parametrize(
    ("x", "kind"), [(np.arange(3), "int64"), (np.ones(3, bool), "bool"), ([1.0], "list"), (1.0, "float")]
)
def test_floating_input(x, kind):
    with pytest.raises(TypeError, match=f"Who takes a floating input, got {kind}"):
        floating_input(x, "Who")


def test_floating_input_has_an_axis():
    with pytest.raises(ValueError, match=r"Who takes an input with at least one axis, got shape \(\)"):
        floating_input(np.array(1.0), "Who")


def test_floating_like_takes_arrays_only():
    with pytest.raises(TypeError, match="Who takes an array, got list"):
        floating_like([[1.0]], Parameter(np.zeros(3, np.float32)), "Who")


def test_floating_like():
    with pytest.raises(
        TypeError, match=r"Who has float32 parameters and got a float64 input; .*x\.astype\('float32'\)"
    ):
        floating_like(np.zeros(3), Parameter(np.zeros(3, np.float32)), "Who")


@pytest.mark.parametrize("shape", [(), (2,), (3, 2)])
def test_last_axis(shape):
    with pytest.raises(ValueError, match=r"Who takes an input of shape \(\.\.\., 3\), got \("):
        last_axis(np.zeros(shape), 3, "Who")


@pytest.mark.parametrize(
    ("layer", "x", "dy"),
    [
        (RMSNorm(4), np.ones((2, 4), np.float32), np.ones((2, 1), np.float32)),
        (Embedding(5, 4), np.array([1, 2]), np.ones((2, 1), np.float32)),
        (Embedding(5, 4), np.array([1, 2]), np.ones((1, 4), np.float32)),
        (LearnedPositions(3, 4), np.ones((1, 2, 4), np.float32), np.ones((1, 2, 1), np.float32)),
        (RMSNorm(4), np.ones((2, 4), np.float32), [[1.0]]),
    ],
)
def test_a_gradient_that_would_be_broadcast_is_refused(layer, x, dy):
    saved = layer.forward(x)[1]
    with pytest.raises((ValueError, TypeError), match="backward takes"):
        layer.backward(dy, saved)
    assert not any(p.grad.any() for p in layer.parameters())


@pytest.mark.parametrize("x", [[[[1.0]]], "text", 1.0])
def test_attention_takes_arrays(x):
    with pytest.raises(TypeError, match="MultiHeadAttention takes a floating input, got"):
        MultiHeadAttention(4, 2).forward(x)
