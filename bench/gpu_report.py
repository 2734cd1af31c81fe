"""What `bench.gpu` found: a table on the terminal, and a picture."""

from typing import Any

from bench.table import table

HEAD = [
    "case", "body", "cold us", "p10-p90", "hot us", "replay us", "Python us", "launches", "peak MB", "GB/s", "TFLOP/s",
    "of floor", "target", "/ torch", "/ compiled", "/ fused", "target", "error",
]  # fmt: skip
WIDTHS = [28, 14, 9, 15, 9, 9, 9, 8, 8, 6, 7, 8, 10, 7, 10, 7, 22, 7]
PEERS = ("torch", "torch compiled", "torch fused")


def lines(rows: list[dict[str, Any]], headed: bool) -> str:
    """The rows of one case."""
    return table(HEAD, [_cells(row, first=row is rows[0]) for row in rows], WIDTHS, headed)


def _cells(row: dict[str, Any], first: bool) -> list[str]:
    cold, seconds = row["cold"], row["seconds"]
    replay = row["replay"]
    launches = row["launches"]
    return [
        row["case"] if first else "",
        row["body"],
        _us(seconds),
        f"{_us(cold['p10'])}-{_us(cold['p90'])}",
        _us(row["hot"]["median"]),
        "" if replay is None else _us(replay["median"]) + ("" if replay["how"] == "graph" else "*"),
        _us(row["enqueue_seconds"]),
        "" if launches is None else str(launches["count"]) + ("" if launches["counted"] == "graph" else "+"),
        f"{row['peak_bytes'] / 1e6:.1f}",
        f"{row['bytes'] / seconds / 1e9:.0f}",
        f"{row['flops'] / seconds / 1e12:.0f}" if row["flops"] else "",
        f"{row['share_of_floor']:.0%}",
        _met(row["target_share"], row["share_met"], "{:.0%}"),
        *(f"{row['ratio_to'][peer]:.2f}" if peer in row["ratio_to"] else "" for peer in PEERS),
        " ".join(_met(t["at_most"], t["met"], f"{{:g}} {_short(peer)}") for peer, t in row["target_ratio"].items()),
        f"{row['error']:.0e}",
    ]


def _short(peer: str) -> str:
    return peer.removeprefix("torch").strip() or "torch"


def _met(value: float | None, met: bool | None, form: str) -> str:
    if value is None:
        return ""
    return form.format(value) + {True: " met", False: " NOT", None: " ?"}[met]


def _us(seconds: float) -> str:
    return f"{seconds * 1e6:.0f}" if seconds >= 1e-4 else f"{seconds * 1e6:.1f}"


def ceilings(found: dict[str, Any]) -> str:
    """The first line of every run, and the ways behind it."""
    product = found["product"]
    first = f"ceilings of this card in this run: copy {found['copy'] / 1e9:.0f} GB/s (read plus written), "
    first += f"read {found['read'] / 1e9:.0f} GB/s, bf16 product "
    first += f"{product / 1e12:.0f} TFLOP/s" if product else "not measured"
    ways = (f"{way} {rate / (1e12 if way.startswith('product') else 1e9):.1f}" for way, rate in found["how"].items())
    return first + "\n  " + ", ".join(ways)


def plot(result: dict[str, Any], path: str) -> None:
    """Share of the floor of every case, ours beside the others."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    cases = list(dict.fromkeys(row["case"] for row in result["rows"]))
    bodies = {"unfused": "#bab0ac", "torch": "#f2cf5b", "torch fused": "#e4572e", "torch compiled": "#72b28a",
              "ours": "#4c78a8"}  # fmt: skip
    figure = Figure(figsize=(9, 1.2 + 0.32 * len(cases)), dpi=150, layout="constrained")
    canvas, axes = FigureCanvasAgg(figure), figure.subplots()
    for body, colour in bodies.items():
        rows = [row for row in result["rows"] if row["body"] == body]
        heights = [cases.index(row["case"]) for row in rows]
        axes.plot([100 * row["share_of_floor"] for row in rows], heights, "o", color=colour, label=body)
    for row in result["rows"]:
        if row["target_share"] is not None:
            axes.plot(100 * row["target_share"], cases.index(row["case"]), "|", color="black", markersize=12)
    axes.set_yticks(range(len(cases)), cases)
    axes.set_ylim(len(cases) - 0.5, -0.5)
    axes.set_xlim(0, 108)
    axes.set_xlabel("% of the floor: least bytes or operations, at the ceilings of this run (| target)")
    axes.set_title(result["machine"]["gpu"], loc="left", fontsize=11)
    axes.grid(axis="x", alpha=0.25, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside upper right", ncols=len(bodies), fontsize=8)
    canvas.print_png(path)
