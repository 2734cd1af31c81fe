"""A model as text: the tree that `print(model)` shows, and a table of what it holds."""

from collections.abc import Iterator
from typing import Any

from gpulayers.backend import Array
from gpulayers.layers.layer import Layer
from gpulayers.parameter import Buffer, Parameter


def tree(layer: Layer) -> str:
    """The layer with what is in it, a line for each layer that holds others: `Linear(weight (3, 4), bias (4,))`."""
    own, inner = [], []
    for name, value in vars(layer).items():
        for key, member in _members(name, value):
            if isinstance(member, Layer):
                inner.append(f"{key}: {tree(member)}")
            else:
                frozen = ", frozen" if isinstance(member, Parameter) and not member.trainable else ""
                own.append(f"{key} {tuple(member.data.shape)}{frozen}")
    if not inner:
        return f"{type(layer).__name__}({', '.join(own)})"
    lines = [line for part in own + inner for line in part.splitlines()]
    return "\n".join([f"{type(layer).__name__}(", *(f"  {line}" for line in lines), ")"])


def _members(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Parameter | Buffer | Layer):
        yield name, value
    elif isinstance(value, list | tuple | dict):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _members(f"{name}.{key}", item)


def summary(model: Layer) -> str:
    """A table of the parameters and buffers: name, shape, dtype, how many, bytes; and their sums.

    A tied parameter counts once, under its first name. Bytes are those of the values alone: a gradient takes as many
    again, and each moment of an optimizer too (float32 or wider). `str` for `print`.
    """
    rows = [(name, p.data, "" if p.trainable else "frozen") for name, p in model.named_parameters()]
    total, size = sum(data.size for _, data, _ in rows), sum(data.nbytes for _, data, _ in rows)
    trained = sum(data.size for _, data, kind in rows if not kind)
    rows += [(name, b.data, "buffer") for name, b in model._unique(Buffer)]
    cells = [("name", "shape", "dtype", "values", "bytes", ""), *(_cells(*row) for row in rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(6)]
    lines = [
        "  ".join(c.rjust(w) if i in (3, 4) else c.ljust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True)))
        for row in cells
    ]
    end = f"{total:,} parameters, {trained:,} of them trained, {size:,} bytes"
    return "\n".join(line.rstrip() for line in [f"{type(model).__name__}", *lines, end])


def _cells(name: str, data: Array, kind: str) -> tuple[str, ...]:
    return name, str(tuple(data.shape)), str(data.dtype), f"{data.size:,}", f"{data.nbytes:,}", kind
