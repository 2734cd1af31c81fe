"""BatchNorm in training over several batches, then in evaluation: outputs, all gradients, running statistics."""

import torch
from vectors.recorder import Recorder, gradient, leaf, numpy

BATCHES = 3
CASES = {
    "rows": ((8, 5), {}),
    "rows and positions": ((4, 5, 7), {}),  # PyTorch's channels are axis 1
    "average": ((8, 5), {"momentum": None}),
    "momentum eps": ((8, 5), {"momentum": 0.3, "eps": 1e-2}),
    "no weight": ((8, 5), {"affine": False}),
    "no running statistics": ((8, 5), {"track_running_stats": False}),
    "one channel": ((5, 1), {}),
}
STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


def write() -> None:
    r = Recorder(seed=6)
    for name, (shape, options) in CASES.items():
        module = torch.nn.BatchNorm1d(shape[1], dtype=torch.float64, **options)
        weight, bias = r.draw(shape[1], shift=1), r.draw(shape[1])
        if module.affine:
            module.weight.data, module.bias.data = (torch.tensor(v, dtype=torch.float64) for v in (weight, bias))
            r.put(**{f"{name}/weight": weight, f"{name}/bias": bias})
        for k in range(BATCHES + 1):
            module.train(k < BATCHES)
            case = f"{name}/{k if k < BATCHES else 'evaluation'}"
            record(r, case, module, r.draw(*shape, shift=3, scale=2), r.draw(*shape))
    r.write("batchnorm")


def record(r: Recorder, case: str, module: torch.nn.BatchNorm1d, x, dy) -> None:
    tensor = leaf(x)
    module.zero_grad()
    y = module(tensor)
    y.backward(torch.tensor(dy, dtype=torch.float64))
    kept = {"x": x, "y": numpy(y), "dy": dy, "dx": gradient(tensor)}
    if module.affine:
        kept |= {"dweight": gradient(module.weight), "dbias": gradient(module.bias)}
    if module.track_running_stats:
        kept |= {key: numpy(getattr(module, key)) for key in STATISTICS}
    r.put(**{f"{case}/{key}": array for key, array in kept.items()})
