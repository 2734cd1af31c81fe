"""Every public layer and loss with every dtype: integer ids of any width give the same bits, bool and floating ids are
refused, bfloat16 and float16 go through and stay what they are, and no float64 array appears in a float32 pass."""

import linecache

import ml_dtypes
import numpy as np
import pytest
from watch import Watch

import gpulayers as gl
from gpulayers.models.gpt import GPT, GPTConfig
from gpulayers.models.seq2seq import Seq2Seq, Seq2SeqConfig
from gpulayers.models.transformer import Transformer, TransformerConfig
from gpulayers.verify.case import LayerCase
from gpulayers.verify.certificate import collect

WIDTHS = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
NO_IDS = ("bool", "float32", "float64", "bfloat16")
CASES = [case for case in collect(quick=True) if isinstance(case, LayerCase)]
SUBJECTS = {case.subject: [one for one in CASES if one.subject == case.subject] for case in CASES}


def single(x, dtype="float32"):
    return x.astype(dtype) if isinstance(x, np.ndarray) and x.dtype.kind == "f" else x


def passes(case, inputs, options, dtype="float32"):
    """All arrays that one forward and backward pass give: outputs, gradients of the inputs and of the parameters."""
    layer = case.make().to(dtype=dtype)
    if case.train is not None:
        options = {**options, "train": case.train.snapshot()}
    y, saved = layer.forward(*inputs, **options)
    dx = layer.backward(ones(y), saved)
    return [*flat(y), *flat(dx), *(p.grad for p in layer.parameters())]


def ones(y):
    return tuple(map(ones, y)) if isinstance(y, tuple) else np.ones(y.shape, y.dtype)


def flat(value):
    if isinstance(value, tuple | list):
        return [array for item in value for array in flat(item)]
    return [] if value is None else [value]


def is_a_sentence(error: Exception) -> bool:
    """Whether the library raised it: NumPy's own errors come out of a line that raises nothing."""
    frame = error.__traceback__
    assert frame is not None
    while frame.tb_next is not None:
        frame = frame.tb_next
    file, last = frame.tb_frame.f_code.co_filename, frame.tb_lineno
    lines = [linecache.getline(file, number) for number in range(max(1, last - 4), last + 1)]
    return "gpulayers" in file and any("raise " in line for line in lines) and "\n" not in str(error)


def holds(ids, dtype) -> bool:
    return ids.size == 0 or (ids.min() >= np.iinfo(dtype).min and ids.max() <= np.iinfo(dtype).max)


def in_every_width(call, ids):
    """call(ids of each integer dtype that can hold them) gives the same bits; of no other dtype it takes them."""
    wanted = flat(call(ids.astype(np.int64)))
    for width in WIDTHS:
        if holds(ids, width):
            found = flat(call(ids.astype(width)))
            assert [a.tobytes() for a in found] == [b.tobytes() for b in wanted], width
            assert [a.dtype for a in found] == [b.dtype for b in wanted], width
    for kind in NO_IDS:
        with pytest.raises((TypeError, ValueError)) as caught:
            call(ids.astype(kind))
        assert is_a_sentence(caught.value), caught.value


# ---------------------------------------------------------------------------------------------------- layers


def with_integers():
    """(case, which input or option holds integers), two cases of each layer."""
    for subject, cases in SUBJECTS.items():
        found = [
            (case, key)
            for case in cases
            for key, value in (*enumerate(case.inputs), *case.options.items())
            if isinstance(value, np.ndarray) and value.dtype.kind in "iu" and value.size
        ]
        for number, (case, key) in enumerate(found[:2]):
            yield pytest.param(case, key, id=f"{subject} {number}")


@pytest.mark.parametrize(("case", "key"), list(with_integers()))
def test_ids_and_lengths_of_any_width(case, key):
    def call(ids):
        inputs = [ids if position == key else single(x) for position, x in enumerate(case.inputs)]
        options = {name: ids if name == key else value for name, value in case.options.items()}
        return passes(case, inputs, options)

    in_every_width(call, case.options[key] if isinstance(key, str) else case.inputs[key])


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("subject", SUBJECTS)
def test_every_layer_in_16_bits(subject, dtype):
    for case in SUBJECTS[subject][:3]:
        options = {name: single(value, dtype) for name, value in case.options.items()}
        found = passes(case, [single(x, dtype) for x in case.inputs], options, dtype)
        kinds = {array.dtype.name for array in found if array.dtype.kind not in "iub"}
        assert kinds <= {dtype}, f"{case.name}: {kinds}"


@pytest.mark.parametrize("subject", SUBJECTS)
def test_no_float64_in_a_float32_pass(subject):
    cases = [case for case in SUBJECTS[subject] if all(x.size for x in case.inputs)][:3]
    for case in cases:
        inputs = [single(x) for x in case.inputs]
        options = {name: single(value) for name, value in case.options.items()}
        passes(case, inputs, options)  # tables of positions are computed in float64, once
        layer, train = case.make(), None if case.train is None else case.train.snapshot()
        with Watch() as watch:
            y, saved = layer.forward(*inputs, **options, **({} if train is None else {"train": train}))
            layer.backward(ones(y), saved)
        assert not watch.found, case.name


def test_a_parameter_of_another_dtype_than_the_input_is_a_sentence():
    """Each layer with parameters: a mixture would be promoted in silence."""
    for subject, cases in SUBJECTS.items():
        case = cases[0]
        layer = case.make()
        if not list(layer.parameters()) or not any(x.dtype.kind == "f" for x in case.inputs):
            continue
        for dtype in ("float64", "bfloat16", "float16"):
            with pytest.raises((TypeError, ValueError)) as caught:
                layer.forward(*(single(x, dtype) for x in case.inputs), **case.options)
            assert is_a_sentence(caught.value), f"{subject}: {caught.value}"


# ---------------------------------------------------------------------------------------------------- losses

X = np.random.default_rng(0).normal(size=(6, 5)).astype(np.float32)
IDS = np.array([0, 4, 2, 2, 1, 3])
SIGNS = np.array([1, -1, 1, 1, -1, 1])
ID_LOSSES = {
    "cross_entropy": lambda ids: gl.cross_entropy(X, ids),
    "cross_entropy, every option": lambda ids: gl.cross_entropy(
        X, ids, weight=X[0] ** 2, label_smoothing=0.1, z_loss=0.1, reduction="sum", ignore_index=2
    ),
    "nll_loss": lambda ids: gl.nll_loss(X, ids),
    "one_hot": lambda ids: gl.one_hot(ids, 5),
    "padding_mask": lambda ids: gl.padding_mask(ids[:, None], 2),
    "lengths": lambda ids: gl.padding_mask(lengths=ids),
    "pad_sequences": lambda ids: gl.pad_sequences([ids, ids[:3]]),
}


@pytest.mark.parametrize("name", ID_LOSSES)
def test_targets_of_any_width(name):
    if name == "pad_sequences":  # of anything: ids keep their dtype
        for width in WIDTHS:
            assert gl.pad_sequences([IDS.astype(width), IDS[:3].astype(width)])[0].dtype == width
        return
    in_every_width(ID_LOSSES[name], IDS)


@pytest.mark.parametrize("loss", [gl.hinge_embedding_loss, gl.cosine_embedding_loss])
def test_signs_of_any_width(loss):
    signed = [width for width in WIDTHS if width[0] == "i"]
    call = (lambda s: loss(X, X[::-1].copy(), s)) if loss is gl.cosine_embedding_loss else (lambda s: loss(X[:, 0], s))
    wanted = [a.tobytes() for a in map(np.asarray, flat(call(SIGNS)))]
    for width in signed:
        assert [a.tobytes() for a in map(np.asarray, flat(call(SIGNS.astype(width))))] == wanted, width
    with pytest.raises((TypeError, ValueError)) as caught:
        call(SIGNS > 0)
    assert is_a_sentence(caught.value)


LOSSES = {
    "cross_entropy": lambda x: gl.cross_entropy(x, IDS),
    "nll_loss": lambda x: gl.nll_loss(x, IDS),
    "mse_loss": lambda x: gl.mse_loss(x, x[::-1].copy()),
    "l1_loss": lambda x: gl.l1_loss(x, x[::-1].copy()),
    "huber_loss": lambda x: gl.huber_loss(x, x[::-1].copy()),
    "smooth_l1_loss": lambda x: gl.smooth_l1_loss(x, x[::-1].copy()),
    "kl_div": lambda x: gl.kl_div(x, abs(x)),
    "binary_cross_entropy_with_logits": lambda x: gl.binary_cross_entropy_with_logits(x, abs(x) / 4),
    "binary_cross_entropy": lambda x: gl.binary_cross_entropy(abs(x) / 4, abs(x) / 4),
    "hinge_embedding_loss": lambda x: gl.hinge_embedding_loss(x[:, 0].copy(), SIGNS),
    "cosine_embedding_loss": lambda x: gl.cosine_embedding_loss(x, x[::-1].copy(), SIGNS),
}


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "float64"])
@pytest.mark.parametrize("name", LOSSES)
def test_losses_of_any_floating_type(name, dtype):
    """The loss is float32 or wider, a gradient has the type of its input."""
    loss, *gradients = flat(LOSSES[name](X.astype(dtype)))
    assert np.asarray(loss).dtype == (np.float64 if dtype == "float64" else np.float32)
    assert {gradient.dtype for gradient in gradients} == {np.dtype(getattr(ml_dtypes, dtype, dtype))}
    assert np.isfinite(np.float64(loss))


# ---------------------------------------------------------------------------------------------------- models

MODELS = {
    "GPT": lambda ids: GPT(GPTConfig(vocab=5, context=6, layers=1, heads=1, dim=4))(ids),
    "Transformer": lambda ids: Transformer(TransformerConfig(5, 5, dim=4, heads=1, layers=1))(ids, ids),
    "Seq2Seq": lambda ids: Seq2Seq(Seq2SeqConfig(5, 5, dim=2, hidden=3))(ids, ids),
}


@pytest.mark.parametrize("name", MODELS)
def test_models_take_ids_of_any_width(name):
    in_every_width(MODELS[name], IDS.reshape(2, 3))
