import copy

import fake_cupy
import numpy as np
import pytest

from gpulayers.backend import device_of
from gpulayers.cuda import import_cupy
from gpulayers.layers.layer import Layer
from gpulayers.layers.linear import Linear
from gpulayers.ops.matmul import matmul
from gpulayers.parameter import PADDING, Buffer, Parameter, pack


@pytest.fixture
def cupy(monkeypatch):
    yield fake_cupy.install(monkeypatch)
    import_cupy.cache_clear()


class Model(Layer):
    """A vector first, sizes that need padding, and one weight under two names."""

    def __init__(self) -> None:
        self.gain = Parameter(np.arange(5, dtype=np.float32))
        self.first = Linear(3, 5, rng=0)
        self.rest = [Linear(5, 7, rng=1), Linear(7, 1, bias=False, rng=2)]
        self.head = Linear(3, 5, bias=False, rng=3)
        self.head.weight = self.first.weight


# ------------------------------------------------------------------------------------------------- one parameter


def parameter(*values: float) -> Parameter:
    return Parameter(np.array(values, np.float32))


def test_gradient_starts_at_zero_and_adds_up():
    p = parameter(1, 2)
    assert p.grad.tolist() == [0, 0]
    p.grad += np.float32(3)
    p.add_grad(np.array([1, 2], np.float32))
    assert p.grad.tolist() == [4, 5]
    assert p.grad.dtype == np.float32


def test_zero_grad_is_lazy_but_looks_like_zero():
    p = parameter(1, 2)
    p.grad = np.array([np.nan, 7], np.float32)
    memory = p.grad
    p.zero_grad()
    assert np.isnan(memory[0])  # nothing was written yet
    p.add_grad(np.array([1, 1], np.float32))  # so the first contribution must overwrite, NaN times anything stays NaN
    assert p.grad.tolist() == [1, 1]
    assert p.grad is memory
    p.zero_grad()
    assert p.grad.tolist() == [0, 0]
    p.zero_grad()
    p.grad += np.float32(2)
    assert p.grad.tolist() == [2, 2]


def test_matmul_into_the_gradient(rng):
    a, b = rng.normal(size=(2, 3, 3)).astype(np.float32)
    p = Parameter(np.zeros((3, 3), np.float32))
    p.grad.fill(np.nan)
    p.zero_grad()
    matmul(a, b, add_to=p)
    assert np.array_equal(p.grad, a @ b)
    matmul(a, b, add_to=p)
    assert np.array_equal(p.grad, a @ b + a @ b)


def test_contribution_is_broadcast():
    p = Parameter(np.zeros((2, 2), np.float32))
    for _ in range(2):
        p.add_grad(np.array([1, 2], np.float32))
    assert p.grad.tolist() == [[2, 4], [2, 4]]


def test_frozen_parameter_drops_contributions():
    p = parameter(1, 2)
    p.trainable = False
    p.add_grad(np.array([1, 2], np.float32))
    assert matmul(np.ones((1, 1), np.float32), np.ones((1, 2), np.float32), add_to=p) is None
    assert p.grad.tolist() == [0, 0]
    assert repr(p) == "Parameter(shape=(2,), dtype=float32, frozen)"


def test_move_keeps_values_and_clears_the_gradient(cupy):
    p = parameter(1, 2)
    p.grad += np.float32(1)
    p.move(dtype="float64")
    assert (p.data.tolist(), p.dtype, p.grad.tolist()) == ([1, 2], np.float64, [0, 0])
    p.move(device="cupy")
    assert device_of(p.data) == device_of(p.grad) == "cupy"


def test_dtype_of_integers_and_booleans_does_not_move():
    for data in (np.arange(3), np.array([True, False])):
        buffer = Buffer(data)
        buffer.move(dtype="float64")
        assert buffer.data.dtype == data.dtype
    buffer = Buffer(np.zeros(3, np.float32))
    buffer.move(dtype="float64")
    assert buffer.data.dtype == np.float64


# ------------------------------------------------------------------------------------------------- flat memory


def test_pack_order_and_padding():
    model = Model()
    flat = pack(model)
    names = [s.name for s in flat.segments]
    assert names == ["first.weight", "rest.0.weight", "rest.1.weight", "gain", "first.bias", "rest.0.bias"]
    step = PADDING // 4
    assert [s.start for s in flat.segments] == [0, step, 2 * step, 3 * step, 4 * step, 5 * step]
    assert [s.stop - s.start for s in flat.segments] == [15, 35, 7, 5, 5, 7]
    assert flat.size == flat.data.size == flat.grad.size == 6 * step


def test_packed_parameters_are_views():
    model = Model()
    before = model.state_dict()
    flat = pack(model)
    for name, array in model.state_dict().items():
        assert np.array_equal(array, before[name])
    used = np.zeros(flat.size, bool)
    for _, p, start, stop in flat.segments:
        assert np.shares_memory(p.data, flat.data[start:stop])
        p.grad[...] = 1
        assert np.shares_memory(p.grad, flat.grad[start:stop])
        used[start:stop] = True
    assert np.array_equal(flat.grad == 1, used)
    assert not flat.data[~used].any()
    flat.data.fill(3)
    assert (model.gain.data == 3).all()


def test_tied_parameters_have_one_segment():
    model = Model()
    pack(model)
    assert model.head.weight is model.first.weight
    x, dy = np.ones((2, 3), np.float32), np.ones((2, 5), np.float32)
    for layer in (model.first, model.head):
        layer.backward(dy, layer.forward(x)[1])
    assert (model.first.weight.grad == 4).all()


def test_packing_twice_gives_the_same():
    model = Model()
    assert pack(model) is pack(model)
    assert pack(model) is model.gain.flat


def test_partly_packed_is_refused():
    model = Model()
    pack(model.first)
    with pytest.raises(ValueError, match="packed with another model"):
        pack(model)
    model = Model()
    pack(model)
    with pytest.raises(ValueError, match="packed with another model"):
        pack(model.first)


def test_nothing_to_pack_and_mixed_dtypes():
    with pytest.raises(ValueError, match="no parameters"):
        pack(Layer())
    model = Model()
    model.rest[0].to(dtype="float64")
    with pytest.raises(TypeError, match=r"one device and dtype, got .*float32.*float64"):
        pack(model)


def test_flat_gradient_is_lazy_too():
    model = Model()
    flat = pack(model)
    assert model.gain._grad is None  # a model that only generates has no gradient memory
    model.gain.add_grad(np.ones(5, np.float32))
    flat.zero_grad()
    model.first.bias.add_grad(np.ones(5, np.float32))
    assert model.gain.grad.tolist() == [0] * 5
    assert flat.grad.sum() == 5


def test_one_packed_parameter_does_not_move_alone():
    model = Model()
    pack(model)
    with pytest.raises(RuntimeError, match="moves with its whole buffer"):
        model.gain.move(dtype="float64")


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_a_packed_model_moves_as_a_whole(dtype):
    model = Model()
    flat, before = pack(model), model.state_dict()
    flat.grad.fill(1)
    model.to(dtype=dtype)
    assert pack(model) is flat
    assert flat.data.dtype == flat.grad.dtype == dtype
    assert not flat.grad.any()
    for name, array in model.state_dict().items():
        assert np.array_equal(array, before[name].astype(dtype))
    assert all(s.start * flat.data.itemsize % PADDING == 0 for s in flat.segments)
    assert all(np.shares_memory(p.data, flat.data) for p in model.parameters())


def test_a_packed_model_moves_to_a_device_and_back(cupy):
    model = Model()
    flat, before = pack(model), model.state_dict()
    model.to("cupy")
    assert device_of(flat.data) == device_of(model.gain.data) == device_of(model.gain.grad) == "cupy"
    for name, array in model.state_dict().items():
        assert np.array_equal(array, before[name])
    model.to("numpy")
    assert device_of(flat.data) == device_of(model.gain.data) == "numpy"
    for name, array in model.state_dict().items():
        assert np.array_equal(array, before[name])


@pytest.mark.parametrize("packed", [False, True])
def test_a_deep_copy_stands_on_its_own(packed):
    """Values, gradients, ties and flat memory of the copy are as in the model, and share nothing with it."""
    model = Model()
    if packed:
        pack(model)
    model.gain.grad += np.float32(2)
    model.first.bias.trainable = False
    clone = copy.deepcopy(model)
    assert clone.head.weight is clone.first.weight
    assert not clone.first.bias.trainable
    for (name, old), (other, new) in zip(model.named_parameters(), clone.named_parameters(), strict=True):
        assert name == other
        assert np.array_equal(old.data, new.data)
        assert np.array_equal(old.grad, new.grad)
        assert not np.shares_memory(old.data, new.data)
        assert not np.shares_memory(old.grad, new.grad)
    if packed:
        flat = pack(clone)
        assert flat is not pack(model)
        flat.data.fill(9)
        assert (clone.gain.data == 9).all()
        assert not (model.gain.data == 9).any()


def test_what_pickles_a_parameter_gets_one_outside_of_flat_memory():
    """Views of one buffer came back as copies beside a buffer of their own, and an optimizer moved only the buffer."""
    model = Model()
    flat = pack(model)
    for parameter in model.parameters():
        make, parts = parameter.__reduce__()
        again = make(*parts)
        assert again.flat is None
        assert np.array_equal(again.data, parameter.data)
    with pytest.raises(TypeError, match="cannot be pickled"):
        flat.__reduce__()
