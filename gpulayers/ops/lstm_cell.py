"""One step of a long short-term memory without peepholes, in PyTorch's order of the gates: i, f, g, o.

    i, f, o = s(a_i), s(a_f), s(a_o)     g = tanh(a_g)         a = gi + gh, s: the logistic function
    c' = f c + i g                       h' = o tanh(c')

gi, gh: the parts of the sums that come from the input and from the state, as in rnn_cell.py, where lengths and the
three parts of the gradient of h' are explained. Backward, with dh' = dy + direct + product, and dc of the next step:

    dc' = dc + dh' o (1 - tanh^2 c')
    da_i = dc' g i (1 - i)     da_f = dc' c f (1 - f)     da_g = dc' i (1 - g^2)     da_o = dh' tanh(c') o (1 - o)
    dc  = dc' f

Sources: Hochreiter and Schmidhuber, Long short-term memory, 1997; Gers, Schmidhuber and Cummins, Learning to forget,
2000 (the gate f).
"""

import numpy as np

from gpulayers.backend import Array, array_module, empty, wide
from gpulayers.cuda import contiguous
from gpulayers.ops.op import Op, check_shape
from gpulayers.ops.rnn_cell import (
    Out,
    active_rows,
    idle_rows,
    into,
    launch_cell,
    logistic_inplace,
    plain,
    state_gradient,
    state_gradient_cpu,
)
from gpulayers.ops.sigmoid import logistic


def _reference(
    gi: Array, gh: Array, h: Array, c: Array, lengths: Array = None, t: int = 0, out: Out = None
) -> tuple[Array, Array, Array]:
    """gi, gh: (B, 4 H). h, c: (B, H). out: arrays for the results; that of the gates may be gi itself.

    Returns h', c' like h, and i, f, g, o side by side (B, 4 H), which backward needs; in idle rows they mean nothing.
    """
    xp, dtype, H = array_module(gi, gh, h, c), wide(gi.dtype), h.shape[1]
    a = gi.astype(dtype) + gh.astype(dtype)
    gates = xp.concatenate([logistic(a[:, : 2 * H]), xp.tanh(a[:, 2 * H : 3 * H]), logistic(a[:, 3 * H :])], axis=1)
    i, f, g, o = (gates[:, k * H : (k + 1) * H] for k in range(4))
    c_new = f * c.astype(dtype) + i * g
    h_new, active = o * xp.tanh(c_new), active_rows(lengths, t)
    h_new, c_new = xp.where(active, h_new.astype(h.dtype), h), xp.where(active, c_new.astype(h.dtype), c)
    return into(out, h_new, c_new, gates.astype(h.dtype))


def _cpu(
    gi: Array, gh: Array, h: Array, c: Array, lengths: Array = None, t: int = 0, out: Out = None
) -> tuple[Array, Array, Array]:
    H = h.shape[1]
    h_new, c_new, gates = out or _results(h)
    i, f, g, o = (gates[:, k * H : (k + 1) * H] for k in range(4))
    np.add(gi, gh, out=gates)
    logistic_inplace(gates[:, : 2 * H])
    np.tanh(g, out=g)
    logistic_inplace(o)
    np.multiply(i, g, out=h_new)
    np.multiply(f, c, out=c_new)
    c_new += h_new
    np.tanh(c_new, out=h_new)
    h_new *= o
    if (idle := idle_rows(lengths, t)) is not None:
        h_new[idle], c_new[idle] = h[idle], c[idle]
    return h_new, c_new, gates


def _cuda(
    gi: Array, gh: Array, h: Array, c: Array, lengths: Array = None, t: int = 0, out: Out = None
) -> tuple[Array, Array, Array]:
    B, H = h.shape
    h_new, c_new, gates = out or _results(h)
    check_shape("lstm_cell", (B, 4 * H), gi=gi, gh=gh, gates=gates)
    check_shape("lstm_cell", (B, H), c=c, h_new=h_new, c_new=c_new)
    check_shape("lstm_cell", (B,), lengths=lengths)
    inputs = (contiguous(gi), contiguous(gh), contiguous(h), contiguous(c))
    launch_cell("lstm_cell", h, (h_new, c_new, gates), inputs, lengths, t)
    return h_new, c_new, gates


def _results(h: Array) -> tuple[Array, Array, Array]:
    B, H = h.shape
    return tuple(empty(shape, h.dtype, like=h) for shape in ((B, H), (B, H), (B, 4 * H)))


lstm_cell = Op("lstm_cell", reference=_reference, cpu=_cpu, cuda=_cuda)


def _backward_reference(
    dy: Array, direct: Array, product: Array, dc: Array, gates: Array, c: Array, c_new: Array, lengths: Array = None,
    t: int = 0, out: Out = None
) -> tuple[Array, Array, Array]:  # fmt: skip
    """dy, direct, product, dc: (B, H) or None. gates, c_new: what `lstm_cell` returned. c: c before the step.

    out: arrays for the results; that of da may be gates itself. Returns da (B, 4 H), the gradient of gi and gh; that of
    c; and the direct part of the gradient of h: that of idle rows, None without lengths. The rest of it is da W_hh'.
    """
    xp, dtype, H = array_module(dy, direct, product, gates), wide(gates.dtype), c.shape[1]
    i, f, g, o = (gates[:, k * H : (k + 1) * H].astype(dtype) for k in range(4))
    active, tanh_c = active_rows(lengths, t), xp.tanh(c_new.astype(dtype))
    dh, past = state_gradient(active, dy, direct, product, c)
    past_c = xp.zeros_like(dh) if dc is None else dc.astype(dtype)
    dc_new = past_c + dh * o * (1 - tanh_c * tanh_c)
    da_i = dc_new * g * i * (1 - i)
    da_f = dc_new * c.astype(dtype) * f * (1 - f)
    da_g = dc_new * i * (1 - g * g)
    da_o = dh * tanh_c * o * (1 - o)
    da = xp.where(active, xp.concatenate([da_i, da_f, da_g, da_o], axis=1), 0).astype(c.dtype)
    passed = None if lengths is None else xp.where(active, 0, past).astype(c.dtype)
    return into(out, da, xp.where(active, dc_new * f, past_c).astype(c.dtype), passed)


def _backward_cpu(
    dy: Array, direct: Array, product: Array, dc: Array, gates: Array, c: Array, c_new: Array, lengths: Array = None,
    t: int = 0, out: Out = None
) -> tuple[Array, Array, Array]:  # fmt: skip
    H = c.shape[1]
    da, dc_out, passed = out or _gradients(c, lengths)
    dh = np.empty_like(c)
    idle = idle_rows(lengths, t)
    past = state_gradient_cpu(dh, dy, direct, product, idle)
    past_c = 0 if dc is None or idle is None else dc[idle]
    i, f, g, o = (gates[:, k * H : (k + 1) * H] for k in range(4))
    da_i, da_f, da_g, da_o = (da[:, k * H : (k + 1) * H] for k in range(4))  # perhaps the memory of i, f, g, o
    tanh_c = np.tanh(c_new)
    dh_o = np.multiply(dh, o)
    dh *= tanh_c
    np.multiply(tanh_c, tanh_c, out=tanh_c)
    np.subtract(1, tanh_c, out=tanh_c)
    dc_new = np.multiply(tanh_c, dh_o, out=tanh_c)
    if dc is not None:
        dc_new += dc
    dh *= o
    np.subtract(1, o, out=da_o)
    da_o *= dh  # dh' tanh(c') o (1 - o)
    dc_i = np.multiply(dc_new, i, out=dh_o)
    work = np.subtract(1, i, out=dh)
    work *= g
    work *= dc_i
    da_i[...] = work
    np.multiply(g, g, out=da_g)
    np.subtract(1, da_g, out=da_g)
    da_g *= dc_i
    np.multiply(dc_new, f, out=dc_out)
    np.subtract(1, f, out=da_f)
    da_f *= c
    da_f *= dc_out  # dc' c f (1 - f)
    if passed is not None:
        passed.fill(0)
        if idle is not None:
            da[idle], passed[idle], dc_out[idle] = 0, past, past_c
    return da, dc_out, passed


def _backward_cuda(
    dy: Array, direct: Array, product: Array, dc: Array, gates: Array, c: Array, c_new: Array, lengths: Array = None,
    t: int = 0, out: Out = None
) -> tuple[Array, Array, Array]:  # fmt: skip
    B, H = c.shape
    da, dc_out, passed = out or _gradients(c, lengths)
    check_shape("lstm_cell_backward", (B, 4 * H), gates=gates, da=da)
    check_shape("lstm_cell_backward", (B, H), dy=dy, direct=direct, product=product, dc=dc, c_new=c_new)
    check_shape("lstm_cell_backward", (B, H), out=dc_out, passed=passed)
    check_shape("lstm_cell_backward", (B,), lengths=lengths)
    inputs = (plain(dy), plain(direct), plain(product), plain(dc), contiguous(gates), contiguous(c), contiguous(c_new))
    launch_cell("lstm_cell_backward", c, (da, dc_out, passed), inputs, lengths, t)
    return da, dc_out, passed


def _gradients(c: Array, lengths: Array) -> tuple[Array, Array, Array]:
    B, H = c.shape
    da, dc, passed = (empty(shape, c.dtype, like=c) for shape in ((B, 4 * H), (B, H), (B, H)))
    return da, dc, None if lengths is None else passed


lstm_cell_backward = Op("lstm_cell_backward", reference=_backward_reference, cpu=_backward_cpu, cuda=_backward_cuda)
