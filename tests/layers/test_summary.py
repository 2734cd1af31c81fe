import gpulayers as gl
from gpulayers.layers.linear import Linear
from gpulayers.layers.sequential import Sequential
from gpulayers.layers.summary import summary


def test_a_layer_prints_its_shapes():
    assert repr(Linear(3, 4, rng=0)) == "Linear(weight (3, 4), bias (4,))"
    assert repr(Linear(3, 4, False, rng=0)) == "Linear(weight (3, 4))"
    assert repr(gl.ReLU()) == "ReLU()"


def test_a_frozen_parameter_says_so():
    layer = Linear(3, 4, rng=0)
    layer.bias.trainable = False
    assert repr(layer) == "Linear(weight (3, 4), bias (4,), frozen)"


def test_a_model_prints_its_tree():
    model = Sequential(Linear(2, 3, rng=0), gl.Tanh(), gl.BatchNorm(3))
    assert repr(model).splitlines() == [
        "Sequential(",
        "  layers.0: Linear(weight (2, 3), bias (3,))",
        "  layers.1: Tanh()",
        "  layers.2: BatchNorm(weight (3,), bias (3,), running_mean (3,), running_var (3,), num_batches_tracked ())",
        ")",
    ]


def test_summary_counts_a_tied_parameter_once():
    model = gl.GPT(gl.GPTConfig(vocab=5, context=4, layers=1, heads=2, dim=4))
    text = summary(model)
    assert text.splitlines()[0] == "GPT"
    assert text.splitlines()[-1] == "288 parameters, 288 of them trained, 1,152 bytes"
    assert text.count("(5, 4)") == 1  # the table is the head too
    assert model.parameter_count() == 288


def test_summary_tells_buffers_and_frozen_ones():
    model = Sequential(Linear(2, 3, rng=0), gl.BatchNorm(3))
    next(model.parameters()).trainable = False
    lines = summary(model).splitlines()
    assert lines[1].split() == ["name", "shape", "dtype", "values", "bytes"]
    assert lines[2].split() == ["layers.0.weight", "(2,", "3)", "float32", "6", "24", "frozen"]
    assert any(line.startswith("layers.1.running_mean") and line.endswith("buffer") for line in lines)
    assert lines[-1] == "15 parameters, 9 of them trained, 60 bytes"
