"""What `step` refuses of a state, and configurations of what is no word or no number of theirs."""

import numpy as np
import pytest

import gpulayers as gl
from gpulayers.models import seq2seq
from gpulayers.models.feedforward import FeedForwardConfig
from gpulayers.models.seq2seq import Seq2Seq, Seq2SeqConfig
from gpulayers.models.transformer import Transformer, TransformerConfig
from gpulayers.models.vit import ViTConfig
from gpulayers.storage import FileError, load_tensors, save_tensors

X, IDS = np.ones((2, 3), np.float32), np.ones(2, np.int64)
H = np.ones((2, 4), np.float32)


def seq2seq_of(decoder, cell="gru"):
    form = {"bidirectional": False, "context": "last"} if decoder == "dot" else {}
    return Seq2Seq(Seq2SeqConfig(6, 6, dim=2, hidden=3, layers=2, cell=cell, decoder=decoder, **form))


@pytest.mark.parametrize("kind", [gl.RNN, gl.GRU])
@pytest.mark.parametrize("state", [(), (H,), (H, H, H), 3, "ab" * 2])
def test_a_state_of_another_number_of_layers(kind, state):
    with pytest.raises(ValueError, match=r"step takes a state of 2 arrays, one for each layer"):
        kind(3, 4, 2).step(X, state)


@pytest.mark.parametrize("state", [(), (H, H, H), ((H, H), (H,)), ((H, H, H),) * 2, 3])
def test_a_pair_of_another_number_of_layers(state):
    with pytest.raises(ValueError, match=r"LSTM.step takes a state of a pair of 2 arrays each, one for each layer"):
        gl.LSTM(3, 4, 2).step(X, state)


@pytest.mark.parametrize("state", [None, 3])
def test_what_is_no_state(state):
    transformer = Transformer(TransformerConfig(6, 6, dim=4, heads=1, layers=1))
    for model in (transformer, seq2seq_of("additive")):
        with pytest.raises(TypeError, match=r"step takes the state that start or step gave, got (NoneType|int)"):
            model.step(IDS, state)
    with pytest.raises(TypeError, match=r"step takes the cache that start or step gave"):
        gl.DecoderBlock(4, 1).step(np.ones((2, 1, 4), np.float32), state)


@pytest.mark.parametrize("cell", ["gru", "lstm"])
@pytest.mark.parametrize("decoder", ["initial", "every_step", "additive", "dot", "general"])
def test_other_rows_than_the_state_has(decoder, cell):
    model = seq2seq_of(decoder, cell)
    state = model.start(np.ones((2, 3), np.int64))
    for count in (1, 3):
        with pytest.raises(ValueError, match=r"Seq2Seq.step takes ids of shape \(2,\), as many as the state"):
            model.step(np.ones(count, np.int64), state)


@pytest.mark.parametrize("kind", [gl.RNN, gl.GRU, gl.LSTM])
def test_lengths_of_unequal_rows(kind):
    with pytest.raises(TypeError, match=r"takes integer lengths, got \[\[1\], \[1, 2\]\]"):
        kind(3, 4)(np.ones((2, 5, 3), np.float32), lengths=[[1], [1, 2]])
    with pytest.raises(TypeError, match=r"takes integer lengths of shape \(B,\), got \[\[1\], \[1, 2\]\]"):
        gl.padding_mask(lengths=[[1], [1, 2]])


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: Seq2SeqConfig(6, 6, cell=["gru"]), "cell must be one of rnn, gru, lstm, got ['gru']"),
        (lambda: Seq2SeqConfig(6, 6, bidirectional="no"), "bidirectional must be True or False, got 'no'"),
        (lambda: Seq2SeqConfig(6, None), "target_vocab must be an integer, got None"),
        (lambda: Seq2SeqConfig(6, 6, hidden=None), "hidden must be an integer, got None"),
        (lambda: TransformerConfig(6, 6, norm_first="post"), "norm_first must be True or False, got 'post'"),
        (lambda: TransformerConfig(6, 6, dim=None), "dim must be an integer, got None"),
        (lambda: TransformerConfig(6, 6, positions=[]), "positions must be one of sinusoidal, learned, got []"),
        (lambda: ViTConfig((8, 8), 1, 2, 3, dropout="x"), "dropout must be a number, got 'x'"),
        (lambda: ViTConfig((8, 8), 1, None, 3), "patch must be an integer, got None"),
        (lambda: FeedForwardConfig(6, widths=(True,)), "widths must be a tuple of numbers of at least 1, got (True,)"),
        (
            lambda: FeedForwardConfig(6, around=[]),
            "around must be one of plain, residual, batchnorm, layernorm, got []",
        ),
    ],
)
def test_configurations(make, sentence):
    with pytest.raises((TypeError, ValueError), match=r".") as caught:
        make()
    assert str(caught.value).split(": ", 1)[1] == sentence


@pytest.mark.parametrize("sizes", ["[" * 100_000, '{"source_vocab": 9, "target_vocab": 9, "dim": 1099511627776}'])
def test_a_file_whose_sizes_cannot_be(tmp_path, sizes):
    path = tmp_path / "model.safetensors"
    seq2seq_of("initial").save(path)
    tensors, _ = load_tensors(path)
    save_tensors(path, tensors, {"seq2seq_config": sizes})
    with pytest.raises(FileError, match="does not hold a whole Seq2Seq"):
        seq2seq.load(path)
