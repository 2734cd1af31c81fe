import dataclasses

import numpy as np
import pytest
from contract import check_layer
from devices import on_devices, refuse_waiting
from test_float32_step import Watch
from tolerances import assert_close

import gpulayers as gl
from gpulayers.cuda import error_flag
from gpulayers.decoding import beam_search, greedy_decode, log_probabilities
from gpulayers.gradcheck import gradcheck
from gpulayers.models.context import CONTEXTS
from gpulayers.models.recurrent_encoder import lengths_of
from gpulayers.models.seq2seq import Seq2Seq, Seq2SeqConfig, load
from gpulayers.ops.cross_entropy import cross_entropy
from gpulayers.optim import AdamW
from gpulayers.step import Train
from gpulayers.storage import FileError
from gpulayers.training.loop import train_step
from gpulayers.training.tasks import Part

TINY = Seq2SeqConfig(source_vocab=9, target_vocab=8, dim=3, hidden=4)
DECODERS = ("initial", "every_step", "additive", "dot", "general")
ENCODERS = [(False, "last"), (False, "max"), (True, "last"), (True, "both"), (True, "mean"), (True, "max")]

every_decoder = pytest.mark.parametrize("decoder", DECODERS)
every_cell = pytest.mark.parametrize("cell", ["rnn", "gru", "lstm"])


def tiny(dtype="float32", **changes):
    if changes.get("decoder") == "dot":
        changes = {"bidirectional": False, "context": "last", **changes}
    return Seq2Seq(dataclasses.replace(TINY, **changes), seed=0, dtype=dtype)


@pytest.fixture
def source(rng):
    """Of lengths 5, 3 and 0."""
    ids = rng.integers(3, 9, (3, 5))
    ids[1, 3:], ids[2] = 0, 0
    return ids


@pytest.fixture
def target_in(rng):
    ids = rng.integers(3, 8, (3, 4))
    ids[:, 0], ids[1, 2:] = 1, 0
    return ids


# ------------------------------------------------------------------------------------------------- gradients


def larger(**changes):
    """Three times the initial values, so that no gradient is so small that float32's rounding is all there is of it."""
    model = tiny(**changes)
    for parameter in model.parameters():
        parameter.data *= 3
    return model


@every_decoder
@every_cell
def test_contract(cell, decoder, source, target_in):
    check_layer(lambda: larger(cell=cell, decoder=decoder), source, target_in, tied=True)


@every_decoder
def test_contract_with_dropout_between_layers(decoder, source, target_in):
    def make():
        return larger(cell="lstm", decoder=decoder, layers=2, dropout=0.2)

    check_layer(make, source, target_in, train=Train(seed=1, step=2), tied=True)


@pytest.mark.parametrize("decoder", ["initial", "every_step", "additive"])
@pytest.mark.parametrize(("bidirectional", "context"), ENCODERS)
def test_gradients_of_every_context(decoder, bidirectional, context, source, target_in):
    model = tiny(cell="lstm", decoder=decoder, bidirectional=bidirectional, context=context, layers=2)
    assert gradcheck(model, source, target_in) < 1e-8


@every_decoder
@pytest.mark.parametrize(("B", "S", "T"), [(0, 3, 2), (2, 0, 3), (2, 3, 0), (1, 1, 1)])
def test_odd_shapes(decoder, B, S, T, rng):
    check_layer(lambda: tiny(decoder=decoder), rng.integers(0, 9, (B, S)), rng.integers(0, 8, (B, T)), tied=True)


@pytest.mark.parametrize("context", ["mean", "max", "both"])
def test_a_context_of_nothing(context):
    model = tiny(context=context, decoder="every_step")
    for source in (np.zeros((2, 0), int), np.zeros((2, 3), int)):
        encoded, _ = model.encoder.forward(source)
        assert not encoded.context.any()
        assert encoded.context.shape == (2, 8)


# ------------------------------------------------------------------------------------------------- contexts


def test_contexts_by_hand():
    """Two sources of lengths 2 and 0, states of one number in each of two directions, two layers."""
    memory = np.array([[[1.0, -4], [3, -2], [0, 0]], [[0, 0], [0, 0], [0, 0]]])
    final = np.arange(8.0).reshape(4, 2, 1)  # (layers directions, B, H)
    lengths = np.array([2, 0], np.int32)
    expected = {"last": [[4], [5]], "both": [[4, 6], [5, 7]], "mean": [[2, -3], [0, 0]], "max": [[3, -2], [0, 0]]}
    gradients = {
        "last": (None, [[[0], [0]], [[0], [0]], [[1], [1]], [[0], [0]]]),
        "both": (None, [[[0], [0]], [[0], [0]], [[1], [1]], [[1], [1]]]),
        "mean": ([[[0.5, 0.5], [0.5, 0.5], [0, 0]], np.zeros((3, 2))], None),
        "max": ([[[0, 0], [1, 1], [0, 0]], np.zeros((3, 2))], None),
    }
    for name, kind in CONTEXTS.items():
        context, saved = kind().forward(memory, final, lengths)
        assert context.tolist() == expected[name], name
        for found, wanted in zip(kind().backward(np.ones_like(context), saved), gradients[name], strict=True):
            assert (found is None and wanted is None) or np.array_equal(found, np.array(wanted)), name


def test_lengths_end_where_padding_starts():
    ids = np.array([[5, 4, 0, 0], [0, 5, 0, 7], [0, 0, 0, 0], [1, 2, 3, 4]])
    assert lengths_of(ids, 0).tolist() == [2, 4, 0, 4]
    assert lengths_of(np.zeros((2, 0), int), 0).tolist() == [0, 0]


def test_the_final_state_is_handed_over_where_it_fits(source):
    """Sutskever et al. 2014: h and c of each layer."""
    model = tiny(cell="lstm", layers=2, bidirectional=False, context="last", decoder="initial")
    assert model.encoder.bridge is None
    encoded, _ = model.encoder.forward(source)
    (_, final), _ = model.encoder.network.forward(model.encoder.embedding(source), lengths=lengths_of(source, 0))
    for a, b in zip(encoded.state, final, strict=True):
        assert np.array_equal(a, b)
    assert np.array_equal(encoded.context, final[0][-1])


def test_the_bridge(source):
    """Elsewhere the state is tanh of a linear map of the context (Cho et al. 2014)."""
    model = tiny(cell="lstm", layers=2, dtype="float64")
    encoded, _ = model.encoder.forward(source)
    linear = model.encoder.bridge.linear
    flat = np.tanh(encoded.context @ linear.weight.data + linear.bias.data).reshape(3, 2, 2, 4)
    for k, part in enumerate(encoded.state):
        for layer in range(2):
            assert_close(part[layer], flat[:, k, layer])


# ------------------------------------------------------------------------------------------------- decoding


@every_decoder
@pytest.mark.parametrize(("cell", "layers"), [("rnn", 1), ("gru", 2), ("lstm", 1), ("lstm", 2)])
def test_steps_give_what_the_whole_pass_gives(cell, decoder, layers, source, target_in):
    model = tiny("float64", cell=cell, decoder=decoder, layers=layers)
    logits, state = model(source, target_in), model.start(source)
    states = [state]
    for t in range(target_in.shape[1]):
        found, state = model.step(target_in[:, t], state)
        assert_close(found, logits[:, t], factor=10)
        states.append(state)
    again, _ = model.step(target_in[:, 1], states[1])  # an old state is still what it was
    assert_close(again, logits[:, 1], factor=10)


@every_decoder
def test_beam_search(decoder, source):
    """Width 1 is greedy; at width 3 a score is what the whole pass says of those ids, so no row got another's state."""
    model = larger(decoder=decoder, cell="lstm", layers=2, longest=6)
    greedy, beam = greedy_decode(model, source), beam_search(model, source, width=1)
    assert np.array_equal(greedy.ids, beam.ids)
    assert_close(beam.scores, greedy.scores)
    beam = beam_search(model, source, width=3)
    target_in = np.concatenate([np.ones((3, 1), int), beam.ids[:, :-1]], axis=1)
    log_p = log_probabilities("test", model(source, target_in).reshape(-1, 8), model.config).reshape(3, -1, 8)
    each = np.take_along_axis(log_p, beam.ids[:, :, None], axis=2)[:, :, 0]
    assert_close(beam.scores, np.where(beam.ids == 0, 0, each).sum(axis=1), factor=10)


@every_decoder
def test_the_past_does_not_see_the_future(decoder, source, target_in):
    model, changed = tiny("float64", decoder=decoder), target_in.copy()
    changed[:, 2] = 7 - changed[:, 2] % 2
    a, b = model(source, target_in), model(source, changed)
    assert_close(a[:, :2], b[:, :2])
    assert not np.allclose(a[:, 2:], b[:, 2:])


@every_decoder
@pytest.mark.parametrize("context", ["last", "both", "mean", "max"])
def test_padding_changes_nothing(decoder, context, source, target_in):
    """A pair gives the same logits and gradients alone as in a longer padded batch."""
    if decoder == "dot":
        context = "last" if context == "both" else context
    model = tiny("float64", decoder=decoder, context=context, layers=2)
    wide_source = np.concatenate([source, np.zeros((3, 4), int)], axis=1)
    wide_target = np.concatenate([target_in, np.zeros((3, 2), int)], axis=1)
    batch = model(wide_source, wide_target)
    for b, (S, T) in enumerate([(5, 4), (3, 2), (0, 4)]):
        alone = model(source[b : b + 1, :S], target_in[b : b + 1, :T])
        assert_close(batch[b, :T], alone[0], factor=10)
    gradients = []
    for ids, targets in ((source, target_in), (wide_source, wide_target)):
        logits, saved = model.forward(ids, targets)
        dlogits = np.where((targets != 0)[:, :, None], np.cos(logits), 0)
        model.zero_grad()
        model.backward(dlogits, saved)
        gradients.append([p.grad.copy() for p in model.parameters()])
    for a, b in zip(*gradients, strict=True):
        assert_close(a, b, factor=100)


@pytest.mark.parametrize("decoder", ["additive", "dot", "general"])
def test_attention_is_normalised_and_blind_to_padding(decoder, source, target_in):
    weights = tiny(decoder=decoder).attention(source, target_in)
    assert weights.shape == (3, 4, 5)
    assert np.allclose(weights[:2].sum(axis=2), 1)
    assert not weights[1, :, 3:].any()
    assert not weights[2].any()
    assert tiny(decoder=decoder).attention(source, target_in[:, :0]).shape == (3, 0, 5)


def test_no_attention_is_one_sentence(source, target_in):
    with pytest.raises(ValueError, match="InitialDecoder has no attention"):
        tiny(decoder="initial").attention(source, target_in)


# ------------------------------------------------------------------------------------------------- training


@pytest.mark.parametrize("decoder", ["initial", "additive"])
def test_it_learns_to_turn_a_sequence_round(decoder, rng):
    model = tiny(decoder=decoder, hidden=16, dim=8)
    optimizer = AdamW(model, lr=3e-2, clip_norm=1.0)
    symbols = rng.integers(3, 8, (16, 3))
    target = np.concatenate([symbols[:, ::-1], np.full((16, 1), 2)], axis=1)
    target_in = np.concatenate([np.ones((16, 1), int), target[:, :-1]], axis=1)
    losses = []
    for step in range(40):
        logits, saved = model.forward(symbols, target_in, Train(step=step))
        loss, dlogits = cross_entropy(logits, target)
        model.backward(dlogits, saved)
        optimizer.step()
        losses.append(float(loss))
    assert losses[0] == pytest.approx(np.log(8), abs=0.5)
    assert losses[-1] < 0.3


def test_dropout_does_not_depend_on_how_the_batch_is_split(source, target_in):
    for decoder in DECODERS:
        model = tiny("float64", decoder=decoder, dropout=0.5, layers=2, sampling=0.5)
        whole, _ = model.forward(source, target_in, Train(seed=3, step=4))
        parts = [
            model.forward(source[i : i + 1], target_in[i : i + 1], Train(seed=3, step=4, first_sample=i))[0]
            for i in range(3)
        ]
        assert_close(whole, np.concatenate(parts), factor=10)


# ------------------------------------------------------------------------------------------------- scheduled sampling


def test_the_probability_grows_linearly():
    model = tiny(sampling=0.5, sampling_steps=100)
    assert [model.sampling(step) for step in (0, 50, 100, 1000)] == [0, 0.25, 0.5, 0.5]
    assert tiny(sampling=0.5).sampling(0) == 0.5
    assert tiny().sampling(7) == 0
    on_device = np.array([7], np.uint64)  # as `Train` carries it for captured graphs
    assert tiny(sampling=0.5).sampling(on_device) == 0.5
    with pytest.raises(ValueError, match="sampling_steps needs a step on the host"):
        model.sampling(on_device)


@every_decoder
def test_always_sampling_is_decoding(decoder, source, target_in):
    """With probability 1 the inputs are what the model writes itself; padding stays."""
    model = tiny("float64", decoder=decoder, sampling=1.0)
    logits, _ = model.forward(source, target_in, Train())
    ids, state = target_in[:, 0], model.start(source)
    for t in range(4):
        found, state = model.step(ids, state)
        assert_close(found, logits[:, t], factor=10)
        found[:, :2] = -np.inf  # pad and bos
        ids = np.where(target_in[:, t + 1] == 0, 0, found.argmax(axis=1)) if t < 3 else ids


def test_draws_depend_on_the_step_and_not_in_evaluation(source, target_in):
    model = tiny(sampling=0.5)
    encoded, _ = model.encoder.forward(source)
    found = [model._sampled(encoded, target_in, 0.5, Train(step=step)) for step in range(20)]
    assert len({ids.tobytes() for ids in found}) > 1
    assert all((ids[:, 0] == 1).all() for ids in found)
    assert all((ids[target_in == 0] == 0).all() for ids in found)
    assert np.array_equal(model._sampled(encoded, target_in, 0.5, Train(step=3)), found[3])
    assert np.array_equal(model.forward(source, target_in)[0], tiny().forward(source, target_in)[0])


def test_sampling_draws_the_asked_share(rng):
    """Of 4000 places, 30 %, where the model never says what the target does."""
    model = tiny(sampling=0.3)
    model.head.bias.data[...] = np.array([0, 0, 0, 100, 0, 0, 0, 0])
    target_in = rng.integers(4, 8, (100, 41))
    encoded, _ = model.encoder.forward(rng.integers(3, 9, (100, 2)))
    own = model._sampled(encoded, target_in, 0.3, Train(seed=5)) == 3
    assert own[:, 1:].mean() == pytest.approx(0.3, abs=0.03)


def test_gradients_with_sampled_inputs(source, target_in):
    """The choice of an id has no gradient: it does not move under small steps either."""
    assert gradcheck(tiny(sampling=0.7), source, target_in, train=Train(seed=2)) < 1e-8


# ------------------------------------------------------------------------------------------------- devices


@pytest.mark.parametrize(
    ("decoder", "context"),
    [("initial", "last"), ("every_step", "mean"), ("additive", "both"), ("dot", "max"), ("general", "both")],
)
def test_no_float64_in_a_float32_step(decoder, context, rng):
    model = tiny(decoder=decoder, context=context, dropout=0.1, layers=2, sampling=0.5)
    optimizer = AdamW(model, clip_norm=1.0)
    part = Part(0, (rng.integers(0, 9, (9, 5)), rng.integers(0, 8, (9, 4))), rng.integers(0, 8, (9, 4)))
    with Watch() as watch:
        train_step(model, optimizer, [part], seed=0, k=3)
    assert not watch.found


@on_devices
@pytest.mark.parametrize(
    ("decoder", "cell", "context"), [("additive", "gru", "mean"), ("dot", "lstm", "max"), ("every_step", "rnn", "both")]
)
def test_on_a_device(device, decoder, cell, context, source, target_in, monkeypatch):
    """Logits and gradients as on the CPU, and the host never waits for the device."""
    changes = {"decoder": decoder, "cell": cell, "context": context, "sampling": 0.5, "dropout": 0.2, "layers": 2}
    model, there = tiny(**changes), tiny(**changes).to(device)
    logits, saved = model.forward(source, target_in, Train(seed=1))
    dlogits = np.cos(logits)
    model.backward(dlogits, saved)
    source_there, target_there, dlogits_there = (gl.to_device(a, device) for a in (source, target_in, dlogits))
    error_flag(dlogits_there)  # made once
    with monkeypatch.context() as within:
        refuse_waiting(within)
        found, saved_there = there.forward(source_there, target_there, Train(seed=1))
        there.backward(dlogits_there, saved_there)
        step, _ = there.step(target_there[:, 0], there.start(source_there))
    assert_close(found.get(), logits, "float32", factor=5)
    for p, q in zip(model.parameters(), there.parameters(), strict=True):
        assert_close(q.grad.get(), p.grad, "float32", factor=20)
    assert_close(step.get(), model(source, target_in)[:, 0], "float32", factor=5)


# ------------------------------------------------------------------------------------------------- the model


def test_initial_values_depend_on_the_seed_alone():
    a, b, c = tiny(), tiny(), Seq2Seq(TINY, seed=1)
    for name, value in a.state_dict().items():
        assert np.array_equal(value, b.state_dict()[name])
    assert not np.array_equal(a.head.weight.data, c.head.weight.data)
    assert np.array_equal(tiny("float64").head.weight.data.astype(np.float32), a.head.weight.data)


@every_decoder
def test_save_and_load(decoder, tmp_path, source, target_in):
    model = tiny(decoder=decoder, cell="lstm", layers=2)
    model.save(tmp_path / "model.safetensors", {"note": "hello"})
    again = load(tmp_path / "model.safetensors")
    assert again.config == model.config
    assert np.array_equal(again(source, target_in), model(source, target_in))


def test_load_refuses_what_is_no_seq2seq(tmp_path):
    gl.Linear(2, 2, rng=0).save(tmp_path / "linear.safetensors")
    with pytest.raises(FileError, match="holds no Seq2Seq"):
        load(tmp_path / "linear.safetensors")
    tiny().save(tmp_path / "model.safetensors", {"seq2seq_config": '{"source_vocab": 3}'})
    with pytest.raises(FileError, match="does not hold a whole Seq2Seq"):
        load(tmp_path / "model.safetensors")


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"hidden": 0}, "hidden must be at least 1, got 0"),
        ({"cell": "qrnn"}, "cell must be one of rnn, gru, lstm, got 'qrnn'"),
        ({"context": "first"}, "context must be one of last, both, mean, max, got 'first'"),
        ({"decoder": "none"}, "decoder must be one of initial, every_step, additive, dot, general, got 'none'"),
        ({"dropout": 1.1}, r"dropout must be in 0\.\.1, got 1.1"),
        ({"dropout": float("nan")}, r"dropout must be in 0\.\.1, got nan"),
        ({"sampling": 1.5}, r"sampling must be in 0\.\.1, got 1.5"),
        ({"sampling_steps": -1}, "sampling_steps must be at least 0, got -1"),
        ({"bidirectional": False}, "context 'both' needs bidirectional=True"),
        ({"decoder": "dot"}, "decoder 'dot' needs bidirectional=False"),
        ({"eos": 1}, r"pad, bos and eos must be three ids inside the vocabularies, got \(0, 1, 1\)"),
        ({"target_vocab": 2}, "three ids inside the vocabularies"),
    ],
)
def test_impossible_configurations_are_one_sentence(changes, sentence):
    with pytest.raises(ValueError, match=sentence):
        dataclasses.replace(TINY, **changes)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"hidden": 2.5}, r"Seq2SeqConfig: hidden must be an integer, got 2\.5"),
        ({"pad": "0"}, "Seq2SeqConfig: pad must be an integer, got '0'"),
        ({"sampling": None}, "Seq2SeqConfig: sampling must be a number, got None"),
    ],
)
def test_other_types_are_one_sentence(changes, sentence):
    with pytest.raises(TypeError, match=sentence):
        dataclasses.replace(TINY, **changes)


def test_bad_inputs_are_one_sentence(source, target_in):
    model = tiny()
    with pytest.raises(TypeError, match="as a source, takes an array of integer ids, got float64"):
        model(source.astype(float), target_in)
    with pytest.raises(TypeError, match="as a target, takes an array of integer ids, got list"):
        model(source, target_in.tolist())
    with pytest.raises(ValueError, match=r"takes a source of ids of shape \(B, S\), got \(5,\)"):
        model(source[0], target_in)
    with pytest.raises(ValueError, match=r"takes a target of ids of shape \(3, T\), got \(2, 4\)"):
        model(source, target_in[:2])
    with pytest.raises(ValueError, match=r"outside 0\.\.7"):
        model(source, target_in + 5)
    with pytest.raises(ValueError, match=r"start takes sources of shape \(B, S\), got \(5,\)"):
        model.start(source[0])
    with pytest.raises(ValueError, match=r"step takes ids of shape \(B,\), got \(3, 4\)"):
        model.step(target_in, model.start(source))
