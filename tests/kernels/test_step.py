"""A whole training step on the GPU: every op has its kernel, and few launches and array calls stand between them."""

import importlib
import pkgutil
from collections import Counter

import numpy as np
import pytest
from devices import on_devices

import gpulayers as gl
import gpulayers.ops
from gpulayers import cuda
from gpulayers.models.gpt import GPT, GPTConfig
from gpulayers.ops.cross_entropy import cross_entropy
from gpulayers.ops.op import Op
from gpulayers.optim.adam import AdamW
from gpulayers.step import Train

WITHOUT_A_BODY = {  # op -> why its reference does on a GPU
    "newton_schulz": "fifteen matrix products and little else, once for each matrix of Muon's step",
    "adafactor": "row and column means of each matrix; a kernel of its own is not written yet",
}
WITHOUT_A_KERNEL = {"matmul": "CuPy's product, which is cuBLAS"}

# Launches of a step of one block. Our kernels: of the model 9 (embedding 2, positions 2, the last norm 3, dropout 2 if
# p > 0), of the loss 1, of the optimizer 5, of the block 17 (two norms 6, attention 2, biases 4, GELU 1, dropout 4).
LAUNCHES = {(False, 0.0): 26, (False, 0.1): 32, (True, 0.1): 34}
# CuPy's own: copies of products and additions of biases (13), sums that go into a gradient (12), the loss (4), and
# single products, signs and clearings.
ARRAY_CALLS = 33


def all_ops():
    for module in pkgutil.iter_modules(gpulayers.ops.__path__):
        values = vars(importlib.import_module(f"gpulayers.ops.{module.name}")).values()
        yield from (value for value in values if isinstance(value, Op))


def test_every_op_has_a_body_for_the_gpu():
    assert {op.name for op in all_ops() if op.cuda is None} == set(WITHOUT_A_BODY)


class Recorder:
    """What a step calls: the bodies of ops, our launches, and element-wise calls and copies of the array module."""

    def __init__(self, monkeypatch, xp):
        self.bodies, self.launches, self.array_calls = Counter(), Counter(), Counter()
        body = Op.body

        def recorded(op, *args, **kwargs):
            chosen = body(op, *args, **kwargs)
            self.bodies[op.name, chosen is op.cuda] += 1
            return chosen

        monkeypatch.setattr(Op, "body", recorded)
        monkeypatch.setattr(cuda, "on_launch", self.launch)
        for name in ("add", "subtract", "multiply", "divide", "negative", "where", "copyto", "ascontiguousarray"):
            monkeypatch.setattr(xp, name, self.counted(name, getattr(xp, name)))
        for name in ("__iadd__", "__imul__", "__setitem__", "astype", "copy", "fill", "sum"):
            monkeypatch.setattr(xp.ndarray, name, self.counted(name, getattr(xp.ndarray, name)))

    def launch(self, function, args, go):
        self.launches[function] += 1
        go()

    def counted(self, name, function):
        def call(*args, **kwargs):
            result = function(*args, **kwargs)
            self.array_calls[name] += name.startswith("__i") or result is not args[0]  # a cast to its own type is none
            return result

        return call


@on_devices
@pytest.mark.parametrize(("rotary", "p"), list(LAUNCHES))
def test_launches_of_a_step(device, rotary, p, monkeypatch, rng):
    xp = gl.use(device)
    model = GPT(GPTConfig(vocab=19, context=8, layers=1, heads=2, dim=16, dropout=p, rotary=rotary)).to(device)
    optimizer = AdamW(model, lr=1e-3, clip_norm=1.0)
    ids, targets = (xp.asarray(rng.integers(0, 19, (2, 8))) for _ in range(2))
    with monkeypatch.context() as patch:
        found = Recorder(patch, xp)
        logits, saved = model.forward(ids, Train(seed=1, step=0))
        loss, dlogits = cross_entropy(logits, targets)
        model.backward(dlogits, saved)
        optimizer.step()
    print(dict(found.launches), dict(found.array_calls), dict(found.bodies), sep="\n")
    assert np.isfinite(float(loss))
    assert optimizer.last_step_applied
    assert {name for name, in_cuda in found.bodies if not in_cuda} <= set(WITHOUT_A_BODY)
    assert found.launches.total() <= LAUNCHES[rotary, p]
    assert found.array_calls.total() <= ARRAY_CALLS
