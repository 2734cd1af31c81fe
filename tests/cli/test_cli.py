import os
import tomllib

import pytest
from tiny_run import TEXT, assert_same_run, lines, words

import gpulayers
from gpulayers.cli import main, parse
from gpulayers.cli.train import config_from
from gpulayers.storage import load_tensors, only_writer
from gpulayers.training import loop
from gpulayers.training.checkpoint import load_checkpoint
from gpulayers.training.options import fields, flag
from gpulayers.training.tasks import DEFAULTS, TASKS


def run(capfd, *arguments, status=0):
    """(stdout, stderr) of a command that must leave with this status."""
    assert main([str(a) for a in arguments]) == status
    return capfd.readouterr()


def sentence(capfd, *arguments, status=2):
    """The one line that a command complains with."""
    error = run(capfd, *arguments, status=status).err
    assert error.startswith("gpulayers: error: ")
    assert error.count("\n") == 1
    return error


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run folder, finished."""
    folder = tmp_path_factory.mktemp("trained") / "run"
    assert main(words(folder, steps=6, sample_every=0, save_every=0)) == 0
    return folder


@pytest.fixture
def no_picture(monkeypatch):
    monkeypatch.setattr(loop, "plot_loss", lambda *_, **__: None)


# ---------------------------------------------------------------------------------------------------- help


def test_version(capfd):
    with pytest.raises(SystemExit, match="0"):
        main(["--version"])
    assert capfd.readouterr().out == f"gpulayers {gpulayers.__version__}\n"


def test_no_command_prints_help(capfd):
    out = run(capfd).out
    assert all(command in out for command in ("train", "generate", "evaluate"))


@pytest.mark.parametrize("task", TASKS)
def test_help_names_every_option_with_its_default(task, capfd):
    from gpulayers.training.config import TABLES

    with pytest.raises(SystemExit, match="0"):
        main(["train", task, "--help"])
    text = " ".join(capfd.readouterr().out.split())
    for title in TABLES:
        for field in fields(getattr(DEFAULTS[task], title)).values():
            assert f"{flag(field)} " in text or f"{flag(field)}," in text
    assert text.count("(default: ") >= 30
    assert " ".join(TASKS[task].about.split()) in text
    assert "%" not in text


@pytest.mark.parametrize("command", ["generate", "evaluate", "export"])
def test_help_of_the_other_commands(command, capfd):
    with pytest.raises(SystemExit, match="0"):
        main([command, "--help"])
    assert "--checkpoint best|last|FILE" in capfd.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["trian"], "unknown command 'trian'; did you mean train?"),
        (["--nothing"], "unknown option --nothing"),
        (["train", "--leyers", "3"], "unknown option --leyers; did you mean --layers?"),
        (["train", "--leyers=3"], "unknown option --leyers; did you mean --layers?"),
        (["train", "--lay", "3"], "unknown option --lay"),
        (["train", "gtp"], "unknown task 'gtp'; did you mean gpt?"),
        (["train", "gtp", "--patch", "3"], "unknown task 'gtp'; did you mean gpt?"),
        (["train", "xxxx"], "unknown task 'xxxx'; choose from gpt"),
        (["train", "--layers"], "argument --layers: expected one argument"),
        (["train", "--layers", "x"], "--layers takes a whole number, got 'x'"),
        (["train", "--layers", "1.5"], "--layers takes a whole number, got '1.5'"),
        (["train", "--lr", "fast"], "--lr takes a number, got 'fast'"),
        (["train", "--lr", "nan"], "--lr takes a finite number, got nan"),
        (["train", "--lr", "-1"], "--lr must be at least 0 and at most 1e+30, got -1.0"),
        (["train", "--dropout", "1"], "--dropout must be at least 0 and below 1, got 1.0"),
        (["train", "--steps", "-1"], "--steps must be at least 0, got -1"),
        (
            ["train", "--steps", "1000000000"],
            "schedule_steps (by default steps) must be at most 10000000, got 1000000000",
        ),
        (["train", "--schedule", "constant", "--warmup", "20000000", "--steps", "30000000"], "warmup must be at most"),
        (["train", "--threads", "9" * 20], "--threads must be at least 1 and at most 4096, got"),
        (["train", "--layers", "9" * 20], "--layers must be at least 1 and at most 10000, got"),
        (["train", "--batch", "9" * 20], "--batch must be at least 1 and at most 2147483647, got"),
        (["train", "--dim", "9" * 20], "--dim must be at least 1 and at most 1048576, got"),
        (["train", "--lr", "1e300"], "--lr must be at least 0 and at most 1e+30, got 1e+300"),
        (["train", "--resume", "a" * 5000], "File name too long: aaa"),
        (["generate", "a" * 5000], "File name too long: aaa"),
        (["verify", "--json", "", "add"], "it is a folder"),
        (["train", "--threads", "0"], "--threads must be at least 1 and at most 4096, got 0"),
        (["train", "--schedule", "cosin"], "--schedule must be one of constant, linear, cosine, step,"),
        (["train", "--heads", "3", "--dim", "128"], "heads must divide dim, got 3 heads and dim 128"),
        (["train", "--dtype", "float16"], "dtype float16 needs a GPU: choose float32"),
        (["train", "--backend", "cuda"], "--backend must be one of numpy, cupy, emulated, got 'cuda'"),
        (["train", "--config", "nothing.toml"], "cannot read nothing.toml: No such file"),
        (["train", "--data", "nothing.txt"], "nothing.txt does not exist"),
        (["train", "--resume", "nothing"], "nothing does not exist"),
        (
            ["train", "--resume", "nothing", "--lr", "1", "--out", "a"],
            "takes only --steps, --backend, --threads, --trace and --data-parallel, not",
        ),
        (["generate"], "the following arguments are required: RUN"),
        (["generate", "nothing"], "nothing does not exist; give a run folder or a checkpoint file"),
        (["generate", "nothing", "--tokens", "-1"], "--tokens must be at least 0, got -1"),
        (["generate", "nothing", "--top-k", "0"], "--top-k must be at least 1, got 0"),
        (["generate", "nothing", "--top-p", "0"], "--top-p must be above 0 and at most 1, got 0.0"),
        (["generate", "nothing", "--temperature", "-1"], "--temperature must be at least 0, got -1.0"),
        (["generate", "nothing", "--prompt", ""], "--prompt is empty"),
        (["evaluate", "nothing"], "nothing does not exist"),
    ],
)
def test_wrong_arguments_are_one_line(arguments, text, capfd, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert text in sentence(capfd, *arguments)
    assert list(tmp_path.iterdir()) == []  # nothing was begun


def test_no_gpu_is_one_line(capfd, tmp_path, monkeypatch, trained):
    from gpulayers import cuda

    def missing():
        raise cuda.GPUUnavailable("no GPU can be used because CuPy is not installed")

    monkeypatch.setattr(cuda, "import_cupy", missing)
    monkeypatch.chdir(tmp_path)
    for arguments in (["train"], ["generate", trained], ["evaluate", trained], ["train", "--resume", trained]):
        steps = ["--steps", "9"] if "--resume" in arguments else []
        assert "no GPU can be used" in sentence(capfd, *arguments, *steps, "--backend", "cupy")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"", "is empty"),
        (b"\xff\xfea", "is not UTF-8"),
        (b"short", "is too short: its training part has 5 tokens"),
        (b"012345678", "is too short: its training part has 9 tokens"),
    ],
)
def test_data_that_cannot_be_used(content, text, capfd, tmp_path):
    (tmp_path / "beer.txt").write_bytes(content)
    assert text in sentence(capfd, *words(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_text_without_a_validation_part(capfd, tmp_path):
    (tmp_path / "beer.txt").write_text("012345678")
    assert "its validation part, the last tenth, is empty" in sentence(capfd, *words(tmp_path / "run", context=4))


def test_not_enough_memory_is_one_line(capfd, tmp_path, monkeypatch):
    def greedy(*_):
        raise MemoryError("Unable to allocate 9 TiB")

    monkeypatch.setattr("gpulayers.training.tasks.gpt.make_gpt", greedy)
    assert "not enough memory (Unable to allocate 9 TiB)" in sentence(capfd, *words(tmp_path / "run"))


# ---------------------------------------------------------------------------------------------------- train


def test_run_folder(trained):
    names = {p.name for p in trained.iterdir()}
    assert names == {
        "config.toml",
        "metrics.jsonl",
        "samples.jsonl",
        "loss.png",
        "checkpoint-00000000.safetensors",
        "checkpoint-00000006.safetensors",
        "checkpoint-best.safetensors",
    }
    assert (trained / "loss.png").read_bytes().startswith(b"\x89PNG")


def test_existing_folder_is_refused(capfd, trained):
    before = sorted((p.name, p.stat().st_mtime_ns) for p in trained.iterdir())
    assert f"{trained} exists already: choose another --out" in sentence(capfd, *words(trained))
    assert before == sorted((p.name, p.stat().st_mtime_ns) for p in trained.iterdir())


def test_default_folder_is_new_each_time(tmp_path, monkeypatch, no_picture, capfd):
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        arguments = words(tmp_path / "unused", steps=0)
        at = arguments.index("--out")
        del arguments[at : at + 2]
        run(capfd, *arguments)
    assert len(list((tmp_path / "runs").glob("gpt-*"))) == 2


def test_command_line_over_file_over_defaults(tmp_path, no_picture, capfd):
    (tmp_path / "c.toml").write_text("[model]\nlayers = 2\nheads = 4\n[optimizer]\nlr = 0.5\n")
    run(capfd, *words(tmp_path / "run", steps=0, layers=None, heads=2, config=tmp_path / "c.toml"))
    written = tomllib.loads((tmp_path / "run" / "config.toml").read_text())
    assert (written["model"]["layers"], written["model"]["heads"], written["optimizer"]["lr"]) == (2, 2, 0.5)


def test_config_of_a_run_repeats_it(tmp_path, no_picture, capfd):
    run(capfd, *words(tmp_path / "a"))
    run(capfd, "train", "gpt", "--config", tmp_path / "a" / "config.toml", "--out", tmp_path / "b")
    assert_same_run(tmp_path / "a", tmp_path / "b")
    assert (tmp_path / "a" / "config.toml").read_text() == (tmp_path / "b" / "config.toml").read_text()


@pytest.mark.parametrize(
    "options",
    [
        ["--tokens", "characters", "--rotary", "--no-bias", "--heads", "4", "--kv-heads", "2"],
        [
            "--optimizer",
            "sgd",
            "--nesterov",
            "--no-rotary",
            "--schedule",
            "step",
            "--lr-step-size",
            "1",
            "--clip-value",
            "0.1",
        ],
        ["--schedule", "inverse_square_root", "--warmup", "1", "--dtype", "float64", "--l1", "1e-5", "--clip", "0"],
    ],
)
def test_options_reach_model_and_optimizer(options, tmp_path, no_picture, capfd):
    run(capfd, *words(tmp_path / "run", steps=2), *options)
    assert len(lines(tmp_path / "run" / "metrics.jsonl")) == 2
    tensors = load_checkpoint(tmp_path / "run" / "checkpoint-00000002.safetensors")[0]
    if "--rotary" in options:
        assert "model.wpe.weight" not in tensors
        assert "model.ln_f.bias" not in tensors
        assert tensors["model.blocks.0.attention.qkv.weight"].shape == (16, 16 + 2 * 8)
        assert tensors["model.wte.weight"].shape[0] == len(set(TEXT))
    if "sgd" in options:
        assert "model.wpe.weight" in tensors
        assert "m.wte.weight" in tensors
        assert "v.wte.weight" not in tensors
    if "float64" in options:
        assert tensors["model.wte.weight"].dtype == "float64"


def test_files_of_the_trained_text(tmp_path, no_picture, capfd):
    (tmp_path / "more.txt").write_text("and one more file of text, long enough for a window\n" * 9)
    run(capfd, *words(tmp_path / "run", steps=1), "--data", tmp_path / "more.txt")
    written = tomllib.loads((tmp_path / "run" / "config.toml").read_text())
    assert written["data"]["files"] == [str(tmp_path / "beer.txt"), str(tmp_path / "more.txt")]


# ---------------------------------------------------------------------------------------------------- resume


def test_resume_takes_few_options(trained, capfd):
    text = sentence(capfd, "train", "--resume", trained, "--lr", "1", "--no-bias", "--data", "a")
    assert (
        "--resume takes only --steps, --backend, --threads, --trace and --data-parallel, not --lr, --bias, --data"
        in text
    )
    assert "not --out" in sentence(capfd, "train", "--resume", trained, "--out", "b")


def test_a_finished_run_says_so(trained, capfd):
    text = sentence(capfd, "train", "--resume", trained)
    assert "is finished: it has done 6 steps; give a larger --steps to go on" in text
    assert "is finished" in sentence(capfd, "train", "--resume", trained, "--steps", "6")


def test_a_resume_within_the_schedule_says_nothing_of_it(tmp_path, no_picture, capfd):
    run(capfd, *words(tmp_path / "run", steps=1, schedule_steps=2))
    assert "schedule" not in run(capfd, "train", "--resume", tmp_path / "run", "--steps", "2").err


@pytest.mark.skipif(os.name == "nt", reason="no locks there")
def test_a_resume_that_another_process_stands_in_the_way_of_says_nothing_else(trained, capfd, tmp_path, no_picture):
    run(capfd, *words(tmp_path / "run", steps=2, save_every=1))
    (tmp_path / "run" / "checkpoint-00000002.safetensors").unlink()
    with only_writer(tmp_path / "run"):
        assert "another process is writing" in sentence(capfd, "train", "--resume", tmp_path / "run")


def test_resume_of_something_else(tmp_path, trained, capfd):
    assert "holds no checkpoint" in sentence(capfd, "train", "--resume", tmp_path)
    assert "is not a run folder" in sentence(capfd, "train", "--resume", trained / "config.toml")


def test_changed_data_is_refused(tmp_path, no_picture, capfd):
    run(capfd, *words(tmp_path / "run", steps=1))
    (tmp_path / "beer.txt").write_text(TEXT + "one more")
    text = sentence(capfd, "train", "--resume", tmp_path / "run", "--steps", "2")
    assert "the data is not what" in text
    (tmp_path / "beer.txt").unlink()
    assert "does not exist" in sentence(capfd, "train", "--resume", tmp_path / "run", "--steps", "2")


def test_resume_by_command(tmp_path, no_picture, capfd):
    run(capfd, *words(tmp_path / "run", steps=2))
    shown = run(capfd, "train", "--resume", tmp_path / "run", "--steps", "4", "--threads", "1")
    assert "at step 2 of 4" in shown.err
    assert "the cosine schedule ends at step 2: beyond it the rate stays 0.0001\n" in shown.err
    assert [r["step"] for r in lines(tmp_path / "run" / "metrics.jsonl")] == [1, 2, 3, 4]


# ---------------------------------------------------------------------------------------------------- generate


def test_generate(trained, capfd):
    arguments = ["generate", trained, "--prompt", "9 bottles", "--tokens", 12, "--seed", 5]
    text = run(capfd, *arguments).out
    assert text.startswith("9 bottles")
    assert text.endswith("\n")
    assert run(capfd, *arguments).out == text
    assert run(capfd, *arguments[:-1], 6).out != text
    assert run(capfd, *arguments, "--temperature", 0).out == run(capfd, *arguments, "--top-k", 1).out


def test_a_saved_model_on_a_gpu(trained, capfd):
    """On the emulated one; the words of --temperature 0 do not hang on rounding here."""
    options = ["--prompt", "9 bottles", "--tokens", 4, "--temperature", 0]
    on_cpu, on_gpu = (run(capfd, "generate", trained, *options, "--backend", b).out for b in ("numpy", "emulated"))
    assert on_gpu == on_cpu


def test_a_text_is_searched_for(trained, capfd):
    options = ["--prompt", "9 b", "--tokens", 5]
    greedy = run(capfd, "generate", trained, *options, "--temperature", 0).out
    found = run(capfd, "generate", trained, *options, "--beam", 3).out
    assert found.startswith("9 b")
    assert len(found) == len(greedy) == 9
    assert run(capfd, "generate", trained, "--prompt", "9", "--beam", 2).out.startswith("9")  # as many as there is room
    for more, text in (
        (["--beam", 3, "--tokens", 500], "do not fit into the context of 16; ask for at most 14 by --tokens"),
        (["--beam", 3, "--top-k", 3], "--beam above 1 draws nothing"),
        (["--beam", 3, "--slide", 3], "--slide is not for a search"),
        (["--length-penalty", 1], "--length-penalty is not for gpt"),
    ):
        assert text in sentence(capfd, "generate", trained, "--prompt", "9 b", *more)


def test_what_is_written_of_a_long_text(trained, capfd):
    options = ["--prompt", "9 bottles", "--tokens", 40, "--seed", 1]
    text = run(capfd, "generate", trained, *options).out
    assert run(capfd, "generate", trained, *options, "--no-cache").out == text
    assert run(capfd, "generate", trained, *options, "--slide", 8).out == text  # half of the context
    stop = text[20:23]
    assert run(capfd, "generate", trained, *options, "--stop", stop, "zzzz").out == text[: text.index(stop, 9)] + "\n"
    assert run(capfd, "generate", trained, *options, "--repetition-penalty", 1.5).out != text
    long = "9 bottles of beer on the wall"
    assert "the prompt has 29 tokens and the model sees 16" in sentence(capfd, "generate", trained, "--prompt", long)
    assert run(capfd, "generate", trained, "--prompt", long, "--cut-prompt", "--tokens", 3).out.startswith(long)
    assert "stop takes texts of at least one character" in sentence(capfd, "generate", trained, "--stop", "")
    assert "slide must be in 1..16, got 17" in sentence(capfd, "generate", trained, "--slide", 17)


def test_generate_from_any_checkpoint(trained, capfd):
    options = ["--tokens", 30, "--temperature", 0]
    best, last = (run(capfd, "generate", trained, *options, "--checkpoint", c).out for c in ("best", "last"))
    assert run(capfd, "generate", trained / "checkpoint-best.safetensors", *options).out == best
    assert run(capfd, "generate", trained, *options, "--checkpoint", "checkpoint-00000006.safetensors").out == last
    assert run(capfd, "generate", trained, *options).out == best
    text = sentence(capfd, "generate", trained / "checkpoint-best.safetensors", "--checkpoint", "last")
    assert "is a checkpoint already" in text
    assert "step-9.safetensors does not exist" in sentence(
        capfd, "generate", trained, "--checkpoint", "step-9.safetensors"
    )


def test_a_character_outside_the_vocabulary(tmp_path, no_picture, capfd):
    run(capfd, *words(tmp_path / "run", steps=0, tokens="characters"))
    assert "'Ω' at position 1 is not in the vocabulary" in sentence(
        capfd, "generate", tmp_path / "run", "--prompt", "aΩ"
    )
    assert run(capfd, "generate", tmp_path / "run", "--tokens", 3, "--prompt", "9").out.startswith("9")


@pytest.mark.parametrize("damage", ["short", "other", "model", "config"])
def test_files_that_are_no_checkpoint(damage, trained, tmp_path, capfd):
    from gpulayers.training.checkpoint import save_best

    path = tmp_path / "checkpoint-best.safetensors"
    content = (trained / path.name).read_bytes()
    tensors, metadata = load_checkpoint(trained / path.name)
    if damage == "short":
        path.write_bytes(content[: len(content) // 2])
    elif damage == "other":
        path.write_text("not ours")
    elif damage == "model":
        save_best(tmp_path, 1, {n: t for n, t in tensors.items() if n != "model.wte.weight"}, metadata)
    else:
        save_best(tmp_path, 1, tensors, {**metadata, "config": {"task": "gpt", "model": {"layers": "many"}}})
    for arguments in (["generate", path], ["evaluate", path]):
        assert str(path) in sentence(capfd, *arguments)


@pytest.mark.parametrize(
    ("name", "value"), [("best_val_loss", None), ("data_digest", 3), ("skipped_in_a_row", "x"), ("best_val_loss", [])]
)
def test_metadata_that_is_not_the_trainers(name, value, trained, tmp_path, capfd):
    from gpulayers.training.checkpoint import save_checkpoint

    tensors, metadata = load_checkpoint(trained / "checkpoint-00000006.safetensors")
    save_checkpoint(tmp_path, 6, tensors, {**metadata, name: value})
    for arguments in (["train", "--steps", "7", "--resume"], ["generate"], ["evaluate"]):
        assert f"is not a checkpoint of a run: its {name} is {value}" in sentence(capfd, *arguments, tmp_path)


def test_a_broken_checkpoint_is_passed_over_in_a_sentence(trained, tmp_path, capfd):
    name = "checkpoint-00000006.safetensors"
    (tmp_path / name).write_bytes((trained / name).read_bytes())
    (tmp_path / "checkpoint-00000007.safetensors").write_text("not ours")
    for command in ("generate", "evaluate"):
        error = run(capfd, command, tmp_path).err
        assert error.startswith(f"{tmp_path / 'checkpoint-00000007.safetensors'} is not a whole safetensors file")
        assert error.endswith("; passed over\n")
        assert error.count("\n") == 1


# ---------------------------------------------------------------------------------------------------- evaluate


def figures(text):
    return {name: float(value.split()[0]) for name, value in (line.split("  ", 1) for line in text.splitlines()[2:])}


def test_evaluate_is_the_trainers_validation_loss(trained, capfd):
    measured = {r["step"]: r["val_loss"] for r in lines(trained / "metrics.jsonl") if "val_loss" in r}
    text = run(capfd, "evaluate", trained, "--checkpoint", "last").out
    assert run(capfd, "evaluate", trained, "--checkpoint", "last").out == text
    found = figures(text)
    assert found["loss"] == pytest.approx(measured[6], abs=1e-6)
    assert found["perplexity"] == pytest.approx(2.718281828 ** measured[6], rel=1e-4)
    assert found["bits per byte"] == pytest.approx(measured[6] / 0.69314718, rel=1e-5)
    best = load_tensors(trained / "checkpoint-best.safetensors")[1]
    assert figures(run(capfd, "evaluate", trained).out)["loss"] == pytest.approx(float(best["val_loss"]), abs=1e-6)


def test_evaluate_files(trained, tmp_path, capfd):
    (tmp_path / "é.txt").write_text("é" * 40, encoding="utf-8")
    found = figures(run(capfd, "evaluate", trained, "--data", tmp_path / "é.txt").out)
    assert found["tokens"] == 79
    (tmp_path / "one.txt").write_text("a")
    assert "too short" in sentence(capfd, "evaluate", trained, "--data", tmp_path / "one.txt")
    assert "does not exist" in sentence(capfd, "evaluate", trained, "--data", tmp_path / "none.txt")


def test_evaluate_notices_changed_data(tmp_path, no_picture, capfd):
    run(capfd, *words(tmp_path / "run", steps=0))
    (tmp_path / "beer.txt").write_text(TEXT + "one more")
    assert "its digest differs; name files by --data" in sentence(capfd, "evaluate", tmp_path / "run")
    assert "tokens" in run(capfd, "evaluate", tmp_path / "run", "--data", tmp_path / "beer.txt").out


def test_tiny_is_a_start_that_options_and_files_change(tmp_path):
    words = ["train", "--tiny", "--dim", "8", "--config", str(tmp_path / "some.toml")]
    (tmp_path / "some.toml").write_text("[training]\nbatch = 3\n")
    namespace = parse(words)
    config = config_from(namespace)
    assert (config.model.layers, config.model.dim, config.model.context, config.training.batch) == (1, 8, 16, 3)


def test_the_emulated_device_starts_tiny(tmp_path):
    (tmp_path / "some.toml").write_text('[training]\nbackend = "emulated"\n')
    for command in (["train", "--backend", "emulated"], ["train", "--config", str(tmp_path / "some.toml")]):
        config = config_from(parse(command))
        assert (config.model.dim, config.training.batch) == (32, 2)
    command = ["train", "--backend", "numpy", "--config", str(tmp_path / "some.toml")]
    assert config_from(parse(command)).model.dim == 96


def test_the_emulated_device_without_its_wheels_is_one_line(capfd, tmp_path, monkeypatch):
    from gpulayers.emulator import toolkit
    from gpulayers.emulator.errors import ToolkitMissing

    def missing():
        raise ToolkitMissing("The emulated device needs NVRTC, which is not installed")

    monkeypatch.setattr(toolkit, "find", missing)
    assert "needs NVRTC" in sentence(capfd, "train", "--backend", "emulated", "--out", tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_short_run_warms_up_for_a_quarter_of_it():
    for steps, warmup in ((60, 15), (400, 100), (900, 100), (4000, 200)):
        assert config_from(parse(["train", "--steps", str(steps)])).complete().optimizer.warmup == warmup
