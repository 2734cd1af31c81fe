"""Bar charts of `--plot`: of models time and peak memory, of ops the ratio to PyTorch, with the targets as marks."""

from typing import Any

OURS, PEER, FLOOR = "#4c78a8", "#f2cf5b", "#bab0ac"


def plot_variants(result: dict[str, Any], path: str) -> None:
    """Writes a PNG. A target stands at its share of the peer's bar."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    variants = result["variants"]
    figure = Figure(figsize=(9, 1.4 + 0.4 * len(variants)), dpi=150, layout="constrained")
    canvas, (left, right) = FigureCanvasAgg(figure), figure.subplots(1, 2, sharey=True)
    _bars(left, {name: v["seconds"] * 1e3 for name, v in variants.items()}, "ms a step")
    _bars(right, {name: (v["peak_bytes"] or 0) / 1e6 for name, v in variants.items()}, "peak MB above the library")
    left.axvline(result["floor_seconds"] * 1e3, color=FLOOR, linestyle="--", label="matrix products alone")
    for row in result["targets"]:
        axes, key, unit = (left, "seconds", 1e3) if row["what"] == "time" else (right, "peak_bytes", 1e-6)
        value = variants.get(row["peer"], {}).get(key)
        if value is not None and "gpulayers" in variants:
            height = list(variants).index("gpulayers")
            axes.plot(row["target"] * value * unit, height, "|", color="black", markersize=18)
    left.invert_yaxis()
    left.legend(fontsize=8, loc="lower right")
    machine = result["machine"]
    figure.suptitle(f"{result['case']}, {machine['cpu']}, {machine['threads']} threads (| target)", fontsize=10)
    canvas.print_png(path)
    print(f"written: {path}")


def plot_ratios(result: dict[str, Any], path: str) -> None:
    """Our time over PyTorch's, of the fastest body of each case."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    best: dict[str, dict[str, Any]] = {}
    for row in result["rows"]:
        if row["ratio_to_torch"]:
            known = best.get(row["case"])
            if known is None or row["ratio_to_torch"]["median"] < known["ratio_to_torch"]["median"]:
                best[row["case"]] = row
    figure = Figure(figsize=(8, 1.2 + 0.26 * max(1, len(best))), dpi=150, layout="constrained")
    canvas, axes = FigureCanvasAgg(figure), figure.subplots()
    _bars(axes, {f"{name} {row['body']}": row["ratio_to_torch"]["median"] for name, row in best.items()}, "", "%.2f")
    for height, row in enumerate(best.values()):
        if row["target"] is not None:
            axes.plot(row["target"], height, "|", color="black", markersize=14)
    axes.axvline(1, color=FLOOR, linestyle="--")
    axes.invert_yaxis()
    axes.set_xlabel("time over PyTorch's (| target)")
    machine = result["machine"]
    axes.set_title(f"{machine['cpu']}, {machine['threads']} threads", loc="left", fontsize=10)
    canvas.print_png(path)
    print(f"written: {path}")


def _bars(axes: Any, values: dict[str, float], label: str, form: str = "%.0f") -> None:
    colours = [OURS if name.startswith("gpulayers") else PEER for name in values]
    bars = axes.barh(list(values), list(values.values()), color=colours)
    axes.bar_label(bars, fmt=form, padding=3, fontsize=8)
    axes.set_xlabel(label)
    axes.margins(x=0.15)
    axes.spines[["top", "right"]].set_visible(False)
