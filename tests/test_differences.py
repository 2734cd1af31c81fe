"""docs/differences.md, row by row: a test for each, named as the row is."""

import inspect
import math
import re
from pathlib import Path

import numpy as np
import pytest
from outside import load

import gpulayers as gl
from gpulayers.optim import clip_grad_norm
from gpulayers.parameter import Parameter

PAGE = (Path(__file__).parents[1] / "docs" / "differences.md").read_text(encoding="utf-8")
ROWS = [row for row in re.findall(r"^\| ([^|]+) \| [^|]+ \| .*\|$", PAGE, re.MULTILINE) if row not in ("what", "---")]


def theirs(name):
    return load("differences")[name]


def ones(*shape):
    return np.ones(shape, np.float32)


class Weights(gl.Layer):
    def __init__(self, **values):
        for name, value in values.items():
            setattr(self, name, Parameter(np.array(value, np.float32)))


def saved_values():
    layer, x = gl.Linear(3, 2, rng=0), ones(4, 3)
    before = dict(vars(layer))
    (_, first), (_, second) = layer.forward(x), layer.forward(2 * x)
    assert vars(layer) == before  # nothing stays
    assert layer.backward(ones(4, 2), first).shape == layer.backward(ones(4, 2), second).shape == (4, 3)


def evaluation():
    layer, x = gl.Dropout(0.9), ones(50)
    assert np.array_equal(layer(x), x)
    assert np.array_equal(layer.forward(x)[0], x)
    assert (layer.forward(x[None], gl.Train(seed=0, step=0))[0] == 0).any()


def losses():
    loss, dlogits = gl.cross_entropy(ones(2, 3), np.array([0, 1]))
    assert loss == pytest.approx(math.log(3))
    assert dlogits.shape == (2, 3)


def embedding_gradient():
    layer = gl.Embedding(3, 2)
    assert layer.backward(ones(1, 2), layer.forward(np.array([1]))[1]) is None


def running_statistics():
    layer = gl.BatchNorm(2)
    y, saved = layer.forward(np.array([[1, 2], [3, 4]], np.float32), gl.Train(0, 0))
    optimizer = gl.SGD(layer, lr=0.0)
    layer.backward(ones(*y.shape), saved)
    assert layer.running_mean.data.tolist() == [0, 0]
    optimizer.step()
    assert layer.running_mean.data == pytest.approx(theirs("running statistics"))  # PyTorch: after forward


def random_bits():
    x, layer = ones(6, 40), gl.Dropout(0.5)
    whole = layer.forward(x, gl.Train(seed=1, step=2))[0]
    parts = [layer.forward(x[a : a + 2], gl.Train(1, 2, a))[0] for a in (0, 2, 4)]
    assert np.array_equal(np.concatenate(parts), whole)


def mixed_dtypes():
    with pytest.raises(TypeError, match="float32 parameters and got a float64 input"):
        gl.Linear(3, 2)(np.ones((1, 3)))
    with pytest.raises(TypeError, match=r"float32 and float64|float64 and float32"):
        gl.mse_loss(ones(3), np.ones(3))


def mixed_devices():
    with pytest.raises(TypeError, match="meet in one call"):
        gl.Linear(3, 2)(gl.use("emulated").asarray(ones(1, 3)))


def weights():
    assert gl.Linear(3, 4).weight.shape == (3, 4) == tuple(theirs("weights")[::-1])


def attention_projections():
    names = [[n for n, _ in layer.named_layers()] for layer in (
        gl.MultiHeadAttention(4, 2), gl.MultiHeadAttention(4, 2, kdim=4), gl.MultiHeadAttention(4, 2, kdim=4, vdim=4),
    )]  # fmt: skip
    assert names == [["qkv", "out"], ["q", "kv", "out"], ["q", "k", "v", "out"]]
    assert gl.MultiHeadAttention(4, 2, kv_heads=1).qkv.out_features == 8


def batch_first():
    _, state = gl.GRU(3, 4)(ones(2, 5, 3))
    assert state.shape == (1, 2, 4) == tuple(theirs("batch first"))  # PyTorch's, given (5, 2, 3)


def channels_last():
    assert gl.BatchNorm(5)(ones(2, 3, 5)).shape == gl.PReLU(5)(ones(2, 3, 5)).shape == (2, 3, 5)
    with pytest.raises(ValueError, match="5 channels on axis -1"):
        gl.BatchNorm(5)(ones(2, 5, 3))
    assert gl.BatchNorm(5, axis=1)(ones(2, 5, 3)).shape == (2, 5, 3)


def attention_arguments():
    layer, x = gl.MultiHeadAttention(4, 2), ones(1, 3, 4)
    assert isinstance(layer(x), np.ndarray)
    assert layer.weights(x).shape == (1, 2, 3, 3)


def masks():
    value = np.arange(12, dtype=np.float32).reshape(1, 1, 3, 4)
    hide = np.array([[False, True, True]])
    y = gl.scaled_dot_product_attention(ones(1, 1, 1, 4), 0 * value, value, hide=hide)[0]
    assert np.array_equal(y[0, 0, 0], value[0, 0, 0])  # the one key that is not hidden
    assert theirs("masks sdpa")[0, 0, 0] == pytest.approx(value[0, 0, 1:].mean(0))  # the two where the mask is True
    with pytest.raises(TypeError, match="masks are boolean, True hides"):
        gl.MultiHeadAttention(4, 2)(ones(1, 3, 4), attn_mask=hide)
    with pytest.raises(TypeError, match="masks are boolean, True hides"):
        gl.MultiHeadAttention(4, 2)(ones(1, 3, 4), hide=np.zeros((3, 3), np.float32))


def causal():
    value = np.arange(12, dtype=np.float32).reshape(1, 1, 3, 4)
    y = gl.scaled_dot_product_attention(ones(1, 1, 1, 4), 0 * value, value, is_causal=True)[0]
    assert y[0, 0, 0] == pytest.approx(value[0, 0].mean(0))  # sees all three
    assert np.array_equal(theirs("causal")[0, 0, 0], value[0, 0, 0])  # sees the first alone


def all_keys_hidden():
    layer = gl.MultiHeadAttention(4, 2, bias=False)
    y, saved = layer.forward(ones(1, 3, 4), hide=np.ones((1, 1, 1, 3), bool))
    assert not y.any()
    assert not layer.backward(ones(1, 3, 4), saved).any()
    assert np.isnan(theirs("all keys hidden")).all()


def all_targets_ignored():
    loss, dlogits = gl.cross_entropy(ones(2, 3), np.array([-100, -100]))
    assert loss == 0
    assert not dlogits.any()
    assert np.isnan(theirs("all targets ignored"))


def out_of_range():
    with pytest.raises(ValueError, match=r"target 3 in row 1 is outside 0\.\.2"):
        gl.cross_entropy(ones(2, 3), np.array([0, 3]))
    with pytest.raises(ValueError, match=r"the id at position \(1,\) is -1, outside 0\.\.4"):
        gl.Embedding(5, 2)(np.array([0, -1]))


def top_k_ties():
    assert gl.top_k(np.array([1, 3, 3, 2]), 2)[1].tolist() == [1, 2]


def weight_decay():
    model = Weights(matrix=np.ones((2, 2)), bias=[1.0, 1.0])
    gl.AdamW(model, lr=0.1, weight_decay=0.5).step()
    assert model.matrix.data == pytest.approx(0.95)
    assert model.bias.data.tolist() == [1, 1]
    assert theirs("weight decay") == pytest.approx([0.95, 0.95])


def clipping():
    model = Weights(p=[0.0, 0.0])
    model.p.add_grad(np.array([3, 4], np.float32))
    clip_grad_norm(model, 1.0)
    assert float(np.hypot(*model.p.grad.astype(np.float64))) == pytest.approx(1, rel=1e-7)
    assert float(np.hypot(*theirs("clipping").astype(np.float64))) == pytest.approx(5 / (5 + 1e-6), rel=1e-7)


def bad_norm():
    model = Weights(p=[0.0, 0.0])
    model.p.add_grad(np.array([math.inf, 1], np.float32))
    assert clip_grad_norm(model, 1.0) == math.inf
    assert model.p.grad.tolist() == [math.inf, 1]
    assert np.array_equal(theirs("bad norm"), [math.nan, 0], equal_nan=True)


def skipped_step():
    model = Weights(p=[0.5, 0.5])
    optimizer = gl.AdamW(model)
    model.p.add_grad(np.array([math.nan, 1], np.float32))
    optimizer.step()
    assert model.p.data.tolist() == [0.5, 0.5]
    assert (optimizer.applied, optimizer.skipped) == (0, 1)
    assert np.isnan(theirs("skipped step")[0])


def groups():
    model = Weights(head=[1.0], body=[1.0])
    optimizer = gl.SGD(model, lr=0.1, groups=[gl.Group("head*", lr=0.5)])
    for parameter in model.parameters():
        parameter.add_grad(ones(1))
    optimizer.step()
    assert (float(model.head.data[0]), float(model.body.data[0])) == pytest.approx((0.5, 0.9))


def rates():
    schedule = gl.make_schedule("step", 10, step_size=1, gamma=0.5)
    optimizer = gl.SGD(Weights(p=[1.0]), lr=0.8, schedule=schedule)
    assert [optimizer.rate(k) for k in range(3)] == pytest.approx([0.8, 0.4, 0.2])
    assert schedule(2) == 0.25


def parameters_in_one_buffer():
    model = gl.Linear(3, 2)
    optimizer = gl.SGD(model)
    assert all(np.shares_memory(p.data, optimizer.flat.data) for p in model.parameters())
    model.to(dtype="float64")
    with pytest.raises(RuntimeError, match=r"make the optimizer after model\.to"):
        optimizer.step()


def low_precision():
    model = gl.Linear(3, 2).to(dtype="float16")
    assert model.state_dict()["weight"].dtype == np.float16
    gl.SGD(model)
    assert model.weight.data.dtype == np.float16
    assert model.state_dict()["weight"].dtype == np.float32


def strict_loading():
    model = gl.Linear(3, 2)
    before = model.state_dict()
    with pytest.raises(ValueError, match=r"missing \['bias'\], unexpected \['scale'\]") as caught:
        model.load_state_dict({"weight": 0 * before["weight"], "scale": before["bias"]})
    assert "\n" not in str(caught.value)
    assert np.array_equal(model.weight.data, before["weight"])


def kinks():
    zero, one = np.zeros((1, 1), np.float32), ones(1, 1)
    for name, layer in {"relu": gl.ReLU(), "leaky_relu": gl.LeakyReLU(0.1), "prelu": gl.PReLU()}.items():
        assert layer.backward(one, layer.forward(zero)[1]) == pytest.approx(theirs(f"kinks {name}")), name
    assert gl.l1_loss(zero, zero)[1] == theirs("kinks l1_loss")


def eps():
    def default(kind):
        return inspect.signature(kind).parameters["eps"].default

    assert (default(gl.LayerNorm), default(gl.Adam), default(gl.LAMB), default(gl.RMSNorm)) == (1e-5, 1e-8, 1e-6, None)
    x = np.full((1, 4), 1e-4, np.float32)
    tiny = np.finfo(np.float32).eps
    assert gl.RMSNorm(4)(x)[0, 0] == pytest.approx(1e-4 / math.sqrt(1e-8 + tiny), rel=1e-5)


CLAIMS = {
    function.__name__.replace("_", " "): function
    for function in [
        saved_values, evaluation, losses, embedding_gradient, running_statistics, random_bits, mixed_dtypes,
        mixed_devices, weights, attention_projections, batch_first, channels_last, attention_arguments, masks, causal,
        all_keys_hidden, all_targets_ignored, out_of_range, weight_decay, clipping, bad_norm, skipped_step, groups,
        rates, parameters_in_one_buffer, low_precision, strict_loading, kinks, eps,
    ]
} | {"top_k ties": top_k_ties}  # fmt: skip


@pytest.mark.parametrize("row", ROWS)
def test_row(row):
    CLAIMS[row]()


def test_every_claim_has_its_row():
    assert sorted(ROWS) == sorted(CLAIMS)


def test_what_pytorch_computed_is_looked_at():
    source = Path(__file__).read_text(encoding="utf-8")
    names = {name for name in load("differences") if name != "torch_version"}
    assert {n for n in names if f'theirs("{n}")' not in source} == {
        f"kinks {n}" for n in ("relu", "leaky_relu", "prelu")
    }
