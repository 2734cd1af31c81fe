"""docs/reported-cases.md names tests that are there; and of each kind of fault, one look over all of the library."""

import ast
import re
from pathlib import Path

import numpy as np
import pytest

import gpulayers as gl
from gpulayers.models.gpt import GPT, GPTConfig
from gpulayers.models.seq2seq import Seq2Seq, Seq2SeqConfig
from gpulayers.models.transformer import Transformer, TransformerConfig
from gpulayers.verify.case import Arg, OpCase
from gpulayers.verify.certificate import collect

TOP = Path(__file__).parents[1]
PAGE = TOP / "docs" / "reported-cases.md"
OPS = {case.op.name: case for case in reversed(collect(quick=True)) if isinstance(case, OpCase) and case.args}


def table() -> dict[str, str]:
    """case -> its line of the page."""
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    return {found[1]: line for line in lines if (found := re.match(r"\| (H\d\d) \|", line))}


def functions(file: str) -> set[str]:
    tree = ast.parse((TOP / "tests" / file).read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def test_every_case_names_tests_that_are_there():
    cases = table()
    assert list(cases) == [f"H{number:02}" for number in range(1, 27)]
    for case, line in cases.items():
        named = re.findall(r"`([\w/]+\.py)::(\w+)`", line)
        assert named, case
        for file, function in named:
            assert function in functions(file), f"{case}: {file} has no {function}"


# ---------------------------------------------------------------------------------------------------- the kinds

X = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
NONE = np.full(3, -100)
NOTHING_COUNTED = {
    "cross_entropy": lambda **o: gl.cross_entropy(X, NONE, **o),
    "cross_entropy, every option": lambda **o: gl.cross_entropy(X, NONE, label_smoothing=0.1, z_loss=0.1, **o),
    "cross_entropy, weight 0": lambda **o: gl.cross_entropy(X, np.zeros(3, int), weight=np.zeros(4, np.float32), **o),
    "cross_entropy, no row": lambda **o: gl.cross_entropy(X[:0], NONE[:0], **o),
    "nll_loss": lambda **o: gl.nll_loss(X, NONE, **o),
    "nll_loss, weight 0": lambda **o: gl.nll_loss(X, np.zeros(3, int), weight=np.zeros(4, np.float32), **o),
    "mse_loss, nothing": lambda **o: gl.mse_loss(X[:0], X[:0], **o),
    "l1_loss, nothing": lambda **o: gl.l1_loss(X[:0], X[:0], **o),
    "huber_loss, nothing": lambda **o: gl.huber_loss(X[:0], X[:0], **o),
    "kl_div, nothing": lambda **o: gl.kl_div(X[:0], X[:0], **o),
    "binary_cross_entropy_with_logits, nothing": lambda **o: gl.binary_cross_entropy_with_logits(X[:0], X[:0], **o),
    "hinge_embedding_loss, nothing": lambda **o: gl.hinge_embedding_loss(X[:0], np.ones((0, 4), int), **o),
}


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("name", NOTHING_COUNTED)
def test_h01_a_loss_of_nothing_is_0_and_so_is_its_gradient(name, reduction):
    loss, gradient = NOTHING_COUNTED[name](reduction=reduction)
    assert float(loss) == 0
    assert not gradient.any()


BAD = np.array([[0, 1, 7], [2, 0, 1]])
TAKES_IDS = {
    "Embedding": lambda ids: gl.Embedding(5, 2)(ids),
    "cross_entropy": lambda ids: gl.cross_entropy(np.zeros((2, 3, 5), np.float32), ids, axis=-1),
    "nll_loss": lambda ids: gl.nll_loss(np.zeros((6, 5), np.float32), ids.reshape(-1)),
    "one_hot": lambda ids: gl.one_hot(ids, 5),
    "GPT": lambda ids: GPT(GPTConfig(vocab=5, context=4, layers=1, heads=1, dim=2))(ids),
    "Transformer, source": lambda ids: Transformer(TransformerConfig(5, 5, dim=2, heads=1, layers=1))(
        ids, abs(ids) % 5
    ),
    "Transformer, target": lambda ids: Transformer(TransformerConfig(5, 5, dim=2, heads=1, layers=1))(
        abs(ids) % 5, ids
    ),
    "Seq2Seq, source": lambda ids: Seq2Seq(Seq2SeqConfig(5, 5, dim=2, hidden=2))(ids, abs(ids) % 5),
    "Seq2Seq, target": lambda ids: Seq2Seq(Seq2SeqConfig(5, 5, dim=2, hidden=2))(abs(ids) % 5, ids),
}


@pytest.mark.parametrize("value", [7, 5, -1, -101, 2**31, -(2**40)])
@pytest.mark.parametrize("name", TAKES_IDS)
def test_h02_an_id_out_of_range_is_named_by_whatever_takes_ids(name, value):
    with pytest.raises(ValueError, match=rf"(?<!\d){value}(?!\d)"):
        TAKES_IDS[name](np.where(BAD == 7, value, BAD))


def arrays_of(case: OpCase) -> list[tuple[int, np.ndarray]]:
    """(position, array) of the plain floating inputs of a call; those with a layout or a type of their own are left."""
    return [(i, a) for i, a in enumerate(case.args) if isinstance(a, np.ndarray) and a.dtype.kind == "f" and a.ndim]


def plain(value):
    if not isinstance(value, Arg):
        return value
    array = value.array.copy() if value.written else value.array
    return array if value.view is None else value.view(array)


def results(case: OpCase, args) -> list[np.ndarray]:
    y = case.op(*args, **{name: plain(value) for name, value in case.options.items()})
    written = [a for a, given in zip(args, case.args, strict=True) if isinstance(given, Arg) and given.written]
    return [a for a in (*(y if isinstance(y, tuple) else (y,)), *written) if isinstance(a, np.ndarray)]


def spread(array: np.ndarray) -> np.ndarray:
    """The same values with a gap behind each."""
    wide = np.full((*array.shape[:-1], 2 * array.shape[-1]), 1e30, array.dtype)
    wide[..., ::2] = array
    return wide[..., ::2]


def turned(array: np.ndarray) -> np.ndarray:
    """The same values in the order of another axis."""
    return np.ascontiguousarray(np.swapaxes(array, 0, -1)).swapaxes(0, -1)


def backwards(array: np.ndarray) -> np.ndarray:
    """The same values behind negative strides."""
    return array[..., ::-1].copy()[..., ::-1]


FLAT = {  # arguments in flat memory, which has one layout
    *("adam", "adafactor", "lion", "sgd", "rmsprop", "adagrad", "adadelta", "rprop", "asgd", "update_control"),
}


@pytest.mark.parametrize("layout", [spread, turned, backwards])
@pytest.mark.parametrize("name", [name for name, case in OPS.items() if arrays_of(case) and name not in FLAT])
def test_h09_every_op_reads_views_by_their_strides(name, layout):
    case = OPS[name]
    wanted = results(case, [plain(a) for a in case.args])
    views = {i: layout(a) for i, a in arrays_of(case)}
    found = results(case, [views.get(i, plain(a)) for i, a in enumerate(case.args)])
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", [n for n, c in OPS.items() if sum(isinstance(a, np.ndarray) for a in c.args) > 1])
def test_h25_no_op_takes_arrays_of_two_devices(name):
    case = OPS[name]
    first = next(i for i, a in enumerate(case.args) if isinstance(a, np.ndarray))
    args = [gl.to_device(a, "emulated") if i == first else plain(a) for i, a in enumerate(case.args)]
    with pytest.raises(TypeError, match=r"numpy|emulated|cupy"):
        case.op(*args, **{key: plain(value) for key, value in case.options.items()})


WRITERS = {  # the only files that open one to write
    "storage.py",  # beside it, flushed, renamed
    "training/metrics.py",  # appends whole lines
}


def test_h24_nothing_writes_over_a_file_in_place():
    found = []
    for file in sorted((TOP / "gpulayers").rglob("*.py")):
        name = file.relative_to(TOP / "gpulayers").as_posix()
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and name not in WRITERS and writes(node):
                found.append(f"{name}: {ast.unparse(node)}")
    assert not found


def writes(call: ast.Call) -> bool:
    name = ast.unparse(call.func)
    if name.endswith((".write_text", ".write_bytes", "np.save", "np.savez", ".savefig", ".tofile")):
        return not any("io" in ast.unparse(argument).lower() for argument in call.args)
    if name != "open" and not name.endswith(".open"):
        return False
    if any("devnull" in ast.unparse(argument) for argument in call.args):
        return False
    modes = [a.value for a in (*call.args, *(k.value for k in call.keywords)) if isinstance(a, ast.Constant)]
    return any(
        isinstance(mode, str) and re.fullmatch(r"[rwxab+t]{1,3}", mode) and set(mode) & set("wxa+") for mode in modes
    )
