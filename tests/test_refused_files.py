"""A file that is refused changes nothing in memory, an older checkpoint is still offered, and nothing is executed."""

import ast
import json
import shutil
import struct
import sys
from pathlib import Path

import numpy as np
import pytest
from tiny_run import assert_same_run, last_checkpoint, words

import gpulayers
from gpulayers.cli import main
from gpulayers.layers import BatchNorm, Linear
from gpulayers.models import gpt
from gpulayers.models.gpt import GPT, GPTConfig
from gpulayers.optim import AdamW
from gpulayers.storage import FileError, load_tensors, save_tensors
from gpulayers.training import loop
from gpulayers.training.checkpoint import load_checkpoint, save_checkpoint
from gpulayers.training.run import open_saved, restore, resume

PACKAGE = Path(gpulayers.__file__).parent


@pytest.fixture(autouse=True)
def no_picture(monkeypatch):
    monkeypatch.setattr(loop, "plot_loss", lambda *_, **__: None)


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """The folder of a run that nothing happened to."""
    folder = tmp_path_factory.mktemp("straight") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "plot_loss", lambda *_, **__: None)
        assert main(words(folder)) == 0
    return folder


# ---------------------------------------------------------------------------------------------------- one file


def edited(content: bytes, change) -> bytes:
    """The file with another header: `change` gets it and may change it in place."""
    end = 8 + struct.unpack("<Q", content[:8])[0]
    header = json.loads(content[8:end])
    change(header)
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + content[end:]


def of(name: str, **entry):
    return lambda content: edited(content, lambda header: header[name].update(entry))


def poisoned(value: float):
    def poison(content: bytes) -> bytes:
        """NaN in the last tensor, and no checksums: as another program would have written it."""
        content = edited(content, lambda header: header.pop("__metadata__"))
        return content[:-4] + struct.pack("<f", value)

    return poison


BROKEN = {
    "empty": lambda content: b"",
    "cut in the length": lambda content: content[:5],
    "cut in the header": lambda content: content[:40],
    "cut in the middle of a tensor": lambda content: content[:-6],
    "cut between two tensors": lambda content: content[:-24],
    "longer than it says": lambda content: content + bytes(4),
    "absurd header length": lambda content: struct.pack("<Q", 1 << 62) + content[8:],
    "header longer than the file": lambda content: struct.pack("<Q", len(content)) + content[8:],
    "overlapping": of("1.weight", data_offsets=[0, 24]),
    "out of range": of("1.weight", data_offsets=[1 << 40, (1 << 40) + 24]),
    "backwards": of("1.weight", data_offsets=[24, 0]),
    "another shape": of("1.weight", shape=[3, 2]),
    "another dtype": of("1.weight", dtype="I32"),
    "half the dtype": of("1.weight", dtype="F16"),
    "another name": lambda content: content.replace(b"1.weight", b"1.wright"),
    "a flipped bit": lambda content: content[:-1] + bytes([content[-1] ^ 64]),
    "NaN": poisoned(np.nan),
    "infinity": poisoned(-np.inf),
}


class Net(gpulayers.Layer):
    def __init__(self, seed: int) -> None:
        setattr(self, "0", Linear(3, 2, rng=seed))
        setattr(self, "1", Linear(2, 3, rng=seed + 1))
        self.norm = BatchNorm(2)


def bits(*holders) -> dict[str, bytes]:
    return {f"{i}.{name}": array.tobytes() for i, h in enumerate(holders) for name, array in h.state_dict().items()}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_refused_file_changes_nothing(kind, tmp_path):
    path = tmp_path / "net.safetensors"
    Net(0).save(path)
    model = Net(5)
    model.load(path)
    path.write_bytes(BROKEN[kind](path.read_bytes()))
    model = Net(5)
    optimizer, before = AdamW(model), bits(model)
    for strict in (True, False):
        if kind == "another name" and not strict:  # it passes over such
            continue
        with pytest.raises(FileError, match=r"net\.safetensors") as caught:
            model.load(path, strict=strict)
        assert "\n" not in str(caught.value)
        assert bits(model) == before
    assert not any(array.any() for name, array in optimizer.state_dict().items() if name[:2] in ("m.", "v."))


@pytest.mark.parametrize("spoilt", ["1.weight", "norm.running_var", "norm.num_batches_tracked"])
@pytest.mark.parametrize(
    "value", [np.zeros((9, 9)), np.zeros((), "U3"), [[1, [2]]], "text", None, np.zeros((2, 3), complex)]
)
def test_a_refused_state_changes_nothing(spoilt, value):
    """In whatever place of the state it is: what comes before is not loaded."""
    model, state = Net(0), Net(1).state_dict()
    before, state[spoilt] = bits(model), value
    with pytest.raises(ValueError, match=r"load_state_dict|inhomogeneous"):
        model.load_state_dict(state)
    assert bits(model) == before


@pytest.mark.parametrize("spoilt", ["model.0.weight", "m.1.weight", "v.norm.bias", "optimizer.applied"])
@pytest.mark.parametrize("how", ["missing", "shape", "dtype"])
def test_a_refused_checkpoint_changes_neither_model_nor_optimizer(spoilt, how, tmp_path):
    other, model = Net(1), Net(0)
    tensors = {f"model.{n}": a for n, a in other.state_dict().items()} | AdamW(other).state_dict()
    optimizer = AdamW(model)
    before = bits(model, optimizer)
    if how == "missing":
        del tensors[spoilt]
    else:
        tensors[spoilt] = np.zeros((9, 9)) if how == "shape" else np.zeros(tensors[spoilt].shape, bool)
    with pytest.raises(FileError, match=r"x is a checkpoint of another model: "):
        restore(tmp_path / "x", tensors, model, optimizer)
    assert bits(model, optimizer) == before


# ---------------------------------------------------------------------------------------------------- a run


@pytest.mark.parametrize("how", ["another model", "NaN", "cut", "another vocabulary", "no config", "too large"])
def test_the_older_checkpoint_is_offered(how, straight, tmp_path):
    shutil.copytree(straight, tmp_path / "run")
    last_checkpoint(tmp_path / "run").unlink()  # that of step 12, the end
    newest = last_checkpoint(tmp_path / "run")
    tensors, metadata = load_checkpoint(newest)
    match how:
        case "another model":
            tensors = {name: array[:1] if array.ndim == 2 else array for name, array in tensors.items()}
        case "NaN":
            tensors["model.ln_f.weight"][3] = np.nan
        case "another vocabulary":
            metadata["data_digest"] = 7
        case "no config":
            del metadata["config"]
        case "too large":
            metadata["config"]["model"].update(dim=2**20, layers=10_000)
    save_checkpoint(tmp_path / "run", 10, tensors, metadata)
    if how == "cut":
        newest.write_bytes(newest.read_bytes()[:-1])
    said: list[str] = []
    trainer = resume(tmp_path / "run", warn=said.append)
    assert trainer.step == 8
    assert len(said) == 1
    assert said[0].startswith(f"{newest} ")
    assert said[0].endswith("; passed over")
    trainer.run()
    assert_same_run(straight, tmp_path / "run")


def test_a_broken_best_one_gives_way_to_the_last(straight, tmp_path):
    shutil.copytree(straight, tmp_path / "run")
    best = tmp_path / "run" / "checkpoint-best.safetensors"
    best.write_bytes(best.read_bytes()[:-9])
    said: list[str] = []
    assert open_saved(tmp_path / "run", warn=said.append).step == 12
    assert len(said) == 1
    assert f"{best} is not a whole safetensors file" in said[0]
    for run, checkpoint in ((best, None), (tmp_path / "run", "best")):  # asked for by name
        with pytest.raises(FileError, match="checkpoint-best"):
            open_saved(run, checkpoint)


def test_a_folder_removed_while_a_run_goes_on_is_one_sentence(tmp_path, capfd, monkeypatch):
    advance = loop.Trainer._advance

    def and_remove(self):
        if self.step == 5:
            shutil.rmtree(self.folder)
        advance(self)

    monkeypatch.setattr(loop.Trainer, "_advance", and_remove)
    assert main(words(tmp_path / "run")) == 2
    said = [line for line in capfd.readouterr().err.splitlines() if line.startswith("gpulayers: error:")]
    assert said == [
        f"gpulayers: error: cannot write {tmp_path}/run/checkpoint-00000006.safetensors: No such file or directory"
    ]
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("room", [0, 400, 3000])
def test_a_disk_that_is_full_while_a_run_goes_on(room, straight, tmp_path, capsys, monkeypatch):
    """No file may grow beyond so many bytes any more: a line of metrics, the second file, a checkpoint."""
    resource = pytest.importorskip("resource")
    advance, limits = loop.Trainer._advance, resource.getrlimit(resource.RLIMIT_FSIZE)

    def and_fill(self):
        if self.step == 5:
            resource.setrlimit(resource.RLIMIT_FSIZE, (room, limits[1]))
        advance(self)

    monkeypatch.setattr(loop.Trainer, "_advance", and_fill)
    try:
        status = main(words(tmp_path / "run", data=straight.parent / "beer.txt"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    monkeypatch.setattr(loop.Trainer, "_advance", advance)
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("gpulayers: error:")]
    assert status == 2
    assert len(said) == 1
    assert ": File too large" in said[0]
    assert not list((tmp_path / "run").glob(".*"))
    assert main(["train", "--resume", str(tmp_path / "run")]) == 0
    assert_same_run(straight, tmp_path / "run")


@pytest.mark.parametrize("sizes", [{"dim": 2**31}, {"vocab": 2**40}, {"layers": 10**9}, {"context": 2**50}])
def test_the_sizes_in_a_file_allocate_no_more_than_the_file(sizes, tmp_path):
    path = tmp_path / "gpt"
    GPT(GPTConfig(vocab=5, context=4, layers=1, heads=1, dim=2)).save(path)
    tensors, metadata = load_tensors(path)
    save_tensors(path, tensors, {"gpt_config": json.dumps(json.loads(metadata["gpt_config"]) | sizes)})
    with pytest.raises(FileError, match=r"does not hold a whole GPT: a parameter of shape .* is more than the file"):
        gpt.load(path)


# ---------------------------------------------------------------------------------------------------- data is data

NAMES = ("../../x", "/tmp/absolute", "a\0b", "..", ".", "C:\\x", "x/" * 50, "", "%s{0}$(touch x)", "__class__")


def test_names_in_a_file_are_never_paths(tmp_path):
    """Of tensors and in the metadata; nothing but the file itself is opened, and nothing is written."""
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    path = inner / "checkpoint-00000001.safetensors"
    tensors = {f"{prefix}{name}": np.ones(2, np.float32) for name in NAMES for prefix in ("", "model.", "m.")}
    texts = {"format": "gpulayers checkpoint", "version": 1, "step": 1, "config": "../../x", "tokenizer": "/etc/passwd"}
    save_tensors(path, tensors, {key: json.dumps(value) for key, value in texts.items()} | {n: n for n in NAMES if n})
    opened = watch_opens()
    loaded, _ = load_tensors(path)
    assert loaded.keys() == tensors.keys()
    with pytest.raises(FileError):
        Net(0).load(path)
    for reader in (load_checkpoint, open_saved, lambda p: resume(p.parent, warn=lambda _: None)):
        with pytest.raises(FileError):
            reader(path)
    own = (sys.prefix, sys.base_prefix, str(PACKAGE), "/proc/self/", "/sys/")  # of Python, and to count cores
    outside = {name for name in opened if not name.startswith(own)}
    assert outside <= {str(path), str(inner)}
    assert [p for p in tmp_path.rglob("*") if p.is_file()] == [path]


_opened: list[list[str]] = []


def watch_opens() -> list[str]:
    """Names of all files that are opened from now on. A hook of this kind cannot be taken away: there is one."""
    if not _opened:
        sys.addaudithook(lambda event, args: _opened[-1].append(str(args[0])) if event == "open" and _opened else None)
    _opened.append([])
    return _opened[-1]


FORBIDDEN_MODULES = {
    "pickle",
    "cPickle",
    "_pickle",
    "dill",
    "cloudpickle",
    "joblib",
    "marshal",
    "shelve",
    "yaml",
    "code",
}
FORBIDDEN_CALLS = {"eval", "exec", "compile", "__import__", "input"}
IMPORTS_BY_NAME = {"__init__.py", "verify/discover.py"}  # the modules of their own package, which they list
STARTS_PROGRAMS = {  # what they start is written down in them, or is the command of the person who called them
    "doctor/machine.py",
    "profiling/nsight.py",
}


def test_nothing_is_executed_from_data():
    """No module that runs code out of a file, no builtin that runs a text, no shell, no array of objects."""
    found = {}
    for file in sorted(PACKAGE.rglob("*.py")):
        name, text = file.relative_to(PACKAGE).as_posix(), file.read_text(encoding="utf-8")
        faults = [fault for node in ast.walk(ast.parse(text)) for fault in faults_of(node)]
        if name in IMPORTS_BY_NAME:
            faults = [fault for fault in faults if "import_module" not in fault]
        if "subprocess" in text and name not in STARTS_PROGRAMS:
            faults.append("subprocess")
        if faults:
            found[name] = faults
    assert not found


def faults_of(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names if alias.name.split(".")[0] in FORBIDDEN_MODULES]
    if isinstance(node, ast.ImportFrom):
        return [str(node.module)] if (node.module or "").split(".")[0] in FORBIDDEN_MODULES else []
    return faults_of_a_call(node) if isinstance(node, ast.Call) else []


def faults_of_a_call(node: ast.Call) -> list[str]:
    name = ast.unparse(node.func)
    given = {keyword.arg: keyword.value for keyword in node.keywords}
    faults = []
    if name in FORBIDDEN_CALLS or name in ("os.system", "os.popen", "os.execv", "np.fromregex"):
        faults.append(name)
    if name.endswith("import_module") and not (node.args and isinstance(node.args[0], ast.Constant)):
        faults.append(f"{name} of a name that is not written there")
    if "shell" in given:
        faults.append("shell=")
    if name in ("np.load", "numpy.load"):
        allowed = given.get("allow_pickle")
        if not (isinstance(allowed, ast.Constant) and allowed.value is False):
            faults.append("np.load without allow_pickle=False")
    if isinstance(allowed := given.get("allow_pickle"), ast.Constant) and allowed.value:
        faults.append("allow_pickle=True")
    return faults


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("eval(x)", "eval"),
        ("np.load(x)", "np.load without allow_pickle=False"),
        ("f(allow_pickle=True)", "allow_pickle=True"),
        ("importlib.import_module(name)", "importlib.import_module of a name that is not written there"),
        ("run(x, shell=flag)", "shell="),
    ],
)
def test_the_search_finds_what_it_looks_for(text, fault):
    node = ast.parse(text, mode="eval").body
    assert isinstance(node, ast.Call)
    assert faults_of_a_call(node) == [fault]
