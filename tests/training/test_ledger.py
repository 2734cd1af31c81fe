"""The ledger's numbers, its layers, and that it changes nothing."""

import math

import numpy as np
import pytest
from devices import on_devices

import gpulayers as gl
from gpulayers.ops.cross_entropy import cross_entropy
from gpulayers.profiling.ranges import Ranges
from gpulayers.training.health import first_sick
from gpulayers.training.ledger import Ledger, layers_of

CONFIG = gl.FeedForwardConfig(vocab=7, context=3, dim=4, widths=(6, 5))


def norm(*arrays):
    return math.sqrt(sum((np.asarray(a, np.float64) ** 2).sum() for a in arrays))


def rms(x):
    return math.sqrt((np.asarray(x, np.float64) ** 2).mean())


def step(model, optimizer, ids, targets, count=None):
    logits, saved = model.forward(ids, train=gl.Train())
    loss, dlogits = cross_entropy(logits, targets, reduction="mean" if count is None else "sum")
    model.backward(dlogits, saved)
    if optimizer is not None:
        optimizer.step(count)
    return loss


@pytest.fixture
def batch(rng):
    return rng.integers(0, 7, (8, 3)), rng.integers(0, 7, 8)


@pytest.mark.parametrize("count", [None, 8])
def test_every_number_by_hand(batch, count):
    ids, targets = batch
    model = gl.FeedForwardNet(CONFIG, seed=1)
    model.W[3].linear.bias.data[:] = [0, 0, 9, 0, -9, 0]  # two units bent flat for the whole batch
    h3 = model.embedding(ids).reshape(8, -1)
    h2 = model.W[3](h3)
    h1 = model.W[2](h2)
    logits = model.W[1](h1)
    _, dlogits = cross_entropy(logits, targets)
    model.backward(dlogits, model.forward(ids)[1])
    gradients = {name: p.grad.copy() for name, p in model.named_parameters()}
    before = {name: p.data.copy() for name, p in model.named_parameters()}
    model.zero_grad()

    optimizer = gl.SGD(model, lr=0.5, clip_norm=0.1)
    ledger = Ledger(model, optimizer)
    assert ledger.rows == {}
    with ledger.watch():
        step(model, optimizer, ids, targets, count)
    after = {name: p.data for name, p in model.named_parameters()}
    rows = ledger.rows
    assert list(rows) == ["embedding", "W.3", "W.2", "W.1"]
    own = {row: [name for name in before if name.startswith(row)] for row in rows}
    for row, output in zip(rows, (h3, h2, h1, logits), strict=True):
        assert rows[row].gradient == pytest.approx(norm(*(gradients[n] for n in own[row])), rel=1e-5)  # not clipped
        assert rows[row].activation == pytest.approx(rms(output), rel=1e-6)
        moved = norm(*(after[n] - before[n] for n in own[row]))
        assert rows[row].update == pytest.approx(moved / norm(*(before[n] for n in own[row])), rel=1e-5)
    flat = np.abs(h2) > 0.99
    assert rows["W.3"].dead == flat.all(axis=0).mean() == pytest.approx(2 / 6)
    assert rows["W.3"].saturated == pytest.approx(flat.mean())
    assert rows["embedding"].dead is rows["W.1"].dead is rows["W.1"].saturated is None


def test_dead_units_of_relu_over_all_parts_of_a_batch(batch):
    ids, targets = batch
    model = gl.FeedForwardNet(gl.FeedForwardConfig(7, 3, 4, (6,), "relu"), seed=1)
    model.W[2].linear.bias.data[:3] = -100
    parts = [model.W[2](model.embedding(ids[i : i + 4]).reshape(4, -1)) for i in (0, 4)]
    zero = [(part == 0).all(axis=0) for part in parts]
    ledger = Ledger(model)
    with ledger.watch():
        for i in (0, 4):
            step(model, None, ids[i : i + 4], targets[i : i + 4])
    assert ledger.rows["W.2"].dead == (zero[0] & zero[1]).mean() >= 0.5
    assert ledger.rows["W.2"].saturated is None
    assert ledger.rows["W.2"].activation == pytest.approx(rms(np.concatenate(parts)), rel=1e-6)
    assert ledger.rows["W.2"].update is None
    assert ledger.rows["W.1"].gradient == pytest.approx(norm(model.W[1].weight.grad, model.W[1].bias.grad), rel=1e-6)


def test_the_gradient_is_that_of_the_unscaled_mean_loss(batch):
    ids, targets = batch
    found = []
    for divisor in (1, 8):
        model = gl.FeedForwardNet(CONFIG, seed=1)
        ledger = Ledger(model)
        with ledger.watch():
            step(model, None, ids, targets, count=None if divisor == 1 else 8)
            ledger.divisor = divisor
        found.append([row.gradient for row in ledger.rows.values()])
    assert found[0] == pytest.approx(found[1], rel=1e-5)


def test_layers_of():
    gpt = gl.GPT(gl.GPTConfig(vocab=7, context=4, layers=2, heads=2, dim=8))
    assert list(layers_of(gpt)) == ["wte", "wpe", "blocks.0", "blocks.1", "ln_f", "head"]
    assert list(layers_of(gl.Linear(2, 2))) == ["Linear"]
    nested = gl.Sequential(gl.Linear(2, 2), gl.Residual(gl.Sequential(gl.Linear(2, 2), gl.ReLU(), gl.Dropout(0.1))))
    assert list(layers_of(nested)) == ["layers.0", "layers.1.layer.layers.0", "layers.1.layer.layers.1"]


def test_any_model(rng):
    """A GPT: blocks are one row each, a tied table counts where it stands first, fused GELU is seen."""
    model = gl.GPT(gl.GPTConfig(vocab=7, context=4, layers=2, heads=2, dim=8, dropout=0.1))
    optimizer = gl.AdamW(model, lr=1e-3)
    ledger, ids = Ledger(model, optimizer), rng.integers(0, 7, (2, 4))
    with ledger.watch():
        step(model, optimizer, ids, ids)
    rows = ledger.rows
    assert list(rows) == ["wte", "wpe", "blocks.0", "blocks.1", "ln_f", "head"]
    assert rows["blocks.1"].dead == 0
    assert rows["head"].gradient is rows["head"].update is None
    assert rows["head"].activation is not None
    assert all(row.gradient > 0 and row.update > 0 for name, row in rows.items() if name != "head")
    assert first_sick(rows) is None


def test_a_pass_that_is_run_again_counts_once(rng):
    x = rng.normal(size=(5, 3)).astype(np.float32)
    rows = []
    for wrap in (gl.Recompute, lambda layer: layer):
        model = gl.Sequential(wrap(gl.FeedForward(3, 8, "relu", rng=0)))
        ledger = Ledger(model)
        with ledger.watch():
            y, saved = model.forward(x)
            model.backward(y, saved)
        rows.append(ledger.rows["layers.0"])
    assert rows[0] == rows[1]
    assert rows[0].dead is not None


def test_cells_that_their_network_unrolls_stand_where_it_is_called(rng):
    """In the order of calls, not of definition; their activation is the network's."""

    class Tagger(gl.Layer):
        def __init__(self):
            self.network = gl.GRU(4, 3, bidirectional=True, rng=0)
            self.embedding = gl.Embedding(7, 4, rng=0)

        def forward(self, ids, train=None):
            x, _ = self.embedding.forward(ids)
            (y, _), saved = self.network.forward(x, train=train)
            return y, (ids, saved)

        def backward(self, dy, saved):
            ids, saved = saved
            dx, _ = self.network.backward((dy, None), saved)
            self.embedding.backward(dx, ids)

    model, ids = Tagger(), rng.integers(0, 7, (2, 5))
    ledger = Ledger(model)
    with ledger.watch():
        for _ in range(2):
            y, saved = model.forward(ids)
            model.backward(y, saved)
    assert list(ledger.rows) == ["embedding", "network.cells.0", "network.cells.1"]
    (y, h_n), _ = model.network.forward(model.embedding(ids))
    for cell in ("network.cells.0", "network.cells.1"):
        assert ledger.rows[cell].activation == pytest.approx(rms([*y.ravel(), *h_n.ravel()]), rel=1e-6)
        assert ledger.rows[cell].gradient > 0


def test_watching_changes_no_bit(batch):
    ids, targets = batch
    states = []
    for watched in (False, True):
        model = gl.FeedForwardNet(gl.FeedForwardConfig(7, 3, 4, (6, 6), "relu", around="batchnorm", dropout=0.2), 1)
        optimizer = gl.Adam(model, lr=0.01, clip_norm=0.5, weight_decay=0.1)
        ledger = Ledger(model, optimizer)
        for _ in range(5):
            if watched:
                with ledger.watch():
                    step(model, optimizer, ids, targets, count=8)
            else:
                step(model, optimizer, ids, targets, count=8)
        states.append({**model.state_dict(), **optimizer.state_dict()})
    assert states[0].keys() == states[1].keys()
    assert all(np.asarray(states[0][n]).tobytes() == np.asarray(states[1][n]).tobytes() for n in states[0])


def test_one_recording_at_a_time():
    model = gl.Linear(2, 2)
    ledger = Ledger(model)
    with ledger.watch(), pytest.raises(RuntimeError, match="another recording"), ledger.watch():
        pass
    assert not Ranges._active


def test_an_error_inside_leaves_the_classes_as_they_were(batch):
    model = gl.FeedForwardNet(CONFIG)
    forward = gl.FeedForwardNet.forward
    with pytest.raises(ValueError, match="FeedForwardNet takes ids"), Ledger(model).watch():
        model.forward(batch[0][:, :2])
    assert gl.FeedForwardNet.forward is forward


@on_devices
def test_on_every_device(device, batch):
    ids, targets = (gl.to_device(a, device) for a in batch)
    model = gl.FeedForwardNet(CONFIG, seed=1).to(device)
    optimizer = gl.SGD(model, lr=0.1)
    ledger = Ledger(model, optimizer)
    with ledger.watch():
        step(model, optimizer, ids, targets, count=8)
    on_cpu = gl.FeedForwardNet(CONFIG, seed=1)
    wanted = Ledger(on_cpu, optimizer := gl.SGD(on_cpu, lr=0.1))
    with wanted.watch():
        step(on_cpu, optimizer, *batch, count=8)
    for name, row in wanted.rows.items():
        for found, value in zip(ledger.rows[name], row, strict=True):
            assert found == (None if value is None else pytest.approx(value, rel=1e-4))
