"""The losses against PyTorch, every combination of options."""

import itertools

import numpy as np
import pytest
from outside import DTYPES, case, case_names, cast, close, load

import gpulayers as gl
from gpulayers.ops.cross_entropy import cross_entropy, cross_entropy_inplace
from gpulayers.ops.mse import mse_loss

IGNORED, WEIGHTED, SMOOTHING, Z_LOSS = (None, 2, -100), (False, True), (0.0, 0.1), (0.0, 1e-3)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("loss", [cross_entropy, cross_entropy_inplace])
def test_cross_entropy(loss, reduction, dtype):
    file = load("losses")
    for ignored, weighted, smoothing, z_loss in itertools.product(IGNORED, WEIGHTED, SMOOTHING, Z_LOSS):
        targets = file["targets"].copy()
        if ignored == -100:
            targets[[3, 8]] = -100
        name = f"ce ignore={ignored} weight={weighted} smoothing={smoothing} z={z_loss} "
        found, dlogits = loss(
            file["logits"].astype(dtype),
            targets,
            ignore_index=-100 if ignored is None else ignored,
            weight=file["weight"].astype(dtype) if weighted else None,
            label_smoothing=smoothing,
            z_loss=z_loss,
            reduction=reduction,
        )
        close(found, file[f"{name}{reduction}/loss"], dtype)
        close(dlogits, file[f"{name}{'none' if reduction == 'sum' else reduction}/dlogits"], dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["soft", "ids"])
def test_cross_entropy_by_axis(kind, dtype):
    """Class probabilities and ids, the classes along axis 1, capped or not."""
    file = load("losses")
    for weighted, smoothing, cap, reduction in itertools.product(
        WEIGHTED, SMOOTHING, (None, 2.0), ("mean", "sum", "none")
    ):
        loss, dlogits = cross_entropy(
            file["layout/logits"].astype(dtype),
            cast(file[f"layout/{kind}"], dtype),
            weight=file["layout/weight"].astype(dtype) if weighted else None,
            label_smoothing=smoothing,
            softcap=cap,
            axis=1,
            reduction=reduction,
        )
        name = f"layout {kind} weight={weighted} smoothing={smoothing} cap={cap} {reduction}"
        close(loss, file[f"{name}/loss"], dtype)
        close(dlogits, file[f"{name}/dlogits"], dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_mse_loss(reduction, dtype):
    wanted = case("losses", f"mse {reduction}")
    x, target = (cast(a, dtype) for a in wanted.inputs)
    loss, dx = mse_loss(x, target, reduction=reduction)
    close(loss, wanted.y, dtype)
    close(np.asarray(cast(wanted.dy, dtype)) * dx, wanted.input_gradients[0], dtype)


POINTWISE = sorted(
    name for name in case_names("losses") if not name.startswith(("ce ", "mse ", "layout", "nll", "cosine "))
)


def test_every_pointwise_loss_is_there():
    assert {name.partition(" ")[0] for name in POINTWISE} >= {
        "mse_loss", "l1_loss", "huber_loss", "smooth_l1_loss", "kl_div", "binary_cross_entropy",
        "binary_cross_entropy_with_logits", "hinge_embedding_loss",
    }  # fmt: skip
    assert len(POINTWISE) >= 50


@pytest.mark.parametrize("dtype", DTYPES)
def test_pointwise_losses(dtype):
    """A name is the function, its options, the reduction, and the names of its weights."""
    for name in POINTWISE:
        function, *words = name.split(" ")
        options: dict = {key: cast(load("losses")[f"{name}/{key}"], dtype) for key in words if key.endswith("weight")}
        words = [word for word in words if not word.endswith("weight")]
        options["reduction"] = words.pop()
        if function == "kl_div":
            options["log_target"] = words == ["log"]
        elif function == "hinge_embedding_loss":
            options["margin"] = float(words[0])
        elif "'delta':" in name or "'beta':" in name:
            options[words[0].strip("{':")] = float(words[1].strip("}"))
        wanted = case("losses", name)
        x, target = (cast(a, dtype) for a in wanted.inputs)
        loss, dx = getattr(gl, function)(x, target, **options)
        close(loss, wanted.y, dtype)
        close(np.asarray(cast(wanted.dy, dtype)) * dx, wanted.input_gradients[0], dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_nll_loss(reduction, dtype):
    for weighted, ignored in itertools.product(WEIGHTED, (-100, 2)):
        wanted = case("losses", f"nll ignore={ignored} weight={weighted} {reduction}")
        x, target = (cast(a, dtype) for a in wanted.inputs)
        weight = cast(load("losses")["nll/weight"], dtype) if weighted else None
        loss, dx = gl.nll_loss(x, target, weight, ignore_index=ignored, reduction=reduction, axis=1)
        close(loss, wanted.y, dtype)
        dy = np.asarray(cast(wanted.dy, dtype))
        close((dy[:, None] if reduction == "none" else dy) * dx, wanted.input_gradients[0], dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("margin", [0.0, -0.5])
def test_cosine_embedding_loss(margin, reduction, dtype):
    wanted = case("losses", f"cosine {margin} {reduction}")
    x1, x2, target = (cast(a, dtype) for a in wanted.inputs)
    loss, gradients = gl.cosine_embedding_loss(x1, x2, target, margin, reduction)
    close(loss, wanted.y, dtype)
    dy = np.asarray(cast(wanted.dy, dtype))
    for dx, right in zip(gradients, wanted.input_gradients, strict=True):
        found = (dy[:, None] if reduction == "none" else dy) * dx
        close(found[1:], right[1:], dtype)  # row 0 holds zeros: its gradient is 1e6 times the others
        close(found[0], right[0], dtype)
