"""The door of `MultiHeadAttention`: what its constructor refuses, and the layouts in which its inputs come.

batch_first=True     (B, length, size)          the default
batch_first=False    (length, B, size)          PyTorch's default
either, unbatched    (length, size)             one sample; the result is unbatched too
"""

from gpulayers import initialize
from gpulayers.backend import Array
from gpulayers.initialize import Init
from gpulayers.layers.layer import check_flags, check_integer, check_number, check_positive, floating_input
from gpulayers.layers.linear import Linear

WHO = "MultiHeadAttention"


def check_heads(
    dim: int, heads: int, kv_heads: int | None, kdim: int | None, vdim: int | None, **sizes: int | None
) -> int:
    """Refuse sizes that do not fit together. sizes: head_dim, value_head_dim. Returns the number of kv_heads."""
    check_integer(WHO, dim=dim, heads=heads)
    sizes = {"dim": dim, **sizes, "kdim": kdim, "vdim": vdim}
    for name, size in {"kv_heads": kv_heads, **sizes}.items():
        if size is not None:
            check_integer(WHO, **{name: size})
    if heads < 1 or (sizes["head_dim"] is None and dim % heads):
        raise ValueError(f"{WHO}: heads must divide dim, got {heads} heads for dim {dim}")
    kv_heads = heads if kv_heads is None else kv_heads
    if kv_heads < 1 or heads % kv_heads:
        raise ValueError(f"{WHO}: kv_heads must divide heads, got {kv_heads} for {heads} heads")
    if vdim is not None and kdim is None:
        raise ValueError(f"{WHO}: vdim is given without kdim")
    if small := [f"{name} = {size}" for name, size in sizes.items() if size is not None and size < 1]:
        raise ValueError(f"{WHO}: sizes must be at least 1, got {', '.join(small)}")
    return kv_heads


def check_options(
    dropout: float, softcap: float | None, rotary: bool, alone: bool, head_dim: int, **flags: bool
) -> None:
    """alone: self-attention."""
    check_number(WHO, dropout=dropout)
    check_flags(WHO, rotary=rotary, **flags)
    if not 0 <= dropout < 1:
        raise ValueError(f"{WHO}: dropout must be in [0, 1), got {dropout}")
    if softcap is not None:
        check_positive(WHO, softcap=softcap)
    if rotary and (not alone or head_dim % 2):
        raise ValueError(f"{WHO}: rotary positions need self-attention and an even head_dim")


def zero_bias(size: int, width: int, bias: bool, init: Init | None, rng: initialize.Rng, dtype: str) -> Linear:
    """A projection whose bias starts at 0."""
    layer = Linear(size, width, bias, init=init, rng=rng, dtype=dtype)
    if layer.bias is not None:
        layer.bias.data[...] = 0
    return layer


# ------------------------------------------------------------------------------------------ layouts


def as_batch(x: Array, batched: bool, batch_first: bool) -> Array:
    """An array in the layout of the inputs as (B, length, ...), a view."""
    return x[None] if not batched else x if batch_first else x.swapaxes(0, 1)


def as_given(x: Array, batched: bool, batch_first: bool) -> Array:
    """(B, length, ...) in the layout of the inputs, a view."""
    return x[0] if not batched else x if batch_first else x.swapaxes(0, 1)


def check_inputs(given: list[Array], wanted: list[tuple[str, int | None]], batch_first: bool) -> None:
    """Refuse inputs of other shapes. wanted: (argument, size) of each; all are batched or none is."""
    for x, (argument, size) in zip(given, wanted, strict=True):
        floating_input(x, WHO)
        first, batch = given[0], 0 if batch_first else 1
        fits = x.ndim in (2, 3) and x.ndim == first.ndim and x.shape[-1] == size
        if not fits or (x.ndim == 3 and x.shape[batch] != first.shape[batch]):
            length = "T" if argument == "query" else "S"
            lead = [length]
            if x is first or first.ndim == 3:
                lead.insert(batch, "B" if x is first else str(first.shape[batch]))
            raise ValueError(f"{WHO} takes a {argument} of shape ({', '.join(lead)}, {size}), got {x.shape}")
    if wanted[-1][0] == "value" and given[-2].shape[:-1] != given[-1].shape[:-1]:
        values, keys = (x.shape[0 if x.ndim == 2 or not batch_first else 1] for x in (given[-1], given[-2]))
        raise ValueError(f"{WHO} takes as many values as keys, got {values} for {keys}")
