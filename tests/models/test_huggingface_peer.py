"""The way back, held to transformers itself: pytest -m peer, where PyTorch and transformers are installed."""

from pathlib import Path

import numpy as np
import pytest

from gpulayers.data import SubwordTokenizer
from gpulayers.models.gpt import GPT, GPTConfig

pytestmark = [pytest.mark.peer, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

FOLDER = Path(__file__).parents[1] / "vectors" / "gpt2"
TINY = GPTConfig(vocab=300, context=16, layers=2, heads=2, dim=16)
IDS = np.random.default_rng(0).integers(0, 300, (2, 16))
TEXTS = ["12 green bottles", "é🙂\r\n\n x  y\t", "a<|endoftext|>b", " "]


@pytest.fixture(scope="module")
def transformers():
    return pytest.importorskip("transformers")


def logits_of(transformers, folder, dtype):
    torch = pytest.importorskip("torch")
    model = transformers.GPT2LMHeadModel.from_pretrained(folder, dtype=getattr(torch, dtype)).eval()
    with torch.no_grad():
        return model(torch.tensor(IDS)).logits.numpy()


def test_what_was_read_and_written_again_has_identical_logits(transformers, tmp_path):
    GPT.load(FOLDER).save_pretrained(tmp_path / "x", SubwordTokenizer.from_file(FOLDER))
    found, wanted = (logits_of(transformers, place, "float32") for place in (tmp_path / "x", FOLDER))
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"tied": False},
        {"hidden": 10, "activation": "relu", "norm_eps": 0.1},
        {"activation": "gelu"},
        {"activation": "silu"},
        {"scale_attention": False},
        {"scale_by_layer": True},
    ],
    ids=str,
)
def test_a_model_of_ours_computes_the_same_there(transformers, tmp_path, changes):
    model = GPT(GPTConfig(**vars(TINY) | changes), seed=1, dtype="float64")
    for parameter in model.parameters():  # larger than the initial values, so that nothing is nearly linear
        parameter.data += np.random.default_rng(2).normal(0, 0.2, parameter.shape)
    model.save_pretrained(tmp_path / "x")
    np.testing.assert_allclose(logits_of(transformers, tmp_path / "x", "float64"), model(IDS), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("given", ["read", "trained"])
def test_the_tokenizer_opens_there(transformers, tmp_path, given):
    text = "She sells sea shells by the sea shore. Peter Piper picked a peck of pickled peppers.\n" * 9
    ours = SubwordTokenizer.from_file(FOLDER) if given == "read" else SubwordTokenizer.train([text], 300)
    GPT(GPTConfig(**vars(TINY) | {"vocab": ours.vocab_size})).save_pretrained(tmp_path / "x", ours)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "x")
    for text in TEXTS:
        assert theirs.encode(text) == ours.encode(text).tolist()
        assert theirs.decode(theirs.encode(text)) == text
    assert theirs.eos_token_id == ours.end
    assert transformers.AutoConfig.from_pretrained(tmp_path / "x").eos_token_id == ours.end


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_what_it_writes_in_shards_and_other_types_is_read(transformers, tmp_path, dtype):
    torch = pytest.importorskip("torch")
    theirs = transformers.GPT2LMHeadModel.from_pretrained(FOLDER, dtype=getattr(torch, dtype))
    theirs.save_pretrained(tmp_path / "x", max_shard_size="20KB")
    assert (tmp_path / "x" / "model.safetensors.index.json").is_file()
    model, state = GPT.load(tmp_path / "x"), theirs.state_dict()
    np.testing.assert_array_equal(model.wte.weight.data, state["transformer.wte.weight"].float().numpy())
    np.testing.assert_array_equal(
        model.blocks[1].feedforward.down.weight.data, state["transformer.h.1.mlp.c_proj.weight"].float().numpy()
    )
