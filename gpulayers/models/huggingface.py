"""GPT-2 in Hugging Face's layout: a folder with config.json, model.safetensors or its shards, and a tokenizer's files.

It is what `transformers` writes by `save_pretrained`, and what the published GPT-2 comes in. Its weights are (in, out)
as ours, so that all but an untied head are copied as they lie; its names are beside ours in `gpt.py`. A name may begin
with "transformer.". The masks that old files hold (attn.bias, attn.masked_bias) are passed over.
"""

import contextlib
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from gpulayers.backend import is_floating, to_numpy
from gpulayers.data.subword import SubwordTokenizer
from gpulayers.initialize import Nothing
from gpulayers.models.gpt import GPT, GPTConfig
from gpulayers.storage import (
    FileError,
    StrPath,
    filled_folder,
    map_tensors,
    refuse_not_finite,
    save_tensors,
    write_atomically,
)

CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
ROUND = 128  # rows that a table is filled up to a multiple of, at most; more are another vocabulary

KEYS: dict[str, tuple[str, Any]] = {  # ours -> theirs, and what holds where config.json leaves it out
    "vocab": ("vocab_size", 50257),
    "context": ("n_positions", 1024),
    "layers": ("n_layer", 12),
    "heads": ("n_head", 12),
    "dim": ("n_embd", 768),
    "hidden": ("n_inner", None),
    "activation": ("activation_function", "gelu_new"),
    "norm_eps": ("layer_norm_epsilon", 1e-5),
    "dropout": ("resid_pdrop", 0.1),
    "embedding_dropout": ("embd_pdrop", 0.1),
    "attention_dropout": ("attn_pdrop", 0.1),
    "tied": ("tie_word_embeddings", True),
    "scale_attention": ("scale_attn_weights", True),
    "scale_by_layer": ("scale_attn_by_inverse_layer_idx", False),
}
KINDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}
ACTIVATIONS = {  # theirs -> ours; the first of each of ours is what is written
    **{"gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "gelu_fast": "gelu_tanh"},
    **{"gelu": "gelu", "gelu_python": "gelu", "relu": "relu", "silu": "silu", "swish": "silu"},
    **{"tanh": "tanh", "sigmoid": "sigmoid"},
}
# reorder_and_upcast_attn takes the scores in float32, as is done here always.
ONLY: dict[str, tuple[Any, ...]] = {
    "model_type": ("gpt2",),
    "add_cross_attention": (False,),
    "pruned_heads": ({}, None),
    "quantization_config": (None,),
}

BLOCK = {
    "ln_1": "ln_1",
    "attention.qkv": "attn.c_attn",
    "attention.out": "attn.c_proj",
    "ln_2": "ln_2",
    "feedforward.up": "mlp.c_fc",
    "feedforward.down": "mlp.c_proj",
}
MASKS = re.compile(r"h\.\d+\.attn\.(masked_)?bias")


def is_folder(path: StrPath) -> bool:
    """Whether `path` is a folder that is meant to have this layout: it holds one of its files at least."""
    return any((Path(path) / name).is_file() for name in (CONFIG, WEIGHTS, INDEX, "pytorch_model.bin"))


# ------------------------------------------------------------------------------------------------ config.json


def read_config(folder: StrPath) -> GPTConfig:
    """What config.json says. Raises FileError naming the key and its value where it cannot be used."""
    path = Path(folder) / CONFIG
    content = read_json(path)
    for key, allowed in ONLY.items():
        if (key == "model_type" or key in content) and content.get(key) not in allowed:
            raise FileError(f"{path} has {key} = {short(content.get(key))}, and only {short(allowed[0])} can be loaded")
    values: dict[str, Any] = {ours: checked(path, content, ours) for ours in KEYS}
    if values["activation"] not in ACTIVATIONS:
        known = ", ".join(ACTIVATIONS)
        raise FileError(f"{path} has activation_function = {short(values['activation'])}; there are {known}")
    values["activation"] = ACTIVATIONS[values["activation"]]
    for name in ("embedding_dropout", "attention_dropout"):
        if values[name] == values["dropout"]:
            values[name] = None
    try:
        return GPTConfig(**values)
    except (TypeError, ValueError) as error:
        raise FileError(f"{path} does not describe a GPT-2: {error}") from error


def checked(path: Path, content: dict[str, Any], ours: str) -> Any:
    """The value of one of `KEYS`, of its type and, if it is a dropout, in its range."""
    key, default = KEYS[ours]
    value: Any = content.get(key, default)
    if value is None and default is None:
        return None
    kind = int if default is None else type(default)
    if kind is float and type(value) is int:
        with contextlib.suppress(OverflowError):  # it stays an int, and is refused
            value = float(value)
    if type(value) is not kind:
        raise FileError(f"{path} has {key} = {short(value)}, which must be {KINDS[kind]}")
    if isinstance(value, float) and key.endswith("pdrop") and not 0 <= value < 1:
        raise FileError(f"{path} has {key} = {value}, which must be at least 0 and below 1")
    return value


def short(value: Any) -> str:
    """As JSON, for a sentence."""
    text = json.dumps(value)
    return text if len(text) <= 80 else text[:77] + "..."


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file. Raises FileError."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise FileError(f"{path.parent} has no {path.name}: it is no folder of a GPT-2 for transformers") from None
    except OSError as error:
        raise FileError(f"{path} cannot be read: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise FileError(f"{path} is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise FileError(f"{path} does not hold a JSON object, got {short(content)}")
    return content


# ------------------------------------------------------------------------------------------------ weights


def load_gpt2(folder: StrPath, dtype: str = "float32", config: GPTConfig | None = None) -> GPT:
    """The model in `folder`, its weights converted to `dtype`.

    config: the folder's, with a smaller context or other dropouts if need be; then only the first positions are taken.

    Raises FileError, one sentence: for a folder without config.json or weights, a file that is cut short, a value of
    config.json or a weight that cannot be used, and for tensors that are missing, unknown or of another shape, with
    both shapes.
    """
    own = read_config(folder)
    config = own if config is None else fitting(folder, own, config)
    tensors = read_weights(Path(folder), own)
    tensors["wpe.weight"] = tensors["wpe.weight"][: config.context]
    try:
        model = GPT(config, Nothing(), dtype)
    except (ValueError, MemoryError) as error:
        raise FileError(f"{Path(folder) / CONFIG} does not describe a GPT-2: {error}") from error
    for name, parameter in model.named_parameters():
        array = tensors.pop(theirs(name))
        try:
            with np.errstate(over="raise"):
                parameter.assign(array.T if name == "head.weight" else array)
        except FloatingPointError:
            raise FileError(f"{folder} holds a value in {theirs(name)} that is too large for {dtype}") from None
    return model


def fitting(folder: StrPath, own: GPTConfig, config: GPTConfig) -> GPTConfig:
    """`config`, if a model of it can have the weights of `own`, which is the folder's. Raises FileError."""
    free = {"context", "dropout", "embedding_dropout", "attention_dropout"}
    implied = {"kv_heads": own.heads, "hidden": 4 * own.dim}  # where None is said
    for name, value in vars(own).items():
        wanted = getattr(config, name)
        if name not in free and (value or implied.get(name)) != (wanted or implied.get(name)):
            raise FileError(f"{folder} has {name} = {value}, not {wanted}: only context and dropouts can be chosen")
    if config.context > own.context:
        raise FileError(f"{folder} has a context of {own.context}: its table of positions has no {config.context} rows")
    return config


def read_weights(folder: Path, config: GPTConfig) -> dict[str, np.ndarray]:
    """Every tensor of the model by its name without "transformer.", mapped from its file. Raises FileError."""
    found: dict[str, np.ndarray] = {}
    for path in weight_files(folder):
        tensors, _ = map_tensors(path)
        refuse_not_finite(path, tensors)
        for name, array in tensors.items():
            bare = name.removeprefix("transformer.")
            if bare in found:
                raise FileError(f"{path} holds {name}, which {folder} holds already")
            if not MASKS.fullmatch(bare):
                found[bare] = array
    check_head(folder, config, found)
    known = set()
    for name, shape in shapes(config):
        known.add(name)
        if name not in found:
            raise FileError(f"{folder} lacks the tensor {name}, which has shape {shape} by its config.json")
        if found[name].shape != shape:
            raise FileError(f"{folder}: {name} has shape {found[name].shape}, by its config.json it is {shape}")
        if not is_floating(found[name].dtype):
            raise FileError(f"{folder}: {name} has dtype {found[name].dtype}, which is not floating")
    if unknown := sorted(found.keys() - known):
        name = unknown[0]
        raise FileError(
            f"{folder} holds the tensor {name} of shape {found[name].shape}, for which a GPT-2 of its config.json "
            f"has no place ({len(unknown)} such in all)"
        )
    return found


def check_head(folder: Path, config: GPTConfig, found: dict[str, np.ndarray]) -> None:
    """A tied head may be in the file once more: it is taken out. Raises FileError if it is another."""
    head = found.pop("lm_head.weight", None) if config.tied else None
    if head is not None and not np.array_equal(head, found.get("wte.weight", head)):
        raise FileError(
            f"{folder}: config.json has tie_word_embeddings = true, but lm_head.weight is not wte.weight: set it "
            f"to false for a head of its own"
        )


def weight_files(folder: Path) -> list[Path]:
    """model.safetensors, or the shards that the index names. Raises FileError."""
    if (folder / WEIGHTS).is_file():
        return [folder / WEIGHTS]
    if (folder / INDEX).is_file():
        places = read_json(folder / INDEX).get("weight_map")
        if not isinstance(places, dict) or not places or not all(isinstance(name, str) for name in places.values()):
            raise FileError(f"{folder / INDEX} has no weight_map that names files")
        if strange := [name for name in places.values() if Path(name).name != name]:
            raise FileError(f"{folder / INDEX} names {short(strange[0])}, which is not a file beside it")
        return [folder / name for name in sorted(set(places.values()))]
    hint = ""
    if (folder / "pytorch_model.bin").is_file():
        hint = "; pytorch_model.bin may run code as it is read: save it by transformers again, which writes safetensors"
    raise FileError(f"{folder} has neither {WEIGHTS} nor {INDEX}{hint}")


def shapes(config: GPTConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    """(published name, shape) of each tensor of a model of these sizes, one by one: there may be any number."""
    dim, hidden = config.dim, config.hidden or 4 * config.dim
    widths = {"attn.c_attn": (dim, 3 * dim), "attn.c_proj": (dim, dim), "mlp.c_fc": (dim, hidden)}
    widths["mlp.c_proj"] = (hidden, dim)
    yield "wte.weight", (config.vocab, dim)
    yield "wpe.weight", (config.context, dim)
    for i in range(config.layers):
        for part in BLOCK.values():
            shape = widths.get(part, (dim,))
            yield f"h.{i}.{part}.weight", shape
            yield f"h.{i}.{part}.bias", shape[-1:]
    yield "ln_f.weight", (dim,)
    yield "ln_f.bias", (dim,)
    if not config.tied:
        yield "lm_head.weight", (config.vocab, dim)


def theirs(name: str) -> str:
    """blocks.3.attention.qkv.weight -> h.3.attn.c_attn.weight"""
    if match := re.fullmatch(r"blocks\.(\d+)\.(.+)\.(weight|bias)", name):
        return f"h.{match[1]}.{BLOCK[match[2]]}.{match[3]}"
    return "lm_head.weight" if name == "head.weight" else name


# ------------------------------------------------------------------------------------------------ saving


def save_gpt2(model: GPT, folder: StrPath, tokenizer: SubwordTokenizer | None = None) -> None:
    """Write `model`, and `tokenizer` where one is given, as a folder that transformers opens with the same logits.

    A new folder is there whole or not at all, whenever the process is killed. In one that holds a model of the same
    config.json the weights are replaced, at once too; any other that is not empty is left alone.

    Raises ValueError for a model that GPT-2 has no form for, FileError where the folder is taken or the disk fails.
    """
    check_form(model.config, tokenizer)
    folder = Path(folder)
    files = {CONFIG: json.dumps(config_json(model.config, tokenizer), indent=2).encode()}
    if tokenizer is not None:
        files |= tokenizer.files()

    def fill(place: Path) -> None:
        save_tensors(place / WEIGHTS, weights(model), {"format": "pt"})
        for name, content in files.items():
            write_atomically(place / name, content)

    with contextlib.suppress(OSError):
        folder.rmdir()  # an empty one
    if not os.path.lexists(folder):
        filled_folder([folder], fill, re.escape(folder.name))
    elif (folder / INDEX).exists() or _content(folder / CONFIG) != files[CONFIG]:
        raise FileError(f"{folder} exists already, and not with a model of these sizes: choose another folder")
    else:
        fill(folder)


def _content(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() else None


def check_form(config: GPTConfig, tokenizer: SubwordTokenizer | None) -> None:
    """Raises ValueError where GPT-2's layout has no place for what the model has."""
    for name, value, wanted in (("rotary", config.rotary, False), ("bias", config.bias, True)):
        if value != wanted:
            raise ValueError(f"save_pretrained: GPT-2 has no form for a model with {name} = {value}")
    if config.activation not in ACTIVATIONS.values():
        raise ValueError(f"save_pretrained: GPT-2 has no form for activation = {config.activation!r}")
    if config.kv_heads not in (None, config.heads):
        raise ValueError(f"save_pretrained: GPT-2 has no form for kv_heads = {config.kv_heads} of {config.heads} heads")
    if tokenizer is not None and tokenizer.vocab_size != config.vocab:
        raise ValueError(f"save_pretrained: the tokenizer has {tokenizer.vocab_size} tokens, the model {config.vocab}")


def config_json(config: GPTConfig, tokenizer: SubwordTokenizer | None) -> dict[str, Any]:
    """The content of config.json."""
    end = None if tokenizer is None else tokenizer.end
    values = {key: getattr(config, ours) for ours, (key, _) in KEYS.items()}
    for key in ("embd_pdrop", "attn_pdrop"):
        values[key] = config.dropout if values[key] is None else values[key]
    values["activation_function"] = next(key for key, ours in ACTIVATIONS.items() if ours == config.activation)
    return {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        **values,
        "bos_token_id": end,
        "eos_token_id": end,
    }


def weights(model: GPT) -> dict[str, np.ndarray]:
    """The tensors by the names that transformers gives them."""
    tensors = {}
    for name, parameter in model.named_parameters():
        array, name = to_numpy(parameter.values), theirs(name)
        if name == "lm_head.weight":
            tensors[name] = array.T
        else:
            tensors[f"transformer.{name}"] = array
    return tensors


# ------------------------------------------------------------------------------------------------ the tokenizer


def read_tokenizer(folder: StrPath, config: GPTConfig) -> SubwordTokenizer:
    """The tokenizer in `folder`, for a model of these sizes, whose table may be filled up to a round number of rows.

    Raises DataError without one, FileError for one of another vocabulary.
    """
    tokenizer = SubwordTokenizer.from_file(folder)
    if not 0 <= config.vocab - tokenizer.vocab_size < ROUND:
        raise FileError(
            f"{folder} holds a tokenizer of another vocabulary: it has {tokenizer.vocab_size} tokens, the model "
            f"{config.vocab}"
        )
    return tokenizer.filled_up(config.vocab)
