"""`python -m bench.generate` on its tiny case: every phase is compared with float64, timed and judged."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gpulayers.models.gpt import GPT, GPTConfig

sys.path.append(str(Path(__file__).resolve().parents[2]))  # bench is not installed; it is run from the repository

from bench import generate, generate_ours
from bench.generate_case import CASES, parameters, read_ids
from bench.machine import read_bandwidth

TINY = CASES["tiny"]


def test_a_whole_run(tmp_path, capsys, monkeypatch):
    ceilings = {"read": 1e10, "flops": 1e10}
    monkeypatch.setattr(generate, "_ceilings", lambda threads, clock: ceilings)  # a second each
    path = tmp_path / "found.json"
    words = ["--case", "tiny", "--quick", "--threads", "1", "--clock", "cpu", "--json", str(path)]
    generate.main([*words, "--variants", "gpulayers", "--phases", *generate.PHASES])
    out = capsys.readouterr().out
    assert "floor: 0 MB of weights, keys and values a token" in out
    found = json.loads(path.read_text())
    assert list(found["phases"]) == ["prefill", "decode", "uncached", "generate"]
    for phase, its in found["phases"].items():
        variant = its["variants"]["gpulayers"]
        assert variant["tokens_per_second"] == pytest.approx(generate.count(phase, TINY) / variant["seconds"])
        assert variant["seconds"] > its["floor_seconds"] > 0
        assert variant["error"] <= generate.TOLERANCE


def test_all_phases_end_at_the_same_logits():
    sizes = list(TINY)
    whole = generate_ours.make("uncached", sizes, 1, "float64").facts["logits"]
    decoded = generate_ours.make("decode", sizes, 1, "float64")
    assert np.allclose(decoded.facts["logits"], whole, rtol=0, atol=1e-12)
    assert np.allclose(decoded.run(), decoded.run())  # a step starts from the prompt each time


def test_wrong_logits_are_not_timed():
    worker: Any = SimpleNamespace(ask=lambda *words, **options: {"logits": [1.0, 2.001]})
    expected = {"logits": [1.0, 2.0], "largest": 2.0}
    with pytest.raises(
        SystemExit, match=r"gpulayers, prefill: logits are 5\.0e-04 of the largest off float64: not timed"
    ):
        generate._load(worker, "gpulayers", "prefill", TINY, 1, expected)
    assert (
        generate._load(worker, "gpulayers", "generate", TINY, 1, expected)["error"] == 0.5
    )  # ids: how many are others


def test_what_is_counted():
    """The weights that a token meets, and the operations of the prompt's products, of the model itself."""
    names = parameters(TINY)
    model = GPT(GPTConfig(TINY.vocab, TINY.context, TINY.layers, TINY.heads, TINY.dim))
    assert set(names) == {name for name, _ in model.named_parameters()}
    matrices = sum(p.size for name, p in names.items() if p.ndim == 2 and name != "wpe.weight")
    assert TINY.weights == matrices
    assert CASES["gpt2"].weights == 123_532_032
    assert CASES["gpt2"].bytes_read == pytest.approx(505e6, rel=0.01)
    assert len(read_ids(TINY)) == TINY.prompt + TINY.tokens
    blocks = matrices - names["wte.weight"].size
    attention = 2 * 2 * TINY.layers * TINY.prompt**2 * TINY.dim
    assert TINY.prefill_flops == 2 * (TINY.prompt * blocks + TINY.vocab * TINY.dim) + attention


def test_bandwidth_is_of_this_world():
    assert 1e8 < read_bandwidth(1 << 22, 0.01) < 1e13
