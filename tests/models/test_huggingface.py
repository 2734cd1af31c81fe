"""A GPT-2 folder as transformers writes it: what comes out of it, what goes back, and what can be wrong with one.

tests/vectors/gpt2 and gpt2.npz were made by transformers: tests/make_gpt2_folder.py.
"""

import dataclasses
import json
import shutil
import struct
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from outside import DTYPES, close, load, part

from gpulayers.data import DataError, SubwordTokenizer
from gpulayers.models.gpt import GPT, GPTConfig
from gpulayers.models.huggingface import is_folder, load_gpt2, read_config, read_tokenizer, shapes, theirs
from gpulayers.ops.cross_entropy import cross_entropy
from gpulayers.optim import AdamW
from gpulayers.storage import FileError, load_tensors, save_tensors

FOLDER = Path(__file__).parents[1] / "vectors" / "gpt2"
TINY = GPTConfig(vocab=11, context=7, layers=2, heads=2, dim=8)
VARIANTS = {
    "exact gelu": {"activation_function": "gelu"},
    "relu": {"activation_function": "relu"},
    "large epsilon": {"layer_norm_epsilon": 0.5},
    "not scaled": {"scale_attn_weights": False},
    "by layer": {"scale_attn_by_inverse_layer_idx": True},
    "upcast": {"reorder_and_upcast_attn": True},
    "untied": {"tie_word_embeddings": False},
}


@pytest.fixture
def folder(tmp_path):
    """A copy to change."""
    shutil.copytree(FOLDER, tmp_path / "gpt2")
    return tmp_path / "gpt2"


def change_config(folder, **changes):
    content = json.loads((folder / "config.json").read_text("utf-8")) | changes
    (folder / "config.json").write_text(json.dumps({k: v for k, v in content.items() if v != "gone"}), "utf-8")


def change_tensors(folder, change):
    """Write the weights again as `change` returns them."""
    tensors, metadata = load_tensors(folder / "model.safetensors")
    save_tensors(folder / "model.safetensors", change(tensors), metadata)


def ids():
    return load("gpt2")["ids"].astype(np.int64)


# ------------------------------------------------------------------------------------------------ what comes out


@pytest.mark.parametrize("dtype", DTYPES)
def test_logits_loss_and_all_gradients_are_those_of_transformers(dtype):
    model, file = GPT.load(FOLDER, dtype), load("gpt2")
    logits, saved = model.forward(ids()[:, :-1])
    loss, dlogits = cross_entropy(logits, ids()[:, 1:])
    model.backward(dlogits, saved)
    close(logits[0], file["logits"][:-1], dtype)
    close(model(ids())[0], file["logits"], dtype)
    close(loss, file["loss"], dtype)
    gradients = part(file, "gradient ")
    assert gradients.keys() == {theirs(name) for name, _ in model.named_parameters()}
    largest = max(np.abs(gradient).max() for gradient in gradients.values())
    for name, parameter in model.named_parameters():
        wanted = gradients[theirs(name)]
        if dtype == "float64":
            close(parameter.grad, wanted, dtype)
        else:  # rounding is relative to what flows through the network, not to one small gradient in it
            assert np.abs(parameter.grad - wanted).max() < 1e-5 * largest


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", VARIANTS)
def test_other_settings_compute_what_transformers_computes(name, dtype, folder):
    change_config(folder, **VARIANTS[name])
    if name == "untied":
        change_tensors(folder, lambda tensors: tensors | {"lm_head.weight": tensors["transformer.wte.weight"][::-1]})
    wanted = load("gpt2")[f"logits {name}"]
    close(GPT.load(folder, dtype)(ids()[:1])[0, -1], wanted, "float32" if name == "upcast" else dtype)


def test_every_recorded_variant_is_held():
    assert {key.removeprefix("logits ") for key in load("gpt2") if key.startswith("logits ")} == set(VARIANTS)


def test_the_table_is_one_array_with_one_gradient_after_loading():
    """H19, paiml/entrenar #314: a tied head is the table itself, after loading and after a step too."""
    model = GPT.load(FOLDER)
    assert model.head.weight is model.wte.weight
    assert sum(name in ("wte.weight", "head.weight") for name, _ in model.named_parameters()) == 1
    optimizer = AdamW(model, lr=1e-2)
    logits, saved = model.forward(ids())
    model.backward(cross_entropy(logits, ids())[1], saved)
    optimizer.step()
    assert model.to(dtype="float64").head.weight.data is model.wte.weight.data


@pytest.mark.parametrize("kind", ["float16", "bfloat16", "float64"])
def test_files_of_other_types(kind, folder):
    dtype = np.dtype(ml_dtypes.bfloat16 if kind == "bfloat16" else kind)
    change_tensors(folder, lambda tensors: {name: array.astype(dtype) for name, array in tensors.items()})
    model, wanted = GPT.load(folder), load_tensors(FOLDER / "model.safetensors")[0]
    for name, parameter in model.named_parameters():
        array = wanted[f"transformer.{theirs(name)}"].astype(dtype).astype(np.float32)
        assert parameter.dtype == np.float32
        np.testing.assert_array_equal(parameter.data, array)


def test_without_the_prefix_and_with_the_masks_of_old_files(folder):
    def old(tensors):
        bare = {name.removeprefix("transformer."): array for name, array in tensors.items()}
        mask = {f"h.{i}.attn.bias": np.ones((1, 1, 16, 16), np.uint8) for i in range(2)}
        return bare | mask | {"h.0.attn.masked_bias": np.array(-1e4, np.float32)}

    wanted = GPT.load(folder)(ids())
    change_tensors(folder, old)
    np.testing.assert_array_equal(GPT.load(folder)(ids()), wanted)


def test_a_tied_head_that_is_in_the_file_too(folder):
    change_tensors(folder, lambda tensors: tensors | {"lm_head.weight": tensors["transformer.wte.weight"]})
    assert GPT.load(folder).config.tied
    change_tensors(folder, lambda tensors: tensors | {"lm_head.weight": tensors["transformer.wte.weight"] + 1})
    with pytest.raises(FileError, match=r"tie_word_embeddings = true, but lm_head.weight is not wte.weight: set it to"):
        GPT.load(folder)


def split(folder, files=3):
    """The weights in shards with an index, as transformers writes large ones."""
    tensors, _ = load_tensors(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    places = {name: f"model-{i % files + 1:05}-of-{files:05}.safetensors" for i, name in enumerate(tensors)}
    for place in set(places.values()):
        save_tensors(folder / place, {name: tensors[name] for name in tensors if places[name] == place}, {})
    index = {"metadata": {"total_size": sum(a.nbytes for a in tensors.values())}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), "utf-8")


def test_shards(folder):
    split(folder)
    np.testing.assert_array_equal(GPT.load(folder)(ids()), GPT.load(FOLDER)(ids()))


def test_a_config_that_leaves_everything_out_is_gpt2(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "gpt2", "n_ctx": 1024, "anything": []}', "utf-8")
    assert read_config(tmp_path) == GPTConfig(50257, 1024, 12, 12, 768, dropout=0.1)


def test_a_smaller_context_takes_the_first_positions(folder):
    model = load_gpt2(folder, config=dataclasses.replace(read_config(folder), context=8, dropout=0.0))
    assert model.wpe is not None
    np.testing.assert_array_equal(model.wpe.weight.data, GPT.load(folder).wpe.weight.data[:8])
    np.testing.assert_array_equal(model(ids()[:, :8]), GPT.load(folder)(ids()[:, :8]))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"context": 17}, r"gpt2 has a context of 16: its table of positions has no 17 rows"),
        ({"dim": 32}, r"gpt2 has dim = 16, not 32: only context and dropouts can be chosen"),
        ({"vocab": 256}, r"gpt2 has vocab = 300, not 256"),
        ({"tied": False}, r"gpt2 has tied = True, not False"),
        ({"hidden": 65}, r"gpt2 has hidden = None, not 65"),
        ({"kv_heads": 1}, r"gpt2 has kv_heads = None, not 1"),
    ],
)
def test_a_model_that_the_weights_do_not_fit(changes, sentence, folder):
    own = read_config(folder)
    load_gpt2(folder, config=dataclasses.replace(own, hidden=64, kv_heads=2))  # the same, said outright
    with pytest.raises(FileError, match=sentence):
        load_gpt2(folder, config=dataclasses.replace(own, **changes))


def test_the_three_dropouts(folder):
    change_config(folder, attn_pdrop=0.0, embd_pdrop=0.2)
    model = GPT.load(folder)
    assert (model.dropout.p, model.blocks[0].attention.dropout, model.blocks[0].dropout.p) == (0.2, 0.0, 0.1)


# ------------------------------------------------------------------------------------------------ the way back


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"tied": False},
        {"hidden": 5, "activation": "relu", "norm_eps": 0.1, "dropout": 0.25},
        {"dropout": 0.25, "embedding_dropout": 0.5, "attention_dropout": 0.0},
        {"scale_by_layer": True, "scale_attention": False},
    ],
)
def test_there_and_back(changes, tmp_path):
    model = GPT(GPTConfig(**vars(TINY) | changes), seed=3)
    model.save_pretrained(tmp_path / "x")
    again = GPT.load(tmp_path / "x")
    wanted = {"hidden": 4 * TINY.dim} | changes
    assert again.config == GPTConfig(**vars(TINY) | changes)
    np.testing.assert_array_equal(again(ids()[:, :7] % 11), model(ids()[:, :7] % 11))
    tensors, metadata = load_tensors(tmp_path / "x" / "model.safetensors")
    assert metadata == {"format": "pt"}
    assert tensors["transformer.h.1.mlp.c_fc.weight"].shape == (8, wanted["hidden"])
    assert ("lm_head.weight" in tensors) == (not model.config.tied)


def test_the_same_layout_as_the_one_that_was_read(tmp_path):
    GPT.load(FOLDER).save_pretrained(tmp_path / "x", SubwordTokenizer.from_file(FOLDER))
    ours, theirs = (load_tensors(place / "model.safetensors")[0] for place in (tmp_path / "x", FOLDER))
    assert ours.keys() == theirs.keys()
    for name, array in ours.items():
        np.testing.assert_array_equal(array, theirs[name])
    mine, given = (json.loads((place / "config.json").read_text("utf-8")) for place in (tmp_path / "x", FOLDER))
    assert mine.items() <= (given | {"n_inner": None}).items()
    text = "12 green bottles<|endoftext|>"
    again, first = SubwordTokenizer.from_file(tmp_path / "x"), SubwordTokenizer.from_file(FOLDER)
    assert again.encode(text).tolist() == first.encode(text).tolist()


def test_a_model_of_16_bits_and_one_that_was_trained(tmp_path):
    model = GPT(TINY, dtype="float16")
    AdamW(model)  # makes float32 masters
    model.save_pretrained(tmp_path / "x")
    assert GPT.load(tmp_path / "x", "float16")(ids()[:, :7] % 11).dtype == np.float16


def test_saving_again_replaces_the_weights_of_the_same_model_only(tmp_path):
    model, other = GPT(TINY, seed=1), GPT(TINY, seed=2)
    model.save_pretrained(tmp_path / "x")
    other.save_pretrained(tmp_path / "x")
    np.testing.assert_array_equal(GPT.load(tmp_path / "x").wte.weight.data, other.wte.weight.data)
    larger = GPT(GPTConfig(**vars(TINY) | {"layers": 3}))
    with pytest.raises(FileError, match="exists already, and not with a model of these sizes: choose another folder"):
        larger.save_pretrained(tmp_path / "x")
    (tmp_path / "empty").mkdir()
    larger.save_pretrained(tmp_path / "empty")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("mine", "utf-8")
    with pytest.raises(FileError, match="exists already"):
        larger.save_pretrained(tmp_path / "full")
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["thesis.txt"]
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    with pytest.raises(FileError, match="link exists already, and not with a model of these sizes"):
        larger.save_pretrained(tmp_path / "link")


def test_a_save_that_fails_half_way_leaves_no_folder_or_the_old_weights(tmp_path, monkeypatch):
    """H24, Lightning-AI/pytorch-lightning #19970."""
    model = GPT(TINY, seed=1)
    model.save_pretrained(tmp_path / "old")

    def fail(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", fail)
    for name in ("new", "old"):
        with pytest.raises(FileError, match="No space left on device"):
            GPT(TINY, seed=2).save_pretrained(tmp_path / name)
    monkeypatch.undo()
    assert [path.name for path in tmp_path.iterdir()] == ["old"]
    np.testing.assert_array_equal(GPT.load(tmp_path / "old").wte.weight.data, model.wte.weight.data)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"rotary": True}, "GPT-2 has no form for a model with rotary = True"),
        ({"bias": False}, "GPT-2 has no form for a model with bias = False"),
        ({"kv_heads": 1}, "GPT-2 has no form for kv_heads = 1 of 2 heads"),
    ],
)
def test_models_that_are_no_gpt2(changes, sentence, tmp_path):
    with pytest.raises(ValueError, match=sentence):
        GPT(GPTConfig(**vars(TINY) | changes)).save_pretrained(tmp_path / "x")
    assert not list(tmp_path.iterdir())


def test_a_tokenizer_of_another_vocabulary_is_not_saved(tmp_path):
    with pytest.raises(ValueError, match="the tokenizer has 300 tokens, the model 11"):
        GPT(TINY).save_pretrained(tmp_path / "x", SubwordTokenizer.from_file(FOLDER))


# ------------------------------------------------------------------------------------------------ what is wrong


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"model_type": "llama"}, r'config.json has model_type = "llama", and only "gpt2" can be loaded'),
        ({"model_type": "gone"}, r'has model_type = null, and only "gpt2" can be loaded'),
        ({"add_cross_attention": True}, "has add_cross_attention = true, and only false can be loaded"),
        ({"pruned_heads": {"0": [1]}}, r'has pruned_heads = {"0": \[1\]}, and only {} can be loaded'),
        ({"quantization_config": {"bits": 4}}, r'has quantization_config = {"bits": 4}, and only null can be loaded'),
        ({"activation_function": "mish"}, r'has activation_function = "mish"; there are gelu_new, .*relu'),
        ({"n_embd": "16"}, r'has n_embd = "16", which must be a whole number'),
        ({"n_embd": 16.0}, r"has n_embd = 16.0, which must be a whole number"),
        ({"n_embd": None}, r"has n_embd = null, which must be a whole number"),
        ({"tie_word_embeddings": 1}, r"has tie_word_embeddings = 1, which must be true or false"),
        ({"attn_pdrop": 1.5}, r"has attn_pdrop = 1.5, which must be at least 0 and below 1"),
        ({"layer_norm_epsilon": "x"}, r'has layer_norm_epsilon = "x", which must be a number'),
        ({"layer_norm_epsilon": 10**400}, r"has layer_norm_epsilon = 10{60,}\.\.\., which must be a number"),
        (
            {"layer_norm_epsilon": -1},
            r"config.json does not describe a GPT-2: .*eps must be in 0|eps must be 0 or more",
        ),
        ({"n_head": 3}, r"config.json does not describe a GPT-2: GPTConfig: heads must divide dim"),
        ({"n_layer": 0}, r"config.json does not describe a GPT-2: GPTConfig: layers must be at least 1"),
        ({"n_inner": -1}, r"config.json does not describe a GPT-2: GPTConfig: hidden must be at least 1"),
        ({"n_layer": 2**62}, r"gpt2 lacks the tensor h.2.ln_1.weight"),
        ({"n_layer": 3}, r"gpt2 lacks the tensor h.2.ln_1.weight, which has shape \(16,\) by its config.json"),
        (
            {"n_layer": 1},
            r"gpt2 holds the tensor h.1.attn.c_attn.bias of shape \(48,\), for which .* no place \(12 such",
        ),
        ({"vocab_size": 301}, r"wte.weight has shape \(300, 16\), by its config.json it is \(301, 16\)"),
        (
            {"vocab_size": 10**15},
            r"wte.weight has shape \(300, 16\), by its config.json it is \(1000000000000000, 16\)",
        ),
        ({"n_positions": 8}, r"wpe.weight has shape \(16, 16\), by its config.json it is \(8, 16\)"),
        ({"n_inner": 65}, r"h.0.mlp.c_fc.weight has shape \(16, 64\), by its config.json it is \(16, 65\)"),
        ({"tie_word_embeddings": False}, r"lacks the tensor lm_head.weight, which has shape \(300, 16\)"),
    ],
)
def test_a_config_that_cannot_be_used_names_the_key_and_the_value(changes, sentence, folder):
    change_config(folder, **changes)
    with pytest.raises(FileError, match=sentence) as caught:
        GPT.load(folder)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (None, "gpt2 has no config.json: it is no folder of a GPT-2 for transformers"),
        (b"{", "config.json is not JSON: "),
        (b"\xff", "config.json is not JSON: "),
        (b"[1]", r"config.json does not hold a JSON object, got \[1\]"),
        (b"[" * 100_000, "config.json is not JSON: "),
    ],
)
def test_a_folder_without_a_config_or_with_no_json(content, sentence, folder):
    (folder / "config.json").unlink()
    if content is not None:
        (folder / "config.json").write_bytes(content)
    with pytest.raises(FileError, match=sentence):
        GPT.load(folder)
    assert is_folder(folder)
    assert not is_folder(folder.parent)


def transposed(tensors):
    name = "transformer.h.0.mlp.c_fc.weight"
    return tensors | {name: tensors[name].T}


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (transposed, r"h.0.mlp.c_fc.weight has shape \(64, 16\), by its config.json it is \(16, 64\)"),
        (
            lambda t: t | {"transformer.ln_f.bias": np.zeros(16, int)},
            "ln_f.bias has dtype int64, which is not floating",
        ),
        (lambda t: t | {"score.weight": np.ones((2, 16))}, r"holds the tensor score.weight of shape \(2, 16\)"),
        (lambda t: t | {"wte.weight": t["transformer.wte.weight"]}, r"holds .*wte.weight, which .*gpt2 holds already"),
        (
            lambda t: t | {"transformer.ln_f.bias": np.full(16, np.nan)},
            "holds NaN or infinity in transformer.ln_f.bias",
        ),
        (
            lambda t: t | {"transformer.ln_f.bias": np.full(16, 1e300)},
            "gpt2 holds a value in ln_f.bias that is too large for float32",
        ),
        (
            lambda t: {k: v for k, v in t.items() if "ln_f" not in k},
            r"lacks the tensor ln_f.weight, which has shape \(16",
        ),
    ],
)
def test_tensors_that_do_not_fit_are_named_with_both_shapes(change, sentence, folder):
    change_tensors(folder, change)
    with pytest.raises(FileError, match=sentence):
        GPT.load(folder)


def test_truncated_and_missing_weights(folder):
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    with pytest.raises(FileError, match=r"model.safetensors is not a whole safetensors file"):
        GPT.load(folder)
    weights.unlink()
    with pytest.raises(FileError, match=r"gpt2 has neither model.safetensors nor model.safetensors.index.json$"):
        GPT.load(folder)
    (folder / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(FileError, match=r"index.json; pytorch_model.bin may run code as it is read"):
        GPT.load(folder)


def test_shards_that_are_cut_short_missing_or_strange(folder):
    split(folder)
    shard, index = folder / "model-00002-of-00003.safetensors", folder / "model.safetensors.index.json"
    content = shard.read_bytes()
    for cut in (content[:-1], content[:100], content[:8], b""):
        shard.write_bytes(cut)
        with pytest.raises(FileError, match=r"model-00002-of-00003.safetensors is not a whole safetensors file"):
            GPT.load(folder)
    shard.unlink()
    with pytest.raises(FileError, match=r"model-00002-of-00003.safetensors does not exist"):
        GPT.load(folder)
    for places in ({}, {"wte.weight": 1}, None):
        index.write_text(json.dumps({"weight_map": places}), "utf-8")
        with pytest.raises(FileError, match="has no weight_map that names files"):
            GPT.load(folder)
    index.write_text(json.dumps({"weight_map": {"wte.weight": "../x.safetensors"}}), "utf-8")
    with pytest.raises(FileError, match="which is not a file beside it"):
        GPT.load(folder)


def test_a_type_that_numpy_does_not_have(folder):
    header = json.dumps({"wte.weight": {"dtype": "F8_E4M3", "shape": [4], "data_offsets": [0, 4]}}).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + b"1234")
    with pytest.raises(FileError, match=r"model.safetensors cannot be read: wte.weight has dtype F8_E4M3"):
        GPT.load(folder)


def test_nothing_is_half_loaded(folder):
    """`GPT.load` makes a new model; reading into one that is there is for our own files."""
    model = GPT(read_config(folder))
    before = model.state_dict()
    with pytest.raises(FileError, match="is not a file"):
        model.load(folder)
    with pytest.raises(FileError, match="does not fit this model"):
        model.load(folder / "model.safetensors")
    assert all(np.array_equal(array, before[name]) for name, array in model.state_dict().items())


def test_our_own_file_by_the_class_and_by_the_model(tmp_path):
    model = GPT(TINY, seed=4)
    model.save(tmp_path / "x")
    other = GPT(TINY, seed=5)
    assert other.load(tmp_path / "x") is other
    for again in (GPT.load(tmp_path / "x"), other):
        np.testing.assert_array_equal(again.wte.weight.data, model.wte.weight.data)
    assert GPT.load(tmp_path / "x", dtype="float64").wte.weight.dtype == np.float64
    with pytest.raises(FileError, match="nowhere does not exist"):
        GPT.load(tmp_path / "nowhere")


def test_a_tokenizer_of_another_vocabulary(folder):
    config = read_config(folder)
    assert read_tokenizer(folder, config).vocab_size == 300
    for vocab, size in ((384, 384), (400, 400)):  # tables are filled up to round numbers of rows
        assert read_tokenizer(folder, GPTConfig(vocab)).vocab_size == size
    for vocab in (299, 428):
        with pytest.raises(FileError, match=f"another vocabulary: it has 300 tokens, the model {vocab}"):
            read_tokenizer(folder, GPTConfig(vocab))
    for name in ("tokenizer.json", "merges.txt"):
        (folder / name).unlink()
    with pytest.raises(DataError, match="has no tokenizer: neither"):
        read_tokenizer(folder, config)


def test_a_token_id_outside_the_table():
    with pytest.raises(ValueError, match=r"the id at position \(0, 1\) is 300, outside 0..299"):
        GPT.load(FOLDER)(np.array([[1, 300]]))


def test_shapes_are_those_of_the_model():
    for tied in (True, False):
        config = GPTConfig(**vars(TINY) | {"tied": tied})
        found = {theirs(name): parameter.shape for name, parameter in GPT(config).named_parameters()}
        if not tied:
            found["lm_head.weight"] = found["lm_head.weight"][::-1]
        assert found == dict(shapes(config))
