import contextlib
import html.parser
import json
import shutil
import subprocess

import pytest
import tiny_run

from gpulayers.cli import main
from gpulayers.report import charts, gather, page
from gpulayers.report.page import bytes_text
from gpulayers.storage import FileError
from gpulayers.training.options import ConfigError

VOID = {"meta", "img", "link", "br"}


class Reader(html.parser.HTMLParser):
    """The tables by class, all text, the sources of images; elements must be closed in order."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tables, self.images, self.links, self.words, self.classes = [], [], [], [], [], set()
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        if tag not in VOID:
            self.open.append(tag)
        self.classes.update((values.get("class") or "").split())
        if tag == "img":
            assert values["alt"]
            self.images.append(values["src"])
        if tag == "a":
            self.links.append(values["href"])
        if tag == "table":
            self.tables.append(((values.get("class") or values.get("id") or "").split()[-1], []))
        if tag == "tr":
            self.tables[-1][1].append([])
        if tag in ("td", "th"):
            self.tables[-1][1][-1].append("")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)
        if self.open and self.open[-1] in ("td", "th", "code") and "table" in self.open:
            self.tables[-1][1][-1][-1] += data

    def table(self, name, number=0):
        return [rows for kind, rows in self.tables if kind == name][number]

    @property
    def text(self):
        return "".join(self.words)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A finished run with everything."""
    out = tmp_path_factory.mktemp("runs") / "beer"
    assert main([*tiny_run.words(out, health_every=4), "--health"]) == 0
    return out


@pytest.fixture
def undrawn(monkeypatch):
    """Where the curves are not looked at: to draw them takes most of the time."""
    monkeypatch.setattr(charts, "_as_uri", lambda figure, salt: "data:image/svg+xml;base64,")


@pytest.fixture(scope="module")
def read(folder):
    return Reader(page(gather([folder])))


def records(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_the_figures_are_those_of_the_metrics_file(folder, read):
    names, *rows = read.table("metrics")
    wanted = [record for record in records(folder) if "val_loss" in record]
    assert len(rows) == len(wanted) == 3
    for row, record in zip(rows, wanted, strict=True):
        assert {name: float(cell) for name, cell in zip(names, row, strict=True)} == record
    facts = {row[0]: row[1] for row in read.table("facts")}
    best = min(wanted, key=lambda record: record["val_loss"])
    assert facts["lowest validation loss"] == f"{best['val_loss']:.4f} nats a token at step {best['step']}"
    assert facts["last training loss"] == f"{records(folder)[-1]['loss']:.4f} nats a token"
    assert facts["state"] == "finished: 12 steps"


def test_samples_configuration_and_commands(folder, read):
    samples = [json.loads(line)["text"] for line in (folder / "samples.jsonl").read_text("utf-8").splitlines()]
    for sample in samples:
        assert sample in read.text
    assert (folder / "config.toml").read_text() in read.text
    commands = {row[0]: row[1] for row in read.table("commands")}
    assert commands["repeat it"] == f"gpulayers train gpt --config {folder / 'config.toml'}"
    assert commands["measure"] == f"gpulayers evaluate {folder}"
    assert "go on" not in commands


def test_the_command_repeats_the_run(folder, tmp_path, read):
    command = {row[0]: row[1] for row in read.table("commands")}["repeat it"].split()
    assert main([*command[1:], "--out", str(tmp_path / "again")]) == 0
    tiny_run.assert_same_run(folder, tmp_path / "again")


def test_parameters_by_layer(folder, read):
    rows = read.table("weights")[1:]
    model = gather([folder])[0].saved.model
    assert sum(int(row[3].replace(",", "")) for row in rows) == sum(p.data.size for p in model.parameters())
    assert rows[0][:3] == ["wte", "Embedding", "weight 256x16"]
    assert rows[0][4] == "16 KiB"
    memory = dict(read.table("memory"))
    values = sum(p.data.nbytes for p in model.parameters())
    assert memory["parameters"] == bytes_text(values)
    assert memory["state of the optimizer, in training"] == bytes_text(2 * values + 16)  # m and v, two counters


def test_health_and_attention(folder, read):
    assert "No layer was found sick." in read.text
    curves = [image for image in read.images if image.startswith("data:image/svg+xml;base64,")]
    assert len(curves) == 1 + 3 + 1 + 1  # loss; rate, norm, speed; health; one block
    looked = Reader(page(gather([folder]), sample="99 bottles of beer and more"))
    assert "99 bottles of be" in looked.text  # the context
    assert "99 bottles of bee" not in looked.text


def test_nothing_comes_from_elsewhere(read):
    assert all(image.startswith("data:image/") for image in read.images)
    assert all(link.startswith("#") for link in read.links)
    assert "script" not in read.open


def test_the_same_runs_make_the_same_page(folder):
    assert page(gather([folder])) == page(gather([folder]))


def test_two_runs(folder, tmp_path):
    other = tmp_path / folder.name
    shutil.copytree(folder, other)
    config = other / "config.toml"
    config.write_text(config.read_text().replace("lr = 0.002", "lr = 0.01"))
    runs = gather([folder, other])
    assert [run.name for run in runs] == [f"{run.folder.parent.name}/beer" for run in runs]
    read = Reader(page(runs))
    assert read.table("differing")[1:] == [["optimizer.lr", "0.002", "0.01"]]
    assert len([kind for kind, _ in read.tables if kind == "metrics"]) == 2


@pytest.mark.usefixtures("undrawn")
def test_a_run_that_was_killed(folder, tmp_path):
    killed = tmp_path / "killed"
    shutil.copytree(folder, killed)
    lines = (killed / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    (killed / "metrics.jsonl").write_bytes(b"".join(lines[:7]) + lines[7][:20])
    for name in ("checkpoint-00000012.safetensors", "checkpoint-best.safetensors"):
        (killed / name).write_bytes((killed / name).read_bytes()[:1000])
    read = Reader(page(gather([killed])))
    facts, commands = dict(read.table("facts")), dict(read.table("commands"))
    assert facts["state"] == "at step 7 of 12: still going, or stopped"
    assert commands["go on"] == f"gpulayers train --resume {killed}"
    assert "trouble" in read.classes


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize("left", [{"config.toml"}, {"config.toml", "metrics.jsonl"}, {"metrics.jsonl"}])
def test_a_run_that_holds_next_to_nothing(folder, tmp_path, left):
    for name in left:
        content = (folder / name).read_text()
        (tmp_path / name).write_text("" if name == "metrics.jsonl" else content)
    read = Reader(page(gather([tmp_path])))
    assert "No step is on record yet." in read.text
    assert "no whole checkpoint" in read.text or "holds no checkpoint" in read.text or "trouble" in read.classes
    if "config.toml" in left:
        assert dict(read.table("facts"))["state"] == "no step done yet, of 12"


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize("task", ['["gpt"]', "{a = 1}", '"cake"', "3"])
def test_a_run_of_no_task(folder, tmp_path, task):
    shutil.copy(folder / "metrics.jsonl", tmp_path)
    (tmp_path / "config.toml").write_text(f"task = {task}\n")
    assert "which there is not" in Reader(page(gather([tmp_path]))).text


@pytest.mark.usefixtures("undrawn")
def test_a_name_that_matplotlib_would_hide_is_in_the_legend(folder, tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(
        charts, "_finish", lambda axes, runs, legend=True: seen.extend(axes.get_legend_handles_labels()[1])
    )
    shutil.copytree(folder, tmp_path / "_b")
    charts.loss_chart(gather([folder, tmp_path / "_b"]))
    assert [label.strip() for label in seen] == ["beer", "beer: validation", "_b", "_b: validation"]


@pytest.mark.usefixtures("undrawn")
def test_numbers_that_are_not_finite(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "sick")
    with (tmp_path / "sick" / "metrics.jsonl").open("a") as file:
        file.write('{"step": 13, "loss": null, "lr": 0.1, "grad_norm": null, "val_loss": 1e999}\n')
    read = Reader(page(gather([tmp_path / "sick"])))
    assert dict(read.table("facts"))["steps that were not finite"] == "1"
    assert len(read.table("metrics")) == 4


@pytest.mark.usefixtures("undrawn")
def test_a_broken_line_costs_no_other(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "broken")
    lines = (tmp_path / "broken" / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "broken" / "metrics.jsonl").write_bytes(b"".join([*lines[:2], b"\x00\x00\n", *lines[3:]]))
    (run,) = gather([tmp_path / "broken"])
    assert [record["step"] for record in run.records] == [1, 2, *range(4, 13)]
    assert any("line 3 of" in trouble and trouble.endswith("passed over") for trouble in run.troubles)


@pytest.mark.usefixtures("undrawn")
def test_what_a_sick_layer_is(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "sick")
    with (tmp_path / "sick" / "health.jsonl").open("a") as file:
        file.write('{"step": 13, "layers": {"wte": {"activation": 5000.0}}, "sick": null}\n')
    read = Reader(page(gather([tmp_path / "sick"])))
    assert "step 13: exploding from wte on: root mean square of the activation 5.0e+03, above 1e+03" in read.text


def test_names_and_texts_are_not_taken_for_html(folder, tmp_path):
    evil = tmp_path / "<b>&amp;$x$<script>alert(1)<"
    shutil.copytree(folder, evil)
    with (evil / "samples.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps({"step": 13, "text": "</pre><script>alert(2)</script>\udcff"}) + "\n")
    text = page(gather([evil]))
    read = Reader(text)
    assert "<script" not in text
    assert "</pre><script>alert(2)</script>" in read.text
    assert evil.name in read.text


@pytest.mark.usefixtures("undrawn")
def test_many_rows_are_thinned_and_the_page_says_so(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "long")
    lines = [json.dumps({"step": i, "loss": 1 / i, "lr": 0.1, "val_loss": 2 / i}) for i in range(1, 3001)]
    (tmp_path / "long" / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    text = page(gather([tmp_path / "long"]))
    read = Reader(text)
    rows = read.table("metrics")[1:]
    assert len(rows) == 200
    assert (rows[0][0], rows[-1][0]) == ("1", "3000")
    assert "200 of 3000 rows, spread evenly" in read.text
    assert len(text) < 2_000_000


@pytest.mark.usefixtures("undrawn")
def test_the_command_writes_beside_the_run_or_where_it_is_told(folder, tmp_path, monkeypatch, capsys):
    run = tmp_path / "a run"
    shutil.copytree(folder, run)
    assert main(["report", str(run)]) == 0
    assert (run / "report.html").read_text("utf-8") == page(gather([run]))
    assert f"gpulayers train gpt --config '{run / 'config.toml'}'" in Reader((run / "report.html").read_text()).text
    monkeypatch.chdir(tmp_path)
    assert main(["report", str(run), str(folder)]) == 0
    assert (tmp_path / "report.html").is_file()
    assert main(["report", str(run), "--out", str(tmp_path / "x.html"), "--sample", "beer"]) == 0
    assert "written: " in capsys.readouterr().err


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["nothing"], "nothing does not exist"),
        (["."], ". is not a run folder: there is neither a config.toml nor a metrics.jsonl in it"),
        ([], "the following arguments are required: RUN"),
        (["RUN", "RUN"], "beer is given twice"),
        (["RUN", "--out", "."], "--out takes a file whose name ends in .html, got ."),
        (["RUN", "--sample", ""], "--sample is empty: give a text to look at"),
        (["RUN", "--out", "no/such/folder/x.html"], "cannot write no/such/folder/x.html"),
    ],
)
def test_refused(folder, tmp_path, monkeypatch, capsys, words, sentence):
    monkeypatch.chdir(tmp_path)
    with contextlib.suppress(SystemExit):
        assert main(["report", *(str(folder) if word == "RUN" else word for word in words)]) == 2
    assert sentence in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize("task", ["seq2seq", "vit", "feedforward"])
def test_the_other_tasks(task, tmp_path):
    if task == "vit":
        pytest.importorskip("sklearn")
    options = {"seq2seq": ["--decoder", "additive", "--eval-pairs", "20"]}.get(task, [])
    folder = tmp_path / task
    assert main(["train", task, "--tiny", "--steps", "2", "--threads", "1", *options, "--out", str(folder)]) == 0
    read = Reader(page(gather([folder])))
    assert "trouble" not in read.classes
    assert ("looked" in read.classes) == (task != "feedforward")
    sample = {"seq2seq": "2 March 2024", "vit": "3"}.get(task)
    assert (sample or "2") in Reader(page(gather([folder]), sample)).text
    if task == "vit":
        with pytest.raises(ConfigError, match=r"--sample must be in 0\.\.\d+, the held-out images, got 100000"):
            page(gather([folder]), "100000")
        with pytest.raises(ConfigError, match="--sample takes the number of a held-out image for vit, got 'x'"):
            page(gather([folder]), "x")


def test_no_folder(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(FileError, match="file is not a folder"):
        gather([tmp_path / "file"])


@pytest.mark.browser
def test_in_a_browser(folder, tmp_path):
    """Chromium, without a network: no error on its console, and the figures are on the page that it has built."""
    (tmp_path / "report.html").write_text(page(gather([folder])), "utf-8")
    done = subprocess.run(
        [
            "chromium", "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
            "--disable-background-networking", "--disable-component-update", "--disable-sync",
            "--host-resolver-rules=MAP * ~NOTFOUND", f"--user-data-dir={tmp_path / 'profile'}",
            "--enable-logging=stderr", "--dump-dom", f"file://{tmp_path / 'report.html'}",
        ],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    assert "CONSOLE" not in done.stderr
    names, *rows = Reader(done.stdout).table("metrics")
    wanted = [record for record in records(folder) if "val_loss" in record]
    assert [{n: float(cell) for n, cell in zip(names, row, strict=True)} for row in rows] == wanted
