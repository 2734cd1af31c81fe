"""Memory stays flat however long a run goes; models, devices and threads in one process do not touch each other."""

import gc
import os
import threading
from pathlib import Path

import numpy as np
import pytest

import gpulayers as gl
from gpulayers.models.gpt import GPT, GPTConfig
from gpulayers.optim import SGD, AdamW
from gpulayers.pool import pool_bytes
from gpulayers.step import Train
from gpulayers.training.loop import train_step
from gpulayers.training.tasks import Part

SIZES = {"vocab": 11, "context": 8, "layers": 1, "heads": 2, "dim": 8, "dropout": 0.2}


def gpt(seed):
    model = GPT(GPTConfig(**SIZES), seed=seed)
    return model, AdamW(model, lr=1e-2, clip_norm=1.0)


def step(model, optimizer, k, seed=0, rows=4):
    ids, targets = np.random.default_rng([seed, k]).integers(0, 11, (2, rows, 8))
    half = rows // 2
    parts = [Part(0, (ids[:half],), targets[:half]), Part(half, (ids[half:],), targets[half:])]
    return optimizer.read(train_step(model, optimizer, parts, seed, k)).loss


def bits(model, optimizer):
    return {name: array.tobytes() for name, array in (model.state_dict() | optimizer.state_dict()).items()}


# ---------------------------------------------------------------------------------------------------- memory


def in_use() -> dict[str, int]:
    """What a process holds. Only what Linux tells of it where that is there."""
    gc.collect()
    found = {"free blocks": pool_bytes(), "objects": len(gc.get_objects()), "threads": threading.active_count()}
    if os.path.exists("/proc/self/statm"):
        found["pages"] = int(Path("/proc/self/statm").read_text().split()[1])
        found["files"] = len(os.listdir("/proc/self/fd"))
    return found


def check_flat(one_step, steps):
    """From the middle to the end nothing grows: what is kept per step would be there `steps` / 2 times."""
    for k in range(steps // 2):
        one_step(k)
    before = in_use()
    for k in range(steps // 2, steps):
        one_step(k)
    after = in_use()
    assert after["free blocks"] <= before["free blocks"]
    assert after["threads"] == before["threads"]
    assert after.get("files") == before.get("files")
    assert after["objects"] - before["objects"] < steps // 4, "an object is left by every second step"
    # Pages of 4 KiB: over the 5,000 steps of the slow test a megabyte. An allocator has its moods; what leaks, though,
    # leaks in every stretch of steps.
    grown = [after.get("pages", 0) - before.get("pages", 0)]
    while grown[-1] >= 256 and len(grown) < 3:
        pages = in_use().get("pages", 0)
        for k in range(steps // 2, steps):
            one_step(k)
        grown.append(in_use().get("pages", 0) - pages)
    assert grown[-1] < 256, f"pages more after each {steps - steps // 2} steps: {grown}"


@pytest.mark.parametrize("steps", [60, pytest.param(10_000, marks=pytest.mark.slow)])
def test_steps_leave_nothing(steps):
    model, optimizer = gpt(0)
    check_flat(lambda k: step(model, optimizer, k), steps)


@pytest.mark.parametrize("steps", [40, pytest.param(2_000, marks=pytest.mark.slow)])
def test_layers_of_large_rows_leave_nothing(steps):
    """Arrays that come from the pool of blocks, of shapes that differ from step to step."""
    model = gl.Sequential(gl.Linear(64, 256, rng=0), gl.GELU(), gl.LayerNorm(256), gl.Linear(256, 64, rng=1))
    optimizer, rng = SGD(model, lr=1e-3), np.random.default_rng(0)

    def one_step(k):
        x = rng.normal(size=(200 + 10 * (k % 7), 64)).astype(np.float32)
        y, saved = model.forward(x, train=Train(0, k))
        _, dy = gl.mse_loss(y, x)
        model.backward(dy, saved)
        optimizer.step()

    check_flat(one_step, steps)


@pytest.mark.parametrize("steps", [10, pytest.param(1_000, marks=pytest.mark.slow)])
def test_steps_on_a_device_leave_nothing(steps):
    cp = gl.use("emulated")
    model, optimizer = linear("emulated", dropout=False)  # whose kernels find the last 16 steps' numbers kept for them
    pool = cp.get_default_memory_pool()
    used = []

    def one_step(k):
        linear_step(model, optimizer, k, "emulated")
        used.append(pool.used_bytes())

    check_flat(one_step, steps)
    assert len(set(used[2:])) == 1


# ---------------------------------------------------------------------------------------------------- side by side


def linear(device, dropout=True):
    between = [gl.ReLU(), gl.Dropout(0.3)] if dropout else [gl.ReLU()]
    model = gl.Sequential(gl.Linear(4, 6, rng=0), *between, gl.Linear(6, 3, rng=1)).to(device)
    return model, AdamW(model, lr=1e-2)


def linear_step(model, optimizer, k, device):
    x = gl.to_device(np.random.default_rng(k).normal(size=(5, 4)).astype(np.float32), device)
    y, saved = model.forward(x, train=Train(3, k))
    _, dlogits = gl.cross_entropy(y, gl.to_device(np.arange(5) % 3, device))
    model.backward(dlogits, saved)
    optimizer.step()


def alone(seed, steps=6, rows=4):
    model, optimizer = gpt(seed)
    losses = [step(model, optimizer, k, seed, rows) for k in range(steps)]
    return losses, bits(model, optimizer)


def test_two_models_in_turn_are_as_alone():
    pairs = [gpt(seed) for seed in (1, 2)]
    losses = [[step(*pair, k, seed) for seed, pair in zip((1, 2), pairs, strict=True)] for k in range(6)]
    for i, seed in enumerate((1, 2)):
        assert ([row[i] for row in losses], bits(*pairs[i])) == alone(seed)


def test_a_pass_of_one_model_inside_that_of_another():
    """Forward of both, then backward of both: what one keeps for its backward pass is its own."""
    x, targets = np.random.default_rng(0).integers(0, 11, (2, 3, 8))
    found = {}
    for together in (False, True):
        models = [GPT(GPTConfig(**SIZES), seed=seed) for seed in (1, 2)]
        passes = []
        for model in models:
            logits, saved = model.forward(x, train=Train(0, 0))
            _, dlogits = gl.cross_entropy(logits, targets)
            passes.append((model, dlogits, saved))
            if not together:
                model.backward(dlogits, saved)
        for model, dlogits, saved in passes if together else ():
            model.backward(dlogits, saved)
        found[together] = [p.grad.tobytes() for model in models for p in model.parameters()]
    assert found[True] == found[False]


def test_two_devices_in_turn_are_as_alone():
    devices = ("numpy", "emulated")
    lonely = {}
    for device in devices:
        model, optimizer = linear(device)
        for k in range(3):
            linear_step(model, optimizer, k, device)
        lonely[device] = bits(model, optimizer)
    pairs = {device: linear(device) for device in devices}
    for k in range(3):
        for device in devices:
            linear_step(*pairs[device], k, device)
    assert {device: bits(*pair) for device, pair in pairs.items()} == lonely
    assert {gl.device_of(p.data) for p in pairs["emulated"][0].parameters()} == {"emulated"}
    assert {gl.device_of(p.data) for p in pairs["numpy"][0].parameters()} == {"numpy"}


@pytest.mark.parametrize("rows", [4, 400])  # 400: blocks of the pool go from thread to thread
def test_two_threads_with_a_model_each_are_as_alone(rows):
    wanted = {seed: alone(seed, 6, rows) for seed in (1, 2, 3)}
    found, gate = {}, threading.Barrier(3)

    def work(seed):
        gate.wait()
        found[seed] = alone(seed, 6, rows)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in wanted]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == wanted


def test_two_threads_with_a_device_each_are_as_alone():
    lonely, found = {}, {}
    for results in (lonely, found):

        def work(device, results=results):
            pair = linear(device)
            for k in range(3):
                linear_step(*pair, k, device)
            results[device] = bits(*pair)

        threads = [threading.Thread(target=work, args=(device,)) for device in ("numpy", "emulated")]
        for thread in threads:
            thread.start()
            if results is lonely:
                thread.join()
        for thread in threads:
            thread.join()
    assert found == lonely
