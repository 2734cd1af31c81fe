"""Threads: the numbers of one thread, whoever is ready first; one error; traces and health as ever."""

import json
import threading
import time

import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits
from tiny_run import assert_same_run, last_checkpoint, lines, words

from gpulayers.cli import main
from gpulayers.layers.batchnorm import BatchNorm
from gpulayers.layers.linear import Linear
from gpulayers.layers.relu import ReLU
from gpulayers.layers.sequential import Sequential
from gpulayers.models.gpt import GPT, GPTConfig
from gpulayers.optim import SGD, AdamW
from gpulayers.profiling import trace
from gpulayers.step import Train
from gpulayers.storage import load_tensors
from gpulayers.training import health_log, loop
from gpulayers.training import threads as module
from gpulayers.training.config import TrainingOptions
from gpulayers.training.loop import train_step
from gpulayers.training.tasks import TASKS, Part
from gpulayers.training.threads import GRAIN, Threads, cut, threads_for

VOCAB = 11
of_both_kinds = pytest.mark.usefixtures("tables")


@pytest.fixture(params=[module.PIECE, 16], ids=["its own of each thread", "deferred"])
def tables(request, monkeypatch):
    """Whose the gradient of a tied table of the GPT here, 176 numbers, is."""
    monkeypatch.setattr(module, "PIECE", request.param)


def gpt(dtype="float32", dropout=0.1):
    return GPT(GPTConfig(VOCAB, context=8, layers=2, heads=2, dim=16, dropout=dropout), seed=0, dtype=dtype)


def untied():
    """Each parameter has one contribution in a pass."""
    return Sequential(Linear(6, 32, rng=0), ReLU(), Linear(32, VOCAB, rng=1))


def batches(rng, model, batch=6, steps=3):
    if isinstance(model, GPT):
        return [rng.integers(0, VOCAB, (2, batch, 8)) for _ in range(steps)]
    return [(rng.standard_normal((batch, 6), np.float32), rng.integers(0, VOCAB, batch)) for _ in range(steps)]


def train(model, data, count=None, in_turn=False, accumulate=1):
    """(losses, state) after a step on each batch; count: threads."""
    optimizer = AdamW(model, lr=1e-2)
    threads = None if count is None else Threads(model, count)
    losses = []
    with threadpool_limits(1, "blas"):
        for k, (x, targets) in enumerate(data):
            if threads is not None:
                threads.in_turn = in_turn
            parts = cut(Part(0, (x,), targets), accumulate)
            losses.append(optimizer.read(train_step(model, optimizer, parts, 7, k, threads=threads)).loss)
    if threads is not None:
        threads.close()
    return losses, model.state_dict()


def assert_same(a, b):
    assert a[0] == b[0]
    assert all(np.array_equal(a[1][name], b[1][name]) for name in a[1])


@pytest.mark.parametrize("count", [2, 3, 5])
def test_as_accumulated_on_one_thread_bit_for_bit(count, rng):
    data = batches(rng, untied())
    assert_same(train(untied(), data, count), train(untied(), data, accumulate=count))


@pytest.mark.parametrize("count", [2, 4])
@of_both_kinds
def test_a_tied_table_differs_in_rounding(count, rng):
    """Head and look-up both add to it: ((a1 + a2) + b1) + b2 there; here (a1 + a2) + (b1 + b2), deferred
    ((a1 + b1) + a2) + b2."""
    data = batches(rng, gpt())[:1]
    ours, theirs = train(gpt("float64"), data, count), train(gpt("float64"), data, accumulate=count)
    assert ours[0] == theirs[0]
    for name in ours[1]:
        assert np.allclose(ours[1][name], theirs[1][name], rtol=1e-9, atol=1e-12)


def test_a_table_is_summed_on_all_threads_and_no_replica_has_one(rng, monkeypatch):
    """Stretches of one row; a frozen table gets nothing; an error leaves nothing waiting."""
    data, tied = batches(rng, gpt())[0], {"wte.weight"}
    model, plain = gpt("float64"), gpt("float64")
    monkeypatch.setattr(module, "PIECE", 16)

    def work(one, part):
        logits, saved = one.forward(*part.inputs, train=Train(0, 0, part.first_sample))
        one.backward(np.ones_like(logits), saved)

    with Threads(model, 3) as threads:
        threads.map(work, cut(Part(0, (data[0],), data[1]), 2))
        work(plain, Part(0, (data[0],), data[1]))
        for (name, ours), theirs in zip(model.named_parameters(), plain.parameters(), strict=True):
            assert np.allclose(ours.grad, theirs.grad, rtol=1e-9, atol=1e-12), name
        assert all(p._grad is None for flat in threads._replicas for _, p, *_ in flat.segments)
        model.zero_grad()
        with pytest.raises(ZeroDivisionError):
            threads.map(lambda one, part: work(one, part) or 1 / 0, [Part(0, (data[0],), data[1])])
        assert all(p.deferred is None for p in model.parameters())
        assert all(p._grad is None for flat in threads._replicas for _, p, *_ in flat.segments)
        assert not any(p.grad.any() for p in model.parameters())
        model.zero_grad()
        model.wte.weight.trainable = False
        threads.map(work, [Part(0, (data[0],), data[1])])
        for name, parameter in model.named_parameters():
            assert parameter.grad.any() == (name not in tied), name


@pytest.mark.parametrize("accumulate", [1, 2])
@of_both_kinds
def test_the_same_bits_from_run_to_run_and_in_turn(accumulate, rng):
    data = batches(rng, gpt())
    first = train(gpt(), data, 3, accumulate=accumulate)
    for _ in range(4):
        assert_same(first, train(gpt(), data, 3, accumulate=accumulate))
    assert_same(first, train(gpt(), data, 3, in_turn=True, accumulate=accumulate))


@of_both_kinds
def test_the_batch_as_a_whole_gives_the_same_to_rounding(rng):
    """Dropout draws by the sample, not by the piece."""
    data = batches(rng, gpt())
    whole, cut_up = train(gpt("float64", 0.3), data), train(gpt("float64", 0.3), data, 2)
    assert whole[0] == pytest.approx(cut_up[0], rel=1e-12)
    for name in whole[1]:
        assert np.allclose(whole[1][name], cut_up[1][name], rtol=1e-7, atol=1e-9)


def test_a_batch_smaller_than_the_threads(rng):
    data = batches(rng, untied(), batch=2)
    assert_same(train(untied(), data, 4), train(untied(), data, accumulate=2))


def test_a_large_gradient_is_added_on_all_threads(rng, monkeypatch):
    monkeypatch.setattr(module, "PIECE", 7)
    data = batches(rng, untied())
    assert_same(train(untied(), data, 3), train(untied(), data, accumulate=3))


@pytest.mark.parametrize(("size", "woken"), [(7, True), (module.PIECE, False)])
def test_who_adds_the_gradients(size, woken, rng, monkeypatch):
    """What is less than a piece is the calling thread's, without waking another."""
    monkeypatch.setattr(module, "PIECE", size)
    with Threads(untied(), 2) as threads:
        (x, targets), counts = batches(rng, untied())[0], []
        submit = threads._pool.submit
        monkeypatch.setattr(threads._pool, "submit", lambda *a: counts.append(1) or submit(*a))

        def work(model, part):
            logits, saved = model.forward(*part.inputs, train=Train(0, 0, part.first_sample))
            model.backward(np.ones_like(logits), saved)

        threads.map(work, [Part(0, (x,), targets)])
    assert len(counts) == 1 + woken  # 1 for the pass


def test_running_statistics_move_in_the_order_of_the_pieces(rng):
    def model():
        return Sequential(Linear(6, 32, rng=0), BatchNorm(32), Linear(32, VOCAB, rng=1))

    data = batches(rng, model(), batch=9)
    expected = train(model(), data, accumulate=3)
    for in_turn in (False, True, False):
        assert_same(train(model(), data, 3, in_turn), expected)
    assert expected[1]["layers.1.num_batches_tracked"] == 9


def test_what_is_frozen_later_stays_as_it_is(rng):
    model = untied()
    optimizer, (x, targets) = SGD(model, lr=1.0), batches(rng, model)[0]
    with Threads(model, 2) as threads:
        next(model.parameters()).trainable = False
        before = model.state_dict()
        train_step(model, optimizer, [Part(0, (x,), targets)], 0, 0, threads=threads)
    assert np.array_equal(model.state_dict()["layers.0.weight"], before["layers.0.weight"])
    assert not np.array_equal(model.state_dict()["layers.2.weight"], before["layers.2.weight"])


def test_blas_has_one_thread_inside_and_its_own_outside(rng):
    model, seen = untied(), []

    def look(_, part):
        seen.extend(pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas")

    with threadpool_limits(2, "blas"), Threads(model, 2) as threads:
        threads.map(look, [Part(0, (np.zeros((4, 6)),), np.zeros(4, int))])
        assert set(seen) == {1}
        assert 2 in [pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"]


def test_an_overflow_is_answered_as_the_caller_says():
    def overflow(model, part):
        return float(np.float32(1e38) * np.full(1, 1e38, np.float32)[0])

    part = Part(0, (np.zeros((4, 6)),), np.zeros(4, int))
    with Threads(untied(), 2) as threads, np.errstate(over="ignore"):
        assert threads.map(overflow, [part]) == [np.inf, np.inf]
    with Threads(untied(), 2) as threads, np.errstate(over="raise"), pytest.raises(FloatingPointError):
        threads.map(overflow, [part])


# ---------------------------------------------------------------------------------------------------- errors


def test_one_exception_that_of_the_first_piece_and_nothing_is_left(rng):
    model = untied()
    optimizer = SGD(model, lr=1.0)
    x, targets = batches(rng, model, batch=9)[0]
    bad = targets.copy()
    bad[[4, 8]] = 50, 60  # of the second and of the third piece
    before = model.state_dict()
    with Threads(model, 3) as threads:
        for _ in range(5):
            with pytest.raises(ValueError, match="50") as caught:
                train_step(model, optimizer, [Part(0, (x,), bad)], 0, 0, threads=threads)
            assert "60" not in str(caught.value)
        assert all(np.array_equal(before[name], value) for name, value in model.state_dict().items())
        train_step(model, optimizer, [Part(0, (x,), targets)], 0, 0, threads=threads)
    other = untied()
    train_step(other, SGD(other, lr=1.0), cut(Part(0, (x,), targets), 3), 0, 0)
    assert all(np.array_equal(value, model.state_dict()[name]) for name, value in other.state_dict().items())


def test_the_parts_behind_an_error_are_not_begun():
    begun = []

    def work(model, part):
        begun.append(part.first_sample)
        if part.first_sample == 2:
            raise RuntimeError("here")
        time.sleep(0.01)

    part = Part(0, (np.zeros((4, 6)),), np.zeros(4, int))
    with Threads(untied(), 2) as threads, pytest.raises(RuntimeError, match="here"):
        threads.map(work, [part, part, part])
    assert sorted(begun) == [0, 2]


def test_the_calling_thread_waits_for_the_others_before_it_raises():
    ended = []

    def work(model, part):
        if part.first_sample == 0:
            raise RuntimeError("at once")
        time.sleep(0.05)
        ended.append(part.first_sample)

    with Threads(untied(), 2) as threads, pytest.raises(RuntimeError, match="at once"):
        threads.map(work, [Part(0, (np.zeros((4, 6)),), np.zeros(4, int))])
    assert ended == [2]


def test_doors(rng):
    with pytest.raises(ValueError, match="count must be at least 1, got 0"):
        Threads(untied(), 0)
    with pytest.raises(ValueError, match="must be in host memory, not on emulated"):
        Threads(untied().to("emulated"), 2)
    model = untied()
    with Threads(model, 2) as threads:
        model.to(dtype="float64")
        with pytest.raises(RuntimeError, match="the model was moved; make the threads after"):
            threads.map(lambda *_: None, [])


def test_the_threads_end():
    before = threading.active_count()
    with Threads(untied(), 3):
        assert threading.active_count() == before + 2
    assert threading.active_count() == before


def test_cut():
    part = Part(3, (np.arange(10).reshape(5, 2), np.arange(5)), np.arange(5))
    pieces = cut(part, 2)
    assert [p.first_sample for p in pieces] == [3, 5]
    assert [p.targets.tolist() for p in pieces] == [[0, 1], [2, 3, 4]]
    assert [p.inputs[0].shape for p in pieces] == [(2, 2), (3, 2)]
    assert len(cut(part, 9)) == 5
    assert len(cut(Part(0, (np.zeros((0, 2)),), np.zeros(0, int)), 3)) == 1


# ---------------------------------------------------------------------------------------------------- runs


@pytest.fixture
def side_by_side(monkeypatch):
    """Runs of any size take the threads; the pictures are left out."""
    monkeypatch.setattr(module, "threads_for", lambda model, training, grain: training.threads)
    monkeypatch.setattr(loop, "plot_loss", lambda *_, **__: None)
    monkeypatch.setattr(health_log, "plot_health", lambda *_, **__: None)


def run(out, **options):
    assert main(words(out, **options)) == 0
    return out


def test_a_resumed_run_is_the_same(tmp_path, side_by_side):
    straight = run(tmp_path / "straight", threads=2)
    run(tmp_path / "half", threads=2, steps=6, schedule_steps=12)
    assert main(["train", "--resume", str(tmp_path / "half"), "--steps", "12"]) == 0
    assert lines(tmp_path / "half" / "metrics.jsonl")[-1]["loss"] == lines(straight / "metrics.jsonl")[-1]["loss"]
    assert last_checkpoint(straight).name == last_checkpoint(tmp_path / "half").name
    left, right = (load_tensors(last_checkpoint(tmp_path / name))[0] for name in ("straight", "half"))
    assert all(np.array_equal(left[name], right[name]) for name in left)


def test_health_has_the_same_figures_and_the_same_bits(tmp_path, side_by_side):
    plain = run(tmp_path / "plain", threads=2)
    assert main([*words(tmp_path / "watched", threads=2, health_every=2), "--health"]) == 0
    assert_same_run(plain, tmp_path / "watched")
    assert main([*words(tmp_path / "alone", threads=1, health_every=2), "--health"]) == 0
    ours, theirs = lines(tmp_path / "watched" / "health.jsonl"), lines(tmp_path / "alone" / "health.jsonl")
    assert [r["step"] for r in ours] == [r["step"] for r in theirs] == [1, 3, 5, 7, 9, 11]
    assert ours[0]["layers"].keys() == theirs[0]["layers"].keys()
    for row, theirs_ in theirs[0]["layers"].items():
        for name, value in theirs_.items():
            assert ours[0]["layers"][row][name] == (value if value is None else pytest.approx(value, rel=1e-3)), (
                row,
                name,
            )


def test_a_trace_has_the_layers_of_all_threads_by_name(tmp_path, side_by_side):
    file = tmp_path / "trace.json"
    assert main([*words(tmp_path / "run", threads=2, steps=1), "--trace", str(file)]) == 0
    events = json.loads(file.read_text())["traceEvents"]
    by_thread = {}
    for event in events:
        if event["ph"] == "X":
            by_thread.setdefault(event["tid"], set()).add(event["name"])
    named = [names for names in by_thread.values() if "blocks.0.ln_1 LayerNorm.backward" in names]
    assert len(named) == 2
    assert all("GPT.forward" in names for names in named)


def test_ranges_of_many_threads_nest(rng, tmp_path):
    model = untied()
    with Threads(model, 4) as threads, trace(tmp_path / "t.json", model):
        data = batches(rng, model, batch=8, steps=20)
        optimizer = SGD(model, lr=0.1)
        for k, (x, targets) in enumerate(data):
            train_step(model, optimizer, [Part(0, (x,), targets)], 0, k, threads=threads)
    events = [e for e in json.loads((tmp_path / "t.json").read_text())["traceEvents"] if e["ph"] == "X"]
    assert sum(e["name"] == "layers.0 Linear.forward" for e in events) == 80


# ---------------------------------------------------------------------------------------------------- the rule


def test_threads_for():
    def options(**changes):
        return TrainingOptions(**{"threads": 2, "batch": 8, **changes}).complete()

    assert threads_for(untied(), options(), GRAIN) == 2
    assert threads_for(untied(), options(batch=8, threads=8), GRAIN) == 8
    assert threads_for(untied(), options(batch=8, threads=9), GRAIN) == 1
    assert threads_for(untied(), options(threads=1), GRAIN) == 1
    assert threads_for(untied(), options(batch=4, accumulate=4), GRAIN) == 1
    assert threads_for(untied(), options(backend="emulated"), GRAIN) == 1
    assert threads_for(Sequential(Linear(2, 2), BatchNorm(2)), options(), GRAIN) == 1
    assert threads_for(untied(), options(), GRAIN // 4) == 2  # four samples in a piece
    assert threads_for(untied(), options(), GRAIN // 4 - 1) == 1
    assert threads_for(untied(), options(), 0) == 1


def test_the_default_runs_take_what_is_faster():
    taken = {}
    for name, task in TASKS.items():
        if name in ("gpt", "feedforward"):  # the data of the others takes seconds
            config = task.default.with_training(threads=2).complete()
            made = task(config)
            taken[name] = threads_for(made.model, config.training, made.grain)
    assert taken == {"gpt": 2, "feedforward": 1}
