"""One step of a gated recurrent unit, in PyTorch's order of the gates: r, z, n.

    r  = s(gi_r + gh_r)                  z = s(gi_z + gh_z)               s: the logistic function
    hn = gh_n + bias                     n = tanh(gi_n + r hn)
    h' = (1 - z) n + z h

gi, gh: the parts of the sums that come from the input and from the state, as in rnn_cell.py, where lengths and the
three parts of the gradient of h' are explained. bias is W_hn's, the only one of the state that r multiplies; the others
of the state may be added to those of the input. Backward, with dh' = dy + direct + product:

    dgi_n = dh' (1 - z) (1 - n^2)        dgh_n = dgi_n r
    dgi_z = dh' (h - n) z (1 - z)        dgh_z = dgi_z
    dgi_r = dgi_n hn r (1 - r)           dgh_r = dgi_r              direct = dh' z

Source: Cho et al., Learning phrase representations using RNN encoder-decoder, 2014, equations 5 to 8, with r applied
after the product, as cuDNN and PyTorch have it, and z and 1 - z exchanged.
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
    gi: Array, gh: Array, bias: Array, h: Array, lengths: Array = None, t: int = 0, out: Out = None
) -> tuple[Array, Array, Array]:
    """gi, gh: (B, 3 H). bias: (H,) or None. h: (B, H). out: arrays for the results; that of the gates may be gi itself.

    Returns h' like h; r, z, n side by side (B, 3 H) and hn (B, H), for backward; in idle rows they mean nothing.
    """
    xp, dtype, H = array_module(gi, gh, bias, h), wide(gi.dtype), h.shape[1]
    gi_wide, gh_wide, h_wide = gi.astype(dtype), gh.astype(dtype), h.astype(dtype)
    rz = logistic(gi_wide[:, : 2 * H] + gh_wide[:, : 2 * H])
    hn = gh_wide[:, 2 * H :] if bias is None else gh_wide[:, 2 * H :] + bias.astype(dtype)
    n = xp.tanh(gi_wide[:, 2 * H :] + rz[:, :H] * hn)
    z = rz[:, H:]
    new = xp.where(active_rows(lengths, t), (1 - z) * n + z * h_wide, h_wide).astype(h.dtype)
    return into(out, new, xp.concatenate([rz, n], axis=1).astype(h.dtype), hn.astype(h.dtype))


def _cpu(
    gi: Array, gh: Array, bias: Array, h: Array, lengths: Array = None, t: int = 0, out: Out = None
) -> tuple[Array, Array, Array]:
    H = h.shape[1]
    new, gates, hn = out or _results(h)
    rz, z, n = gates[:, : 2 * H], gates[:, H : 2 * H], gates[:, 2 * H :]
    work = np.add(gi[:, : 2 * H], gh[:, : 2 * H])  # contiguous: in the gates' columns all passes take a third longer
    logistic_inplace(work)
    rz[...] = work
    np.add(gh[:, 2 * H :], 0 if bias is None else bias, out=hn)
    np.multiply(rz[:, :H], hn, out=new)
    new += gi[:, 2 * H :]
    np.tanh(new, out=n)
    np.subtract(h, n, out=new)
    new *= z
    new += n  # n + z (h - n)
    if (idle := idle_rows(lengths, t)) is not None:
        new[idle] = h[idle]
    return new, gates, hn


def _cuda(
    gi: Array, gh: Array, bias: Array, h: Array, lengths: Array = None, t: int = 0, out: Out = None
) -> tuple[Array, Array, Array]:
    B, H = h.shape
    new, gates, hn = out or _results(h)
    check_shape("gru_cell", (B, 3 * H), gi=gi, gh=gh, gates=gates)
    check_shape("gru_cell", (B, H), out=new, hn=hn)
    check_shape("gru_cell", (H,), bias=bias)
    check_shape("gru_cell", (B,), lengths=lengths)
    inputs = (contiguous(gi), contiguous(gh), plain(bias), contiguous(h))
    launch_cell("gru_cell", h, (new, gates, hn), inputs, lengths, t)
    return new, gates, hn


def _results(h: Array) -> tuple[Array, Array, Array]:
    B, H = h.shape
    return tuple(empty(shape, h.dtype, like=h) for shape in ((B, H), (B, 3 * H), (B, H)))


gru_cell = Op("gru_cell", reference=_reference, cpu=_cpu, cuda=_cuda)


def _backward_reference(
    dy: Array, direct: Array, product: Array, gates: Array, hn: Array, h: Array, lengths: Array = None, t: int = 0,
    out: Out = None
) -> tuple[Array, Array, Array]:  # fmt: skip
    """dy, direct, product: (B, H) or None. gates, hn: what `gru_cell` returned. h: the state before the step.

    out: arrays for the results; that of dgi may be gates itself. Returns dgi, dgh (B, 3 H), and the direct part of the
    gradient of h; the rest of it is dgh W_hh'.
    """
    xp, dtype, H = array_module(dy, direct, product, gates), wide(gates.dtype), h.shape[1]
    r, z, n = (gates[:, k * H : (k + 1) * H].astype(dtype) for k in range(3))
    active = active_rows(lengths, t)
    dh, past = state_gradient(active, dy, direct, product, h)
    dn = dh * (1 - z) * (1 - n * n)
    dz = dh * (h.astype(dtype) - n) * z * (1 - z)
    dr = dn * hn.astype(dtype) * r * (1 - r)
    dgi = xp.where(active, xp.concatenate([dr, dz, dn], axis=1), 0).astype(h.dtype)
    dgh = xp.where(active, xp.concatenate([dr, dz, dn * r], axis=1), 0).astype(h.dtype)
    return into(out, dgi, dgh, xp.where(active, dh * z, past).astype(h.dtype))


def _backward_cpu(
    dy: Array, direct: Array, product: Array, gates: Array, hn: Array, h: Array, lengths: Array = None, t: int = 0,
    out: Out = None
) -> tuple[Array, Array, Array]:  # fmt: skip
    H = h.shape[1]
    dgi, dgh, dh = out or _gradients(h)
    idle = idle_rows(lengths, t)
    past = state_gradient_cpu(dh, dy, direct, product, idle)
    r, z, n = gates[:, :H], gates[:, H : 2 * H], gates[:, 2 * H :]
    dr, dz, dn = dgi[:, :H], dgi[:, H : 2 * H], dgi[:, 2 * H :]  # perhaps the same memory as r, z, n: order matters
    share, work = np.subtract(1, z), np.subtract(h, n)
    share *= dh
    work *= share
    work *= z  # dz
    np.multiply(n, n, out=dn)
    np.subtract(1, dn, out=dn)
    dn *= share
    dh *= z  # direct
    dz[...] = work
    dhn = np.multiply(dn, r, out=dgh[:, 2 * H :])
    np.subtract(1, r, out=dr)
    dr *= hn
    dr *= dhn
    dgh[:, : 2 * H] = dgi[:, : 2 * H]
    if idle is not None:
        dgi[idle], dgh[idle], dh[idle] = 0, 0, past
    return dgi, dgh, dh


def _backward_cuda(
    dy: Array, direct: Array, product: Array, gates: Array, hn: Array, h: Array, lengths: Array = None, t: int = 0,
    out: Out = None
) -> tuple[Array, Array, Array]:  # fmt: skip
    B, H = h.shape
    dgi, dgh, dh = out or _gradients(h)
    check_shape("gru_cell_backward", (B, 3 * H), gates=gates, dgi=dgi, dgh=dgh)
    check_shape("gru_cell_backward", (B, H), dy=dy, direct=direct, product=product, hn=hn, out=dh)
    check_shape("gru_cell_backward", (B,), lengths=lengths)
    inputs = (plain(dy), plain(direct), plain(product), contiguous(gates), contiguous(hn), contiguous(h))
    launch_cell("gru_cell_backward", h, (dgi, dgh, dh), inputs, lengths, t)
    return dgi, dgh, dh


def _gradients(h: Array) -> tuple[Array, Array, Array]:
    B, H = h.shape
    return tuple(empty(shape, h.dtype, like=h) for shape in ((B, 3 * H), (B, 3 * H), (B, H)))


gru_cell_backward = Op("gru_cell_backward", reference=_backward_reference, cpu=_backward_cpu, cuda=_backward_cuda)
