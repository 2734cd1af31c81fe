"""Normalisation of any trailing shape, groups, instances and images: output, all gradients, running statistics.

Channels are on axis 1, where PyTorch has them.
"""

import torch
import torch.nn.functional as F
from vectors.batchnorm import BATCHES
from vectors.recorder import Recorder, gradient, leaf, numpy

# name: shape, groups, options of torch.nn.GroupNorm
GROUPS = {
    "group": ((3, 6, 5), 2, {}),
    "group images": ((2, 6, 3, 4), 3, {"eps": 1e-2}),
    "group no weight": ((2, 4, 7), 2, {"affine": False}),
    "group no positions": ((4, 6), 2, {}),
    "group of all": ((2, 5, 3), 1, {}),
    "group of one": ((2, 5, 3), 5, {}),
    "group large mean": ((2, 4, 6), 2, {"shift": 4096.0}),
}
# name: module, shape, options
TRACKED = {
    "instance": (torch.nn.InstanceNorm1d, (3, 5, 7), {}),
    "instance affine": (torch.nn.InstanceNorm2d, (2, 3, 4, 5), {"affine": True, "eps": 1e-2}),
    "instance tracked": (torch.nn.InstanceNorm1d, (4, 5, 7), {"affine": True, "track_running_stats": True}),
    "instance tracked images": (torch.nn.InstanceNorm2d, (2, 3, 4, 5), {"track_running_stats": True, "momentum": 0.3}),
    "batch images": (torch.nn.BatchNorm2d, (3, 4, 2, 5), {}),
    "batch volumes": (torch.nn.BatchNorm3d, (2, 3, 2, 3, 2), {"momentum": None}),
}


def write() -> None:
    r = Recorder(seed=12)
    trailing(r)
    groups(r)
    tracked(r)
    r.write("norms")


def trailing(r: Recorder) -> None:
    def layernorm(*shape: int, eps: float = 1e-5):
        return lambda x, weight=None, bias=None: F.layer_norm(x, shape, weight, bias, eps)

    def rmsnorm(*shape: int, eps: float | None = None):
        return lambda x, weight=None: F.rms_norm(x, shape, weight, eps)

    x = r.draw(3, 4, 7, shift=3, scale=2)
    gain, bias = r.draw(4, 7), r.draw(4, 7)
    r.case("layer two axes", layernorm(4, 7), [x], {"weight": gain, "bias": bias})
    r.case("layer two axes no bias", layernorm(4, 7, eps=1e-2), [x], {"weight": gain})
    r.case("layer all axes", layernorm(3, 4, 7), [x], {"weight": r.draw(3, 4, 7), "bias": r.draw(3, 4, 7)})
    r.case("layer no weight", layernorm(7), [x])
    r.case("rms two axes", rmsnorm(4, 7), [x], {"weight": gain})
    r.case("rms no weight", rmsnorm(7, eps=1e-2), [x])


def groups(r: Recorder) -> None:
    for name, (shape, count, options) in GROUPS.items():
        options = dict(options)
        x = r.draw(*shape, shift=options.pop("shift", 3.0), scale=2)
        affine, eps = options.get("affine", True), options.get("eps", 1e-5)
        parameters = {"weight": r.draw(shape[1]), "bias": r.draw(shape[1])} if affine else {}

        def forward(x, weight=None, bias=None, count=count, eps=eps):
            return F.group_norm(x, count, weight, bias, eps)

        r.case(name, forward, [x], parameters)


def tracked(r: Recorder) -> None:
    """Training over several batches, then evaluation."""
    for name, (module, shape, options) in TRACKED.items():
        norm = module(shape[1], dtype=torch.float64, **options)
        weight, bias = r.draw(shape[1], shift=1), r.draw(shape[1])
        if norm.affine:
            norm.weight.data, norm.bias.data = (torch.tensor(v, dtype=torch.float64) for v in (weight, bias))
            r.put(**{f"{name}/weight": weight, f"{name}/bias": bias})
        for k in range(BATCHES + 1):
            norm.train(k < BATCHES)
            case = f"{name}/{k if k < BATCHES else 'evaluation'}"
            record(r, case, norm, r.draw(*shape, shift=3, scale=2), r.draw(*shape))


def record(r: Recorder, case: str, norm: torch.nn.Module, x, dy) -> None:
    tensor = leaf(x)
    norm.zero_grad()
    y = norm(tensor)
    y.backward(torch.tensor(dy, dtype=torch.float64))
    kept = {"x": x, "y": numpy(y), "dy": dy, "dx": gradient(tensor)}
    if norm.affine:
        kept |= {"dweight": gradient(norm.weight), "dbias": gradient(norm.bias)}
    if norm.track_running_stats:
        kept |= {"running_mean": numpy(norm.running_mean), "running_var": numpy(norm.running_var)}
    r.put(**{f"{case}/{key}": array for key, array in kept.items()})
