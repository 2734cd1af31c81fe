import html.parser
import re

import numpy as np
import pytest

from gpulayers.cli import main
from gpulayers.gradcheck import numerical_gradient
from gpulayers.layers.linear import Linear
from gpulayers.walk import EXAMPLES, example, page, play, text


def story_of(
    model="feedforward", optimizer="adam", lr=0.1, step=1, backend="numpy", dtype="float32", activation="none"
):
    return play(model, example(model, 0, activation, backend, dtype), optimizer, lr, step, 0, backend)


def entries(story):
    return [entry for chapter in story.chapters for entry in chapter.entries]


def gradients(story):
    return {gradient.name: gradient for entry in entries(story) for gradient in entry.gradients}


@pytest.mark.parametrize(
    ("model", "dtype"), [*((model, "float32") for model in EXAMPLES), ("feedforward", "float64"), ("gpt", "float64")]
)
def test_every_gradient_stands_beside_its_finite_differences(model, dtype):
    story = story_of(model, dtype=dtype)
    told = [gradient for entry in entries(story) for gradient in entry.gradients]
    count = len(list(example(model, 0, "none", "numpy", dtype).model.parameters()))
    assert len(told) == count
    assert story.agrees
    assert story.worst < (1e-7 if dtype == "float64" else 2e-5)  # the loss is rounded before it is divided by 1e-4
    for gradient in told:
        assert gradient.backward.shape == gradient.numeric.shape
        np.testing.assert_allclose(gradient.backward, gradient.numeric, rtol=1e-4, atol=2e-6)


def test_the_equations_of_the_network_by_hand():
    shown = text(story_of())
    for formula in (
        "h2 = h3 W3 + b3", "h1 = h2 W2 + b2", "logits = h1 W1 + b1",
        "dW1 = h1' dlogits", "dh1 = dlogits W1'", "dW2 = h2' dh1", "dh2 = dh1 W2'", "dW3 = h3' dh2",
        "m = 0.9 m + 0.1 g", "p = p - 0.1 m_hat / (sqrt(v_hat) + 1e-08)",
    ):  # fmt: skip
        assert f"{formula}\n" in shown or f"{formula} " in shown, formula
    bent = text(story_of(activation="tanh"))
    for formula in ("z2 = h3 W3 + b3", "h2 = tanh(z2)", "dz1 = dh1 (1 - h1^2)", "dW2 = h2' dz1"):
        assert formula in bent


def test_the_numbers_are_those_of_the_equations():
    story = story_of(dtype="float64")
    forward, backward = (
        {name: array for entry in chapter.entries for name, array in entry.arrays}
        for chapter in (story.chapters[1], story.chapters[3])
    )
    found = gradients(story)
    h2 = forward["h3"].reshape(3, 4) @ forward["W3"] + forward["b3"]
    np.testing.assert_allclose(forward["h2"], h2)
    np.testing.assert_allclose(found["dW2"].backward, forward["h2"].T @ backward["dh1"])
    np.testing.assert_allclose(backward["dh2"], backward["dh1"] @ forward["W2"].T)
    np.testing.assert_allclose(found["dW1"].backward, forward["h1"].T @ backward["dlogits"])


def test_ops_between_layers_have_formulas_and_named_arrays():
    for model in EXAMPLES:
        for activation in ("none", "tanh") if model == "feedforward" else ("none",):
            for entry in entries(story_of(model, activation=activation)):
                assert not entry.title.startswith("op ") or entry.formulas, (model, entry.title)
                names = [name for name, _ in entry.arrays]
                assert len(set(names)) == len(names), (model, entry.title)
                assert not [name for name in names if name.startswith("result")], (model, entry.title)


def test_attention_from_the_numbers_shown():
    told = {entry.title: dict(entry.arrays) for entry in entries(story_of("gpt"))}
    a, back = told["op attention"], told["op attention_backward"]
    weights = a["weights"] * a["inverse"][..., None]
    np.testing.assert_allclose(weights.sum(axis=-1), 1, rtol=1e-6)
    heads = np.swapaxes(weights @ a["v"].swapaxes(1, 2), 1, 2)
    np.testing.assert_allclose(a["out"], heads, rtol=1e-5, atol=1e-8)
    dv = np.swapaxes(weights.swapaxes(2, 3) @ back["dout"].swapaxes(1, 2), 1, 2)
    np.testing.assert_allclose(back["dv"], dv, rtol=1e-4, atol=1e-8)
    assert list(back) == ["dout", "q", "k", "v", "out", "weights", "inverse", "dq", "dk", "dv"]


def test_the_loss_from_the_numbers_shown():
    a = dict(story_of(dtype="float64").chapters[2].entries[0].arrays)
    np.testing.assert_allclose(a["p"].sum(axis=1), 1)
    np.testing.assert_allclose(a["loss of each row"], -np.log(a["p"][range(3), a["targets"]]))
    np.testing.assert_allclose(a["dlogits"], (a["p"] - np.eye(5)[a["targets"]]) / 3)


@pytest.mark.parametrize("step", [1, 3])
def test_adam_from_the_numbers_shown(step):
    story = story_of(step=step, dtype="float64")
    updates = story.chapters[-1].entries[1:]
    assert len(updates) == 7
    for entry in updates:
        a = dict(entry.arrays)
        np.testing.assert_allclose(a["m_hat"], a["m"] / (1 - 0.9**step))
        np.testing.assert_allclose(a["v_hat"], a["v"] / (1 - 0.999**step))
        np.testing.assert_allclose(a["new"], a["old"] - 0.1 * a["m_hat"] / (np.sqrt(a["v_hat"]) + 1e-8))
        if step == 1:
            np.testing.assert_allclose(a["m"], 0.1 * a["g"])
    assert f"update {step} of Adam" in story.facts[-1]


def test_sgd_from_the_numbers_shown():
    for entry in story_of(optimizer="sgd", lr=0.25, dtype="float64").chapters[-1].entries[1:]:
        a = dict(entry.arrays)
        np.testing.assert_allclose(a["new"], a["old"] - 0.25 * a["g"])


@pytest.mark.parametrize("model", ["feedforward", "gpt"])
def test_on_the_emulated_device(model):
    story = story_of(model, backend="emulated")
    assert story.agrees
    assert not [name for entry in entries(story) for name, _ in entry.arrays if name.startswith("result")]
    here = gradients(story_of(model))
    for name, gradient in gradients(story).items():
        np.testing.assert_allclose(gradient.backward, here[name].backward, rtol=1e-4, atol=1e-6)


def test_a_wrong_gradient_is_told(monkeypatch, capsys):
    backward = Linear.backward

    def wrong(self, dy, saved):
        dx = backward(self, dy, saved)
        self.bias.add_grad(dy.reshape(-1, dy.shape[-1]).sum(axis=0))
        return dx

    monkeypatch.setattr(Linear, "backward", wrong)
    assert main(["walk"]) == 1
    out = capsys.readouterr().out
    assert out.rstrip().endswith("NOT the finite differences of the loss: db1, db2, db3")
    assert out.count("DISAGREE") == 3


class Page(html.parser.HTMLParser):
    def __init__(self):
        super().__init__()
        self.tags, self.attributes, self.titles = [], [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [name for name, _ in attrs]
        self.titles += [value for name, value in attrs if name == "title"]


@pytest.mark.parametrize("model", ["feedforward", "gpt", "vit"])
def test_the_page_is_whole_and_has_the_same_numbers(model):
    story = story_of(model)
    content = page(story)
    parsed = Page()
    parsed.feed(content)
    assert not {"script", "link", "img", "iframe"} & set(parsed.tags)
    assert not {"src", "onclick", "onload"} & set(parsed.attributes)
    assert "http" not in content
    arrays = [array for entry in entries(story) for _, array in entry.arrays]
    pairs = [array for g in gradients_of(story) for array in (g.backward, g.numeric)]
    assert parsed.tags.count("table") == len(arrays) + len(pairs)
    exact = set(parsed.titles)
    for array in arrays + pairs:
        if array.dtype.kind == "f":
            assert {repr(float(value)) for value in array.reshape(-1)} <= exact


def gradients_of(story):
    return [gradient for entry in entries(story) for gradient in entry.gradients]


def test_html_on_the_command_line(tmp_path, capsys):
    file = tmp_path / "step.html"
    assert main(["walk", "vit", "--optimizer", "sgd", "--html", str(file)]) == 0
    assert capsys.readouterr() == ("", f"written: {file}\n")
    assert re.match(r"<!doctype html>.*</html>\s*$", file.read_text("utf-8"), re.DOTALL)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["gtp"], "unknown model 'gtp'; did you mean gpt?"),
        (["nope"], "unknown model 'nope'; choose from feedforward, gpt, seq2seq, transformer, vit"),
        (["gpt", "--activation", "relu"], "--activation is for feedforward; gpt has its own"),
        (
            ["--lr", "1e30", "--step", "3"],
            "the gradient of step 3 is not finite: a lower --lr than 1e+30 or an earlier",
        ),
        (["--step", "0"], "--step must be at least 1 and at most 10000, got 0"),
        (["--html", "/no/such/folder/x.html"], "/no/such/folder"),
    ],
)
def test_errors_are_one_sentence(words, sentence, capsys):
    assert main(["walk", *words]) == 2
    err = capsys.readouterr().err
    assert sentence in err
    assert err.count("\n") == 1


def test_numerical_gradient():
    x = np.array([[1.0, 2.0], [3.0, -1.0]])
    np.testing.assert_allclose(numerical_gradient(lambda: float((x**3).sum()), x), 3 * x**2, rtol=1e-9)
    assert x.tolist() == [[1, 2], [3, -1]]
