"""How the names and layouts of PyTorch's `state_dict` map onto ours, both ways. PyTorch is not imported.

>>> from_torch(layer, module.state_dict())       # tensors on the CPU, or NumPy arrays
>>> module.load_state_dict({name: torch.from_numpy(array) for name, array in to_torch(layer).items()})

`ROWS` has one row for each class whose names or layouts differ, or that has a class of its own there; `table()` prints
them, docs/torch-map.md shows it, and tests/test_torch_map.py holds each row to outputs that PyTorch computed. A layer
without a row is a module with the same attributes: its own Parameters have the same names and layouts, the layers in it
follow under their attributes' names (`blocks.0.up`, as ModuleList and ModuleDict name them), each by its own row.
A new row is one line where nothing differs: `Row("GroupNorm", same("weight", "bias"), lambda: GroupNorm(2, 4))`.
"""

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from gpulayers import layers, models, storage
from gpulayers.backend import is_floating, to_numpy
from gpulayers.layers.layer import Layer, Unmatched
from gpulayers.layers.recurrent import Recurrent
from gpulayers.layers.recurrent_cell import Cell
from gpulayers.parameter import Buffer, Parameter


class Entry(NamedTuple):
    """What belongs together. ours: dotted names below the layer, of Parameters or Buffers, or of one Layer.

    Several of ours lie side by side (last axis), several of theirs above each other (first axis, of equal size).
    turned: theirs is the transpose, (out, in) where ours is (in, out).
    """

    ours: tuple[str, ...]
    theirs: tuple[str, ...]
    turned: bool = False


class Row(NamedTuple):
    """torch: the class there. entries: of a layer; what the layer goes without (a bias) is left out by itself.

    example, more: for the table; more are other forms. prefix: may be missing in front of all names. ignored: ends of
    names that hold no values.
    Raises TypeError from entries for a form that PyTorch does not have.
    """

    torch: str
    entries: Callable[[Any], Iterable[Entry]]
    example: Callable[[], Layer]
    prefix: str = ""
    ignored: tuple[str, ...] = ()
    more: tuple[Callable[[], Layer], ...] = ()


def entry(ours: str, theirs: str, turned: bool = False) -> Entry:
    return Entry(tuple(ours.split()), tuple(theirs.split()), turned)


def same(*names: str) -> Callable[[Layer], list[Entry]]:
    """The same names, the same layouts."""
    return lambda layer: [entry(name, name) for name in names]


def _linear(layer: Layer) -> list[Entry]:
    return [entry("weight", "weight", turned=True), entry("bias", "bias")]


def _cell(layer: Layer) -> list[Entry]:
    return _gates("", "")


def _gates(ours: str, end: str) -> list[Entry]:
    weights = [entry(f"{ours}weight_{of}", f"weight_{of}{end}", turned=True) for of in ("ih", "hh")]
    return weights + [entry(f"{ours}bias_{of}", f"bias_{of}{end}") for of in ("ih", "hh")]


def _recurrent(layer: Recurrent) -> Iterator[Entry]:
    for k in range(len(layer.cells)):
        number, direction = divmod(k, layer.directions)
        yield from _gates(f"cells.{k}.", f"_l{number}{'_reverse' if direction else ''}")


def _attention(layer: layers.MultiHeadAttention) -> Iterator[Entry]:
    """PyTorch keeps the three projections in one array where their inputs are of one size, else apart."""
    if layer.heads != layer.kv_heads or layer.heads * layer.head_dim != layer.dim or layer.rotary_base is not None:
        raise TypeError(
            "torch.nn.MultiheadAttention has as many heads of keys as of queries, dim // heads wide, and no rotary "
            f"positions; this layer has heads={layer.heads}, kv_heads={layer.kv_heads}, head_dim={layer.head_dim}"
        )
    if layer.value_head_dim != layer.head_dim:
        raise TypeError(f"torch.nn.MultiheadAttention has no value_head_dim={layer.value_head_dim}")
    if layer.softcap:
        raise TypeError(f"torch.nn.MultiheadAttention has no softcap={layer.softcap}")
    together = {layer.dim} >= {size for size in (layer.kdim, layer.vdim) if size is not None}
    groups = [(layer.inputs, "in_proj_weight")] if together else [
        ((name,), " ".join(f"{letter}_proj_weight" for letter in name)) for name in layer.inputs
    ]  # fmt: skip
    for names, theirs in groups:
        yield entry(" ".join(f"{name}.weight" for name in names), theirs, turned=True)
    yield entry(" ".join(f"{name}.bias" for name in layer.inputs), "in_proj_bias")
    yield entry("out", "out_proj")


def _refuse_gated(feedforward: layers.FeedForward) -> None:
    if isinstance(feedforward.activation, layers.GLU):
        raise TypeError(f"PyTorch's blocks have no gated feed-forward, as {type(feedforward.activation).__name__} is")


def _encoder(layer: Any) -> list[Entry]:
    _refuse_gated(layer.feedforward)
    inner = [entry("attention", "self_attn"), entry("feedforward.up", "linear1"), entry("feedforward.down", "linear2")]
    return [*inner, entry("norm_1", "norm1"), entry("norm_2", "norm2")]


def _decoder(layer: Any) -> list[Entry]:
    return [*_encoder(layer), entry("norm_3", "norm3"), entry("cross", "multihead_attn")]


def _sequential(layer: layers.Sequential) -> list[Entry]:
    return [entry(f"layers.{i}", str(i)) for i in range(len(layer))]


GPT2_NAMES = {
    "ln_1": "ln_1",
    "attention.qkv": "attn.c_attn",
    "attention.out": "attn.c_proj",
    "ln_2": "ln_2",
    "feedforward.up": "mlp.c_fc",
    "feedforward.down": "mlp.c_proj",
}


def _gpt2(layer: models.GPT) -> Iterator[Entry]:
    """The published names; its matrices are (in, out), as ours are."""
    config = layer.config
    if config.rotary or config.kv_heads not in (None, config.heads) or not config.bias:
        raise TypeError("GPT-2 has learned positions, biases, and as many heads of keys as of queries")
    _refuse_gated(layer.blocks[0].feedforward)
    yield from (entry(f"{name}.weight", f"transformer.{name}.weight") for name in ("wte", "wpe"))
    for i in range(config.layers):
        for ours, theirs in GPT2_NAMES.items():
            for kind in ("weight", "bias"):
                yield entry(f"blocks.{i}.{ours}.{kind}", f"transformer.h.{i}.{theirs}.{kind}")
    yield from (entry(f"ln_f.{kind}", f"transformer.ln_f.{kind}") for kind in ("weight", "bias"))
    yield entry("head", "lm_head")


def _table() -> Parameter:
    return Parameter(np.zeros((5, 3), np.float32))


def _small_gpt() -> Layer:
    return models.GPT(models.GPTConfig(vocab=5, context=4, layers=1, heads=2, dim=4))


# By class; a subclass has the row of its base.
ROWS: dict[type[Layer], Row] = {
    layers.Linear: Row("Linear", _linear, lambda: layers.Linear(3, 4)),
    layers.TiedLinear: Row("Linear", same("weight"), lambda: layers.TiedLinear(_table())),
    layers.Embedding: Row("Embedding", same("weight"), lambda: layers.Embedding(5, 3)),
    layers.LearnedPositions: Row("Embedding", same("weight"), lambda: layers.LearnedPositions(4, 3)),
    layers.LayerNorm: Row("LayerNorm", same("weight", "bias"), lambda: layers.LayerNorm(3)),
    layers.RMSNorm: Row("RMSNorm", same("weight"), lambda: layers.RMSNorm(3)),
    layers.BatchNorm: Row(
        "BatchNorm1d, 2d, 3d; InstanceNorm",
        same("weight", "bias", "running_mean", "running_var", "num_batches_tracked"),
        lambda: layers.BatchNorm(3),
    ),
    layers.GroupNorm: Row("GroupNorm", same("weight", "bias"), lambda: layers.GroupNorm(1, 3)),
    layers.PReLU: Row("PReLU", same("weight"), lambda: layers.PReLU(3)),
    Cell: Row("RNNCell, GRUCell, LSTMCell", _cell, lambda: layers.GRUCell(3, 2)),
    Recurrent: Row("RNN, GRU, LSTM", _recurrent, lambda: layers.LSTM(3, 2, bidirectional=True)),
    layers.MultiHeadAttention: Row(
        "MultiheadAttention",
        _attention,
        lambda: layers.MultiHeadAttention(4, 2),
        more=(
            lambda: layers.MultiHeadAttention(4, 2, kdim=4),
            lambda: layers.MultiHeadAttention(4, 2, kdim=5),
            lambda: layers.MultiHeadAttention(4, 2, kdim=5, vdim=6),
        ),
    ),
    layers.EncoderBlock: Row("TransformerEncoderLayer", _encoder, lambda: layers.EncoderBlock(4, 2, hidden=5)),
    layers.DecoderBlock: Row("TransformerDecoderLayer", _decoder, lambda: layers.DecoderBlock(4, 2, hidden=5)),
    layers.Sequential: Row("Sequential", _sequential, lambda: layers.Sequential(layers.Linear(3, 4), layers.ReLU())),
    models.GPT: Row(
        "GPT-2 (transformers' GPT2LMHeadModel)", _gpt2, _small_gpt, "transformer.", (".attn.bias", ".attn.masked_bias")
    ),
}


def row_of(layer: Layer) -> Row | None:
    return next((ROWS[kind] for kind in type(layer).__mro__ if kind in ROWS), None)


# ------------------------------------------------------------------------------------------------- both ways


class Leaf(NamedTuple):
    """An entry with its arrays: `theirs` are full names."""

    ours: list[tuple[str, Parameter | Buffer]]
    theirs: list[str]
    turned: bool

    def shape(self) -> tuple[int, ...]:
        """Of each of theirs."""
        shape = self.ours[0][1].data.shape
        if len(self.ours) > 1:
            shape = (*shape[:-1], sum(member.data.shape[-1] for _, member in self.ours))
        shape = shape[::-1] if self.turned else shape
        return shape if len(self.theirs) == 1 else (shape[0] // len(self.theirs), *shape[1:])

    def to_theirs(self) -> dict[str, np.ndarray]:
        values = [np.array(to_numpy(member.values)) for _, member in self.ours]
        joined = values[0] if len(values) == 1 else np.concatenate(values, axis=-1)
        joined = np.ascontiguousarray(joined.T) if self.turned else joined
        parts = [joined] if len(self.theirs) == 1 else np.split(joined, len(self.theirs))
        return dict(zip(self.theirs, parts, strict=True))

    def to_ours(self, arrays: Mapping[str, np.ndarray]) -> list[tuple[Parameter | Buffer, np.ndarray]]:
        parts = [arrays[name] for name in self.theirs]
        joined = parts[0] if len(parts) == 1 else np.concatenate(parts)
        joined = joined.T if self.turned else joined
        if len(self.ours) == 1:
            return [(self.ours[0][1], joined)]
        ends = np.cumsum([member.data.shape[-1] for _, member in self.ours])[:-1]
        members = [member for _, member in self.ours]
        return list(zip(members, np.split(joined, ends, axis=-1), strict=True))


def from_torch(layer: Layer, state: Mapping[str, Any], prefix: str = "", strict: bool = True) -> Unmatched:
    """Copy PyTorch's values into a layer. state: NumPy arrays, or what NumPy makes arrays of, by PyTorch's names.

    prefix: the part of the state to read, "encoder.layers.0." say. strict: all names must be there on both sides;
    otherwise what fits is copied. Returns (missing_keys, unexpected_keys), PyTorch's names. dtypes are converted.

    Raises ValueError for names or shapes that do not fit and for tied parameters that differ, TypeError for a form that
    PyTorch does not have; nothing is changed then.
    """
    who, row = type(layer).__name__, row_of(layer)
    given = {name.removeprefix(prefix): array for name, array in state.items() if name.startswith(prefix)}
    if row is not None:
        given = {name: array for name, array in given.items() if not name.endswith(row.ignored)}
        if row.prefix and not any(name.startswith(row.prefix) for name in given):
            given = {name if name == "lm_head.weight" else row.prefix + name: a for name, a in given.items()}
    arrays = {name: np.asarray(array) for name, array in given.items()}
    leaves = list(_leaves(layer, "", ""))
    missing = [n for leaf, again in _with_ties(leaves) for n in leaf.theirs if n not in arrays and not again]
    known = {name for leaf in leaves for name in leaf.theirs}
    unmatched = Unmatched(missing, [name for name in arrays if name not in known])
    if strict and any(unmatched):
        missing_names, unexpected = (names or "none" for names in unmatched)
        raise ValueError(f"from_torch: this {who} misses {missing_names}, and has no place for {unexpected}")
    found = [leaf for leaf in leaves if all(name in arrays for name in leaf.theirs)]
    for leaf in found:
        _check(who, leaf, arrays)
    _check_ties(who, found, arrays)
    for leaf in found:
        for member, value in leaf.to_ours(arrays):
            member.assign(storage.beside(np.ascontiguousarray(value).reshape(member.data.shape), member.data))
    return unmatched


def to_torch(layer: Layer) -> dict[str, np.ndarray]:
    """Copies of all parameters and persistent buffers under PyTorch's names, in its layouts; tied ones each time."""
    return {name: array for leaf in _leaves(layer, "", "") for name, array in leaf.to_theirs().items()}


def _leaves(layer: Layer, ours: str, theirs: str) -> Iterator[Leaf]:
    """All entries below a layer, those of a row in its order. ours, theirs: what stands in front of the names."""
    row = row_of(layer)
    if row is None:
        for name, member in _members(layer):
            if isinstance(member, Layer):
                yield from _leaves(member, f"{ours}{name}.", f"{theirs}{name}.")
            else:
                _refuse_unknown(layer)
                yield Leaf([(ours + name, member)], [theirs + name], False)
        return
    for names, others, turned in row.entries(layer):
        members = [(name, _at(layer, name)) for name in names]
        if isinstance(members[0][1], Layer):
            yield from _leaves(members[0][1], f"{ours}{names[0]}.", f"{theirs}{others[0]}.")
        elif members[0][1] is not None:
            yield Leaf([(ours + name, member) for name, member in members], [theirs + n for n in others], turned)


def _members(layer: Layer) -> Iterator[tuple[str, Any]]:
    """(name, member) of what lies directly in a layer: attributes, or elements of its lists, tuples and dicts."""
    inner: set[str] = set()
    for name, member in layer._named_members():
        if not any(name.startswith(f"{other}.") for other in inner):
            if isinstance(member, Layer):
                inner.add(name)
            if not isinstance(member, Buffer) or member.persistent:
                yield name, member


def _at(layer: Any, name: str) -> Any:
    for part in name.split("."):
        layer = layer[int(part)] if part.isdigit() else getattr(layer, part)
        if layer is None:
            return None
    return layer


def _refuse_unknown(layer: Layer) -> None:
    if type(layer).__module__.partition(".")[0] == "gpulayers":
        raise TypeError(f"{type(layer).__name__} has no counterpart in PyTorch: `gpulayers.torch_map.ROWS` has no row")


def _with_ties(leaves: list[Leaf]) -> Iterator[tuple[Leaf, bool]]:
    """Each leaf, and whether all its parameters have come before under other names."""
    seen: set[int] = set()
    for leaf in leaves:
        members = {id(member) for _, member in leaf.ours}
        yield leaf, members <= seen
        seen |= members


def _check(who: str, leaf: Leaf, arrays: Mapping[str, np.ndarray]) -> None:
    wanted, floating = leaf.shape(), is_floating(leaf.ours[0][1].data.dtype)
    for name in leaf.theirs:
        if arrays[name].shape != wanted:
            raise ValueError(f"from_torch: {name} has shape {arrays[name].shape}, this {who} takes {wanted}")
        if is_floating(arrays[name].dtype) != floating:
            raise ValueError(f"from_torch: {name} is {arrays[name].dtype}, this {who} has {leaf.ours[0][1].data.dtype}")


def _check_ties(who: str, leaves: list[Leaf], arrays: Mapping[str, np.ndarray]) -> None:
    first: dict[int, tuple[str, np.ndarray]] = {}
    for leaf in leaves:
        for member, value in leaf.to_ours(arrays):
            name, before = first.setdefault(id(member), (leaf.theirs[0], value))
            if not np.array_equal(before, value):
                raise ValueError(f"from_torch: {leaf.theirs[0]} differs from {name}, and this {who} has them tied")


def table() -> str:
    """The rows as Markdown, each with an example of its class: our names and shapes beside PyTorch's."""
    lines = ["| layer | PyTorch's class | ours | PyTorch's | layout |", "|---|---|---|---|---|"]
    for kind, row in ROWS.items():
        names = [row.torch if inspect.isabstract(kind) else kind.__name__, row.torch]
        for example in (row.example, *row.more):
            for line in _lines(example(), row):
                lines.append("| " + " | ".join([*names, *line]) + " |")
                names = ["", ""]
    return "\n".join(lines)


def _lines(example: Layer, row: Row) -> Iterator[tuple[str, str, str]]:
    for ours, theirs, turned in row.entries(example):
        inner = _at(example, ours[0])
        if isinstance(inner, Layer):
            yield f"`{ours[0]}.*`", f"`{theirs[0]}.*`", f"see {type(inner).__name__}"
        else:
            leaf = Leaf([(name, _at(example, name)) for name in ours], list(theirs), turned)
            names = ", ".join(f"`{name}` {member.data.shape}" for name, member in leaf.ours)
            others = ", ".join(f"`{name}` {leaf.shape()}" for name in theirs)
            yield names, others, "transposed" if turned else "the same"
