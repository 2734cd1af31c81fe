import sys
from types import FrameType

import pytest

import gpulayers as gl
from gpulayers import cuda
from gpulayers.layers.layer import Layer
from gpulayers.ops.op import Op
from gpulayers.optim.optimizer import Optimizer
from gpulayers.profiling.ranges import Range, Ranges, named, place


class Log:
    """Recorder of "> text" and "<"."""

    def __init__(self) -> None:
        self.lines, self.depth = [], 0

    def push(self, one, args):
        self.lines.append("  " * self.depth + one.text)
        self.depth += 1

    def pop(self, result=None):
        self.depth -= 1


def classes():
    """Every function that a recording may replace."""
    owners = [Op, Optimizer, Layer, *_below(Layer)]
    return {(owner, name): value for owner in owners for name, value in vars(owner).items() if callable(value)}


def _below(cls):
    return [c for child in cls.__subclasses__() for c in (child, *_below(child))]


def calls_of(function):
    """How many Python functions it enters."""
    count = 0

    def note(frame: FrameType, event: str, _: object) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(note)
    try:
        function()
    finally:
        sys.setprofile(None)
    return count


def test_tree_of_a_step(run):
    log = Log()
    with Ranges(log, run.model, run.optimizer) as ranges, ranges.range("step"):
        run.step()
    assert log.depth == 0
    assert log.lines[:4] == ["step", "  GPT.forward", "    wte Embedding.forward", "      op embedding"]
    at = log.lines.index("    blocks.1 Block.forward")
    assert log.lines[at + 1 : at + 5] == [
        "      blocks.1.ln_1 LayerNorm.forward",
        "        op layernorm",
        "      blocks.1.attention MultiHeadAttention.forward",
        "        blocks.1.attention.qkv Linear.forward",
    ]
    words = [line.strip() for line in log.lines]
    order = ["GPT.forward", "head TiedLinear.forward", "loss cross_entropy", "GPT.backward", "blocks.1 Block.backward"]
    order += ["blocks.0 Block.backward", "wte Embedding.backward", "optimizer", "op adam"]
    assert [words.index(word) for word in order] == sorted(words.index(word) for word in order)


def test_off_is_exactly_the_same_code(run):
    run.step()
    before, calls = classes(), calls_of(run.step)
    with Ranges(Log(), run.model, run.optimizer):
        assert calls_of(run.step) > calls
    assert classes() == before
    assert cuda.on_launch is None
    assert calls_of(run.step) == calls
    assert not any(callable(v) for layer in (run.model, *dict(run.model.named_layers()).values()) for v in vars(layer))


def test_results_are_the_same_bits(run_on):
    plain, recorded = run_on(), run_on()
    with Ranges(Log(), recorded.model, recorded.optimizer):
        recorded.step()
    plain.step()
    assert plain.model.state_dict()["blocks.0.attention.qkv.weight"].tobytes() == (
        recorded.model.state_dict()["blocks.0.attention.qkv.weight"].tobytes()
    )


def test_an_exception_closes_every_range(run):
    log, before = Log(), classes()
    ranges = Ranges(log, run.model, run.optimizer)
    with pytest.raises(ValueError, match="ids of shape"), ranges, ranges.range("step"):
        run.model.forward(run.ids[0])
    assert log.lines == ["step", "  GPT.forward"]
    assert log.depth == 0
    assert classes() == before


def test_a_recording_that_cannot_begin_changes_nothing(run):
    before = classes()
    with pytest.raises(KeyError), Ranges(Log(), run.model, run.optimizer, [(cuda, "nothing", named("x"))]):
        pass
    assert classes() == before
    with Ranges(Log(), run.model), pytest.raises(RuntimeError, match="another recording"), Ranges(Log(), run.model):
        pass
    assert classes() == before


def test_evaluation_recompute_and_other_models(run):
    log = Log()
    other = gl.Sequential(gl.Recompute(gl.Linear(8, 8)), gl.ReLU())
    with Ranges(log, other):
        run.model(run.ids)
        x = gl.to_numpy(run.model.wte.weight.data)
        y, saved = other.forward(x)
        other.backward(y, saved)
    words = [line.strip() for line in log.lines]
    assert words[0] == "op embedding"  # Embedding is no class of the recorded model
    assert "Linear.forward" in words  # a layer of another model has no name here
    inside = words[words.index("layers.0 Recompute.backward") + 1]
    assert inside == "layers.0.layer Linear.forward"


def test_launches_are_ranges(run_on):
    log, run = Log(), run_on("emulated")
    layer, x = run.model.ln_f, gl.to_device(gl.to_numpy(run.model.wte.weight.data), "emulated")
    with Ranges(log, run.model):
        layer.forward(x)
    assert log.lines == ["ln_f LayerNorm.forward", "  op layernorm", "    launch layernorm"]


@pytest.mark.parametrize(
    "one",
    [
        Range.of_layer("", "GPT", "forward"),
        Range.of_layer("blocks.0.ln_1", "LayerNorm", "backward"),
        Range.of_layer("wte", "Embedding", "__call__"),
        named("step"),
        named("optimizer"),
        named("loss", "cross_entropy"),
        named("launch", "layernorm_backward"),
    ],
)
def test_texts_are_read_back(one):
    assert Range.parse(one.text) == one


def test_place():
    layer = Range.of_layer("blocks.0", "Block", "backward")
    assert place([named("step"), layer, named("op", "add"), named("launch", "add")]) == ("blocks.0", "backward")
    assert place([named("step"), named("optimizer"), named("op", "adam")]) == ("optimizer", "")
    assert place([layer, named("loss", "mse")]) == ("loss", "")
    assert place([named("step")]) == ("", "")
