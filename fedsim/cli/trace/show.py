"""`fedsim trace show`: a world in numbers and pictures."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from fedsim import analysis
from fedsim.cli.options import PAGES, PICTURES, check_ending
from fedsim.cli.trace.chart import blocks, chart
from fedsim.cli.trace.output import Png, TraceFile, save_picture, warnings
from fedsim.common.errors import ConfigError, TraceError
from fedsim.common.terminal import Terminal, facts_table, say

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fedsim.worlds.trace import Trace

_CHART_COLUMNS = 64


def show(
    file: TraceFile,
    png: Png = None,
    html: Annotated[Path | None, Option(help="Write a page with more pictures as well.")] = None,
    config: Annotated[
        Path | None, Option(help="A run's TOML file: show which classes of its data are online when.")
    ] = None,
) -> None:
    """Show a trace file in numbers, and who is online over time."""
    from fedsim.worlds.trace import read_trace

    check_ending("--png", png, PICTURES)
    check_ending("--html", html, PAGES)
    trace = read_trace(file)
    classes = None if config is None else analysis.class_hours(trace, counts_of(config, trace))
    console = Terminal(highlight=False)
    console.print(facts_table(analysis.world_facts(trace)))
    console.print(f"* {analysis.QUARTILES_NOTE}\n")
    for warning in warnings(trace):
        say(f"warning: {warning}\n")
    columns = min(_CHART_COLUMNS, trace.horizon_us)
    for line in chart(analysis.online_share(trace, columns).tolist(), trace.horizon_us, blocks()):
        say(line)
    if classes is not None:
        console.print(_class_table(classes))
    title = f"{file.name}: {trace.clients:,} clients"
    if png is not None:
        save_picture(analysis.availability_picture(trace, title), png)
    if html is not None:
        _write_page(trace, title, html, classes)


def _write_page(trace: Trace, title: str, html: Path, classes: NDArray[Any] | None) -> None:
    analysis.write_world_page(trace, title, html, classes)
    say(f"page: {html}")


def counts_of(config: Path, trace: Trace) -> NDArray[Any]:
    """Return [K, classes] how many training samples of each class each client of a run holds.

    Raises ConfigError if the arms of the file have different data, or if they tie their world to the data and this
    world is not tied; TraceError if the world has fewer clients than the run.
    """
    from fedsim.config.data import federation
    from fedsim.config.load import load_config
    from fedsim.data.federated_data import label_counts
    from fedsim.runs.inputs import same_data
    from fedsim.worlds.transforms import edit_steps

    runs = load_config(config)
    if not all(same_data(run, runs[0]) for run in runs):
        raise ConfigError(f"{config}: its arms have different data; expected one federation")
    if any(run.world.confound for run in runs) and not any("confound" in step for step in edit_steps(trace)):
        raise ConfigError(
            f"{config}: its world is tied to its data (world.confound), and this one is not: show the world.parquet"
            " in the folder of a run"
        )
    data = federation(runs[0])[1]
    if trace.clients < data.n_clients:
        raise TraceError(f"{config} has {data.n_clients} clients, but the trace has {trace.clients}")
    return label_counts(data)


def _class_table(classes: NDArray[Any]) -> object:
    """Return the online share of each class in four parts of the day; a dash where the world lacks some hours."""
    from rich.table import Table

    parts = classes.reshape(len(classes), 4, 6).mean(axis=2)
    table = Table("class", "0-6 h", "6-12 h", "12-18 h", "18-24 h", "day", box=None, pad_edge=False)
    table.title, table.title_justify = "\n% of a class's samples online", "left"
    for label, row in enumerate(parts):
        shares = (*row.tolist(), float(row.mean()))
        table.add_row(str(label), *(f"{100 * s:.1f}" if math.isfinite(s) else "-" for s in shares))
    return table
