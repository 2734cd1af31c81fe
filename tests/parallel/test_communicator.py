"""Communicators of 1, 2 and 3 ranks; MPI that is not there; the calls of NCCL, held to CuPy's own."""

import builtins
import inspect

import numpy as np
import pytest
from ranks import needs_mpi

from gpulayers.cli import main
from gpulayers.emulator import cupy as emulated
from gpulayers.emulator import nccl as stand_in
from gpulayers.parallel import ALONE, Alone, Communicator, MPIMissing, ParallelError, end_together, leave, mpi, together
from gpulayers.parallel import nccl as ours
from gpulayers.remedies import INSTALL


def test_alone_every_sum_is_its_own():
    array = np.arange(3.0)
    for call in (ALONE.all_reduce, ALONE.broadcast):
        call(array)
        assert array.tolist() == [0, 1, 2]
    assert (ALONE.rank, ALONE.size, ALONE.local_rank, ALONE.local_size) == (0, 1, 0, 1)
    assert ALONE.gather(2.5).tolist() == [2.5]
    assert ALONE.gather_texts("é") == ["é"]
    assert ALONE.broadcast_text("x") == "x"
    with pytest.raises(ZeroDivisionError), together(ALONE):
        raise ZeroDivisionError
    with pytest.raises(SystemExit) as left:
        Alone().abort(7)
    assert left.value.code == 7
    end_together(Alone())
    leave(1)


def test_a_communicator_has_to_do_all_of_it():
    with pytest.raises(TypeError, match="abstract"):
        Communicator()  # pyright: ignore[reportAbstractUsage]


# ---------------------------------------------------------------------------------------------------- no MPI


@pytest.fixture
def fresh():
    mpi.connect.cache_clear()
    yield
    mpi.connect.cache_clear()


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (ModuleNotFoundError("No module named 'mpi4py'"), "--data-parallel needs mpi4py, which is not installed"),
        (RuntimeError("cannot load MPI library"), "mpi4py finds no MPI library (cannot load MPI library)"),
    ],
)
def test_mpi_missing_is_one_sentence_with_the_remedy(error, says, fresh, monkeypatch, capfd):
    real = builtins.__import__

    def refuse(name, *rest, **more):
        if name == "mpi4py":
            raise error
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(MPIMissing) as caught:
        mpi.connect()
    assert str(caught.value) == f"{says}: {INSTALL['mpi']}"


@needs_mpi
def test_another_mpis_mpiexec_is_noticed(fresh, monkeypatch):
    assert mpi.connect().size == 1
    mpi.connect.cache_clear()
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "4")
    with pytest.raises(ParallelError, match="mpiexec has started 4 processes, but MPI sees one"):
        mpi.connect()


# ---------------------------------------------------------------------------------------------------- NCCL


class Recorded:
    """Stands for NcclCommunicator, and keeps what it is called with."""

    calls: list[tuple] = []  # noqa: RUF012 cleared by the test

    def __init__(self, *args):
        self.calls.append(("NcclCommunicator", args))

    def __getattr__(self, name):
        return lambda *args: self.calls.append((name, args))


def calls_of(monkeypatch) -> list[tuple]:
    """(name, arguments) of all calls of NCCL that `NCCL` makes."""
    Recorded.calls = []
    monkeypatch.setattr(stand_in, "NcclCommunicator", Recorded)
    made = ours.NCCL(emulated, ALONE)
    for dtype in (np.float32, np.float64, np.float16):
        made.all_reduce(emulated.zeros(5, dtype))
    made.broadcast(emulated.zeros(5, np.float64), 0)
    return Recorded.calls


def test_the_arguments_of_the_calls(monkeypatch):
    made, *sums, copy = calls_of(monkeypatch)
    assert made[0] == "NcclCommunicator"
    size, identity, rank = made[1]
    assert (size, type(identity), len(identity), rank) == (1, bytes, 128, 0)
    assert [args[2:5] for _, args in sums] == [(5, 7, 0), (5, 8, 0), (5, 6, 0)]
    assert all(name == "allReduce" and args[0] == args[1] for name, args in sums)
    assert (copy[0], copy[1][2:5]) == ("broadcast", (40, 1, 0))
    with emulated.cuda.Stream() as stream:
        ours.NCCL(emulated, ALONE).all_reduce(emulated.zeros(1, np.float32))
    assert Recorded.calls[-1][1][5] == stream.ptr


def cupys_nccl():
    pytest.importorskip("cupy", reason="CuPy is not installed: the calls cannot be compared with its own")
    from gpulayers.cuda import import_nccl

    found = import_nccl(pytest.importorskip("cupy"))
    if not found.available:
        pytest.skip("CuPy finds no NCCL")
    return found


def declared(function) -> list[tuple[str, str]]:
    """(type, name) of a Cython function's parameters, from the first line of its docstring."""
    line = (function.__doc__ or "").strip().split("\n")[0]
    inside = line[line.index("(") + 1 : line.rindex(")")]
    pairs = [part.split("=")[0].split() for part in inside.split(",")]
    return [(pair[0], pair[-1]) for pair in pairs if pair[-1] != "self"]


def test_the_calls_fit_cupys_signatures(monkeypatch):
    theirs, kinds = cupys_nccl(), {"int": int, "intptr_t": int, "size_t": int, "bytes": bytes}
    for name, args in calls_of(monkeypatch):
        known = declared(
            theirs.NcclCommunicator if name == "NcclCommunicator" else getattr(theirs.NcclCommunicator, name)
        )
        assert len(args) in (len(known), len(known) - (known[-1][1] == "config"))
        for (kind, parameter), value in zip(known, args, strict=False):
            assert isinstance(value, kinds[kind]), (name, parameter)
    assert "bytes" in theirs.get_unique_id.__doc__


def test_the_stand_in_offers_what_cupy_has():
    theirs = cupys_nccl()
    for name in [name for name in vars(stand_in) if name.startswith("NCCL_")]:
        assert getattr(stand_in, name) == getattr(theirs, name), name
    for name, method in vars(stand_in.NcclCommunicator).items():
        if not name.startswith("_"):
            mine = [one for one in inspect.signature(method).parameters if one != "self"]
            assert mine == [parameter for _, parameter in declared(getattr(theirs.NcclCommunicator, name))]
    mine = [one for one in inspect.signature(stand_in.NcclCommunicator.__init__).parameters if one != "self"]
    assert mine == [parameter for _, parameter in declared(theirs.NcclCommunicator)]


def test_the_stand_in_checks_memory_and_arguments():
    array = emulated.zeros(5, np.float32)
    assert stand_in.memory(array.data.ptr, 5, stand_in.NCCL_FLOAT32).tolist() == [0] * 5
    with pytest.raises(stand_in.NcclError, match="not in device memory"):
        stand_in.memory(array.data.ptr, 6, stand_in.NCCL_FLOAT32)
    with pytest.raises(stand_in.NcclError, match="not in device memory"):
        stand_in.memory(np.zeros(5).ctypes.data, 5, stand_in.NCCL_FLOAT32)


@needs_mpi
@pytest.mark.parametrize("identity", [(0,) * 128, b"short"])
def test_the_stand_in_refuses_another_id(identity):
    with pytest.raises((TypeError, stand_in.NcclError), match=r"expected bytes, got tuple|5 bytes, not 128"):
        stand_in.NcclCommunicator(1, identity, 0)


def test_nccl_missing_is_one_sentence_with_the_remedy(monkeypatch):
    monkeypatch.setattr(stand_in, "available", False)
    with pytest.raises(ParallelError) as caught:
        ours.NCCL(emulated, ALONE)
    assert str(caught.value).startswith("several GPUs need NCCL, which CuPy cannot load: pip install 'nvidia-nccl-cu1")


def test_ranks_do_not_share_a_gpu(monkeypatch):
    class Two(Alone):
        def __init__(self, texts):
            super().__init__()
            self.size = self.local_size = 2
            self.texts = texts

        def gather_texts(self, text):
            return [text, text] if text == "" or text.startswith("ParallelError") else self.texts

    runtime = emulated.cuda.runtime
    monkeypatch.setattr(runtime, "deviceGetPCIBusId", lambda device: "0000:01:00.0", raising=False)
    ours.use_own_gpu(emulated, Two(["a, 1", "a, 2"]))
    ours.use_own_gpu(emulated, Two(["a, 1", "b, 1"]))
    with pytest.raises(ParallelError, match="2 ranks have 1 GPUs between them"):
        ours.use_own_gpu(emulated, Two(["a, 1", "a, 1"]))


def test_the_command_says_it_too(fresh, monkeypatch, capfd):
    monkeypatch.setattr(mpi, "import_mpi", lambda: (_ for _ in ()).throw(MPIMissing("no MPI: install it")))
    assert main(["train", "--data-parallel", "--tiny"]) == 2
    assert capfd.readouterr().err == "gpulayers: error: no MPI: install it\n"
