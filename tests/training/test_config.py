import dataclasses
import os
import tomllib
from types import SimpleNamespace

import pytest

from gpulayers.layers.linear import Linear
from gpulayers.models.gpt import GPTConfig
from gpulayers.optim import OPTIMIZERS, SCHEDULES
from gpulayers.training.config import RULES, TABLES, Config, available_cores, read_toml
from gpulayers.training.options import ConfigError, check, fields, flag, parse
from gpulayers.training.run import optimizer_for
from gpulayers.training.tasks import DEFAULTS
from gpulayers.training.tasks.gpt import GPTOptions

GPT = DEFAULTS["gpt"]
each_task = pytest.mark.parametrize("config", DEFAULTS.values(), ids=DEFAULTS)


def from_text(text: str, tmp_path) -> Config:
    path = tmp_path / "run.toml"
    path.write_text(text, encoding="utf-8")
    return GPT.updated(read_toml(path), "run.toml")


def test_every_size_of_the_model_is_an_option():
    assert set(fields(GPTOptions)) == {field.name for field in dataclasses.fields(GPTConfig)} - {"vocab"}


def test_every_rule_and_schedule_is_an_option():
    known = fields(GPT.optimizer)
    assert set(known["name"].metadata["choices"]) < set(OPTIMIZERS)  # the commonest
    assert set(known["schedule"].metadata["choices"]) == {*SCHEDULES, "plateau"}


@each_task
def test_every_default_passes_its_own_check(config):
    config.complete()
    for title in TABLES:
        table = getattr(config, title)
        for name, field in fields(table).items():
            if (value := getattr(table, name)) is not None:
                assert check(field, value, name) == value


@each_task
def test_flags_are_unique(config):
    flags = [flag(field) for title in TABLES for field in fields(getattr(config, title)).values()]
    assert len(flags) == len(set(flags))


def test_file_over_defaults(tmp_path):
    config = from_text('task = "gpt"\n[model]\nlayers = 2\n[optimizer]\nlr = 1\n[data]\nfiles = ["a", "b"]', tmp_path)
    assert (config.model.layers, config.model.heads) == (2, GPT.model.heads)
    assert config.optimizer.lr == 1.0
    assert isinstance(config.optimizer.lr, float)
    assert config.data.files == ("a", "b")


@each_task
def test_written_file_says_everything_and_gives_the_same_run(config, tmp_path):
    start, config = config, config.complete()
    config.write(tmp_path / "config.toml")
    content = read_toml(tmp_path / "config.toml")
    for title in TABLES:
        table = getattr(config, title)
        assert set(content[title]) == {name for name in fields(table) if getattr(table, name) is not None}
    assert start.updated(content, "config.toml").complete() == config


def test_complete_makes_open_choices(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = dataclasses.replace(GPT, data=dataclasses.replace(GPT.data, files=("a.txt",)))
    config = config.with_training(steps=200).complete()
    assert (config.optimizer.schedule_steps, config.optimizer.warmup, config.optimizer.lr_step_size) == (200, 50, 50)
    assert config.model.kv_heads == config.model.heads
    assert config.training.threads == available_cores() >= 1
    assert config.data.files == (str(tmp_path / "a.txt"),)
    longer = config.with_training(steps=500).complete()
    assert longer.optimizer == config.optimizer  # the horizon stays where it was set


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[model]\nleyers = 2", r"unknown key 'leyers' in \[model\] of run.toml; did you mean layers\?"),
        ("[model]\nzzz = 2", r"unknown key 'zzz' in \[model\] of run.toml$"),
        ("[modle]\nlayers = 2", r"unknown table or key 'modle' in run.toml; did you mean model\?"),
        ("model = 3", r"model in run.toml must be a table, got 3"),
        ('task = "vit"', r"run.toml is for the task 'vit', not for 'gpt'"),
        ('[model]\nlayers = "2"', r"layers in \[model\] of run.toml takes a whole number, got '2'"),
        ("[model]\nlayers = 2.0", r"layers in \[model\] of run.toml takes a whole number, got 2.0"),
        ("[model]\nlayers = true", r"layers in \[model\] of run.toml takes a whole number, got True"),
        ("[model]\nbias = 1", r"bias in \[model\] of run.toml takes true or false, got 1"),
        ('[data]\nfiles = "a.txt"', r"files in \[data\] of run.toml takes a list of texts, got 'a.txt'"),
        ("[optimizer]\nlr = nan", r"lr in \[optimizer\] of run.toml takes a finite number, got nan"),
        ("[model]\ndropout = 1", r"dropout in \[model\] of run.toml must be at least 0 and below 1, got 1.0"),
        ('[optimizer]\nname = "adm"', r"must be one of adamw, adam, sgd, .*, radam, got 'adm'; did you mean adam\?"),
        ("[training]\nsteps = -1", r"steps in \[training\] of run.toml must be at least 0, got -1"),
    ],
)
def test_wrong_file_is_one_sentence(text, sentence, tmp_path):
    with pytest.raises(ConfigError, match=sentence):
        from_text(text, tmp_path)


def test_not_a_toml_file(tmp_path):
    with pytest.raises(ConfigError, match=r"nothing.toml: No such file"):
        read_toml(tmp_path / "nothing.toml")
    (tmp_path / "a.toml").write_text("[model\n")
    with pytest.raises(ConfigError, match=r"a.toml is not a TOML file"):
        read_toml(tmp_path / "a.toml")
    (tmp_path / "b.toml").write_bytes(b"\xff")
    (tmp_path / "deep.toml").write_text("a = " + "[" * 5000, encoding="utf-8")
    with pytest.raises(ConfigError, match=r"deep.toml is nested too deep"):
        read_toml(tmp_path / "deep.toml")
    (tmp_path / "long.toml").write_text("[training]\nseed = " + "9" * 5000, encoding="utf-8")
    with pytest.raises(ConfigError, match=r"long.toml is not a TOML file"):
        read_toml(tmp_path / "long.toml")
    with pytest.raises(ConfigError, match=r"b.toml is not a TOML file"):
        read_toml(tmp_path / "b.toml")


def test_a_whole_number_beyond_every_float():
    with pytest.raises(ConfigError, match=r"lr in \[optimizer\] of a.toml takes a finite number, got inf"):
        GPT.updated({"optimizer": {"lr": 10**400}}, "a.toml")


@pytest.mark.parametrize(
    ("title", "values", "sentence"),
    [
        ("model", {"heads": 3, "dim": 128}, "heads must divide dim, got 3 heads and dim 128"),
        ("model", {"heads": 4, "dim": 128, "kv_heads": 3}, "kv_heads must divide heads, got 3 kv_heads and 4 heads"),
        ("model", {"heads": 4, "dim": 12, "rotary": True}, "rotary needs an even head size, got dim / heads = 3; or"),
        ("training", {"batch": 2, "accumulate": 3}, "accumulate must be at most batch, got 3 parts of 2 samples"),
        ("training", {"dtype": "float16"}, "dtype float16 needs a GPU: choose float32, or --backend cupy"),
        ("training", {"dtype": "bfloat16"}, "dtype bfloat16 needs a GPU"),
        ("optimizer", {"schedule_steps": 5, "warmup": 6}, "warmup must be at most schedule_steps, got 6 and 5"),
        (
            "optimizer",
            {"schedule": "exponential", "lr_final": 0.0},
            "the exponential schedule takes an lr_final above 0",
        ),
        ("optimizer", {"nesterov": True, "momentum": 0.0}, "nesterov needs a momentum above 0"),
    ],
)
def test_values_that_do_not_fit_each_other(title, values, sentence):
    table = dataclasses.replace(getattr(GPT, title), **values)
    with pytest.raises(ConfigError, match=sentence):
        dataclasses.replace(GPT, **{title: table}).complete()


@pytest.mark.parametrize(
    ("title", "name", "text", "value"),
    [
        ("model", "layers", "12", 12),
        ("optimizer", "lr", "1e-3", 1e-3),
        ("optimizer", "lr", "1", 1.0),
        ("training", "threads", "1", 1),
        ("data", "tokens", "characters", "characters"),
        ("data", "files", ["a", "b"], ("a", "b")),
        ("model", "bias", False, False),
    ],
)
def test_words_of_the_command_line(title, name, text, value):
    assert parse(fields(getattr(GPT, title))[name], text, "--" + name) == value


def test_a_name_that_is_no_text_cannot_be_kept(tmp_path):
    """Linux has such names; TOML and JSON do not."""
    config = dataclasses.replace(GPT, data=dataclasses.replace(GPT.data, files=("a.txt", "b\udcff.txt")))
    with pytest.raises(ConfigError, match=r'^the settings cannot hold "b.\.txt": a byte of that name is not UTF-8'):
        config.write(tmp_path / "c.toml")
    assert not list(tmp_path.iterdir())


def test_texts_survive_toml(tmp_path):
    names = ('quote " and \\', "line\nbreak", "ümläut")
    config = dataclasses.replace(GPT, data=dataclasses.replace(GPT.data, files=names))
    config.write(tmp_path / "c.toml")
    assert tomllib.loads((tmp_path / "c.toml").read_text(encoding="utf-8"))["data"]["files"] == list(names)


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({}, 8),
        ({"a/b": "max 100000"}, 8),
        ({"a/b": "150000 100000"}, 2),
        ({"a/b": "10000 100000"}, 1),
        ({"a/b": "400000 100000", "a": "200000 100000"}, 2),
        ({"a/b": "1600000 100000"}, 8),
        ({"": "300000 100000"}, 3),
        ({"a/b": "broken"}, 8),
    ],
)
def test_a_container_may_have_fewer_cores_than_the_machine(limits, expected, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "process_cpu_count", lambda: 8, raising=False)
    for group, limit in limits.items():
        (tmp_path / "groups" / group).mkdir(parents=True, exist_ok=True)
        (tmp_path / "groups" / group / "cpu.max").write_text(limit + "\n")
    (tmp_path / "own").write_text("1:cpu:/x\n0::/a/b\n")
    assert available_cores(tmp_path / "groups", tmp_path / "own") == expected
    assert available_cores(tmp_path / "groups", tmp_path / "none") == 8


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("rule", RULES)
def test_every_rule_and_schedule_is_made(rule, schedule):
    """Each option that a run has for them is one that they take."""
    optimizer = dataclasses.replace(GPT.optimizer, name=rule, schedule=schedule, lr_final=0.25).for_steps(60)
    config = dataclasses.replace(GPT, optimizer=optimizer, training=dataclasses.replace(GPT.training, threads=1))
    task = SimpleNamespace(config=config, model=Linear(3, 2, rng=0))
    made = optimizer_for(task)
    assert type(made) is OPTIMIZERS[rule]
    assert made.rate(made.schedule.warmup) == pytest.approx(optimizer.lr * made.schedule.decay(made.schedule.warmup))
    if schedule in ("linear", "cosine", "polynomial", "exponential"):
        assert made.rate(60) == pytest.approx(optimizer.lr * 0.25)
