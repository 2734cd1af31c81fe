"""`page`: a report as one self-contained HTML text."""

import base64
import importlib.resources
import json
from collections.abc import Sequence
from typing import Any, NamedTuple

import gpulayers
from gpulayers.data import DataError
from gpulayers.layers.layer import Layer
from gpulayers.parameter import Parameter
from gpulayers.report.charts import Chart, as_chart, colours, health_chart, loss_chart, other_charts
from gpulayers.report.gather import Run
from gpulayers.report.looks import look
from gpulayers.storage import FileError, map_tensors
from gpulayers.training.health import first_sick, rows_of
from gpulayers.training.metrics import is_finite
from gpulayers.training.options import ConfigError
from gpulayers.training.tasks import TASKS
from gpulayers.training.tasks.task import shown

MOST_ROWS, MOST_SAMPLES = 200, 40  # of a run: more are not read
COLUMNS = ("step", "loss", "val_loss", "val_accuracy", "lr", "grad_norm", "tokens_per_second", "images_per_second")


class Weight(NamedTuple):
    """The parameters of one layer that are its own. share: of all values, 0..1."""

    layer: str
    kind: str
    shapes: str
    values: int
    bytes: str
    share: float


def page(runs: Sequence[Run], sample: str | None = None) -> str:
    """The HTML text: no script, and nothing from elsewhere.

    sample: whose attention maps are shown, see `looks.look`, which raises where the sample does not fit a run.
    """
    from jinja2 import Environment

    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    template = importlib.resources.files("gpulayers.report").joinpath("page.html").read_text(encoding="utf-8")
    return environment.from_string(template).render(
        title="gpulayers: " + (runs[0].name if len(runs) == 1 else f"{len(runs)} runs"),
        version=gpulayers.__version__,
        loss=loss_chart(runs),
        others=other_charts(runs),
        runs=[chapter(run, colour, sample) for run, colour in zip(runs, colours(runs), strict=True)],
        differing=differing(runs),
    )


def chapter(run: Run, colour: str, sample: str | None) -> dict[str, Any]:
    """What the template shows of one run."""
    try:
        looked, figures = look(run, sample)
    except (ConfigError, DataError, FloatingPointError) as error:
        if sample is not None:
            raise
        run.troubles.append(str(error))  # data that is gone, a model full of NaN
        looked, figures = "", []
    rows, names = measured(run)
    return {
        "run": run,
        "colour": colour,
        "facts": facts(run),
        "names": names,
        "rows": rows,
        "all_rows": len([record for record in run.records if is_finite(record.get("val_loss"))]) or len(run.records),
        "samples": run.samples[-MOST_SAMPLES:],
        "health": health_chart(run) if run.health else None,
        "sick": sick(run),
        "looked": looked,
        "maps": [as_chart(figure, f"attention, map {i + 1}") for i, figure in enumerate(figures)],
        "pictures": [Chart(_png(content), name) for name, content in run.pictures.items()],
        "weights": [] if run.saved is None else weights(run.saved.model),
        "memory": memory(run),
    }


def facts(run: Run) -> list[tuple[str, str]]:
    """(name, value) of the run as a whole."""
    units = TASKS[run.config.task].units if run.config else ""
    found = [("state", run.state)]
    if run.config is not None:
        t = run.config.training
        found += [
            ("task", run.config.task),
            ("optimizer", f"{run.config.optimizer.name}, lr {run.config.optimizer.lr:g}"),
        ]
        found += [("batch", f"{t.batch}, seed {t.seed}, {t.dtype} on {t.backend}, {t.threads} threads")]
    if (best := run.lowest("val_loss")) is not None:
        found.append(("lowest validation loss", f"{nats(best[1], units)} at step {best[0]}"))
    for name, words in (("val_loss", "last validation loss"), ("loss", "last training loss")):
        if (value := run.last(name)) is not None:
            found.append((words, nats(value, units)))
    if (accuracy := run.last("val_accuracy")) is not None:
        found.append(("last validation accuracy", f"{100 * accuracy:.2f} %"))
    if run.skipped:
        found.append(("steps that were not finite", str(run.skipped)))
    if run.saved is not None:
        found.append(("parameters", f"{sum(p.data.size for p in run.saved.model.parameters()):,}"))
        found.append(("model shown", f"{run.saved.path.name}, step {run.saved.step}"))
        versions = run.saved.metadata.get("versions")
        if isinstance(versions, dict):
            found.append(("made with", ", ".join(f"{name} {version}" for name, version in versions.items())))
    return found


def nats(loss: float, units: str) -> str:
    return shown({"val_loss": loss}, units)["loss"]


def measured(run: Run) -> tuple[list[list[str]], list[str]]:
    """The rows in which the validation loss was measured, at most MOST_ROWS, spread evenly; all where there are none.

    The numbers have the digits of metrics.jsonl. Also the names of the columns that any of them has.
    """
    rows = [record for record in run.records if is_finite(record.get("val_loss"))] or run.records
    if len(rows) > MOST_ROWS:
        rows = [rows[i * (len(rows) - 1) // (MOST_ROWS - 1)] for i in range(MOST_ROWS)]
    names = [name for name in COLUMNS if any(name in record for record in rows)]
    return [[_digits(record.get(name)) for name in names] for record in rows], names


def _digits(value: Any) -> str:
    """ "" for what was not measured or not finite."""
    return json.dumps(value) if is_finite(value) else ""


def sick(run: Run) -> list[str]:
    """When a layer was sick for the first time in each way."""
    told: dict[str, str] = {}
    for record in run.health:
        found = first_sick(rows_of(record))
        if found is not None:
            told.setdefault(found.kind, f"step {record['step']}: {found}")
    return list(told.values())


def weights(model: Layer) -> list[Weight]:
    """A row for each layer that has parameters of its own; a tied one counts where it comes first."""
    kinds = {name: type(layer).__name__ for name, layer in model.named_layers()}
    own: dict[str, list[tuple[str, Parameter]]] = {}
    for name, parameter in model.named_parameters():
        layer, _, last = name.rpartition(".")
        own.setdefault(layer, []).append((last, parameter))
    total = sum(p.data.size for p in model.parameters()) or 1
    rows = []
    for layer, parameters in own.items():
        values = sum(p.data.size for _, p in parameters)
        shapes = ", ".join(f"{name} {'x'.join(map(str, p.shape))}" for name, p in parameters)
        size = bytes_text(sum(p.data.nbytes for _, p in parameters))
        rows.append(
            Weight(layer or "(the model)", kinds.get(layer, type(model).__name__), shapes, values, size, values / total)
        )
    return rows


def memory(run: Run) -> list[tuple[str, str]]:
    """(what, bytes) that the parameters of the run take, in training too."""
    if run.saved is None:
        return []
    values = sum(p.data.nbytes for p in run.saved.model.parameters())
    found = [("parameters", bytes_text(values)), ("their gradients, in training", bytes_text(values))]
    try:
        tensors, _ = map_tensors(run.saved.path, checked=False)
    except FileError:  # it has just been replaced
        return found
    state = sum(a.nbytes for name, a in tensors.items() if not name.startswith("model."))
    return [*found, ("state of the optimizer, in training", bytes_text(state))]


def differing(runs: Sequence[Run]) -> list[tuple[str, list[str]]]:
    """(setting, its value in each run) of the settings that are not the same in all runs."""
    if len(runs) < 2 or any(run.config is None for run in runs):
        return []
    tables = [_flat(run.config.to_dict()) for run in runs if run.config is not None]
    names = list(dict.fromkeys(name for table in tables for name in table))
    values = {name: [table.get(name, "") for table in tables] for name in names}
    return [(name, found) for name, found in values.items() if len(set(found)) > 1]


def _flat(config: dict[str, Any]) -> dict[str, str]:
    found = {}
    for title, values in config.items():
        if isinstance(values, dict):
            found.update({f"{title}.{name}": str(value) for name, value in values.items()})
        else:
            found[title] = str(values)
    return found


def bytes_text(size: float) -> str:
    """For people: 1536 -> "1.5 KiB"."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.4g} {unit}"
        size /= 1024
    return f"{size:.4g} TiB"


def _png(content: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(content).decode()}"
