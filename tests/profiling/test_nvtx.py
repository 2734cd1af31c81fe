import sys
import types

import pytest

import gpulayers as gl
from gpulayers.profiling.nvtx_ranges import NVTX, NVTXMissing
from gpulayers.profiling.ranges import Ranges


class Domain:
    """What the nvtx package's Domain offers, as far as it is used."""

    def __init__(self) -> None:
        self.open, self.log = [], []

    def get_event_attributes(self, message=None, color=None, category=None, payload=None):
        return (message, payload)

    def push_range(self, attributes):
        self.open.append(attributes)
        self.log.append(attributes)

    def pop_range(self):
        self.open.pop()


@pytest.fixture
def domain(monkeypatch):
    domains = {}
    module = types.ModuleType("nvtx")
    module.get_domain = lambda name: domains.setdefault(name, Domain())
    monkeypatch.setitem(sys.modules, "nvtx", module)
    return lambda: domains["gpulayers"]


def test_ranges_go_to_the_domain(run, domain):
    with Ranges(NVTX(), run.model, run.optimizer) as ranges, ranges.range("step"):
        run.step()
    assert domain().open == []
    assert domain().log[:3] == [("step", None), ("GPT.forward", None), ("wte Embedding.forward", None)]


def test_launch_carries_its_bytes(run_on, domain):
    run = run_on("emulated")
    x = run.model.wte.weight.data
    with Ranges(NVTX(), run.model):
        run.model.ln_f.forward(x)
    assert domain().log[-1] == ("launch layernorm", 4 * (2 * x.size + 2 * len(x) + 2 * x.shape[1]))


def test_exception_pops(run, domain):
    with pytest.raises(ValueError, match="ids of shape"), Ranges(NVTX(), run.model):
        run.model.forward(run.ids[0])
    assert domain().open == []


def test_without_the_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "nvtx", None)
    with pytest.raises(NVTXMissing, match=r"pip install 'nvtx>="):
        NVTX()


def test_with_the_package(run):
    pytest.importorskip("nvtx")
    with Ranges(NVTX(), run.model, run.optimizer):
        run.step()
    assert gl.GPT.forward.__name__ == "forward"
