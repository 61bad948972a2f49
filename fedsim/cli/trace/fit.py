"""`fedsim trace fit`: fit a model to the clients of a trace, and measure how well it agrees."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from fedsim import analysis
from fedsim.cli.options import PICTURES, check_ending
from fedsim.cli.trace.output import Force, Png, TraceFile, check_free, save_picture
from fedsim.common.terminal import say, visible
from fedsim.common.units import DAY_US, HOUR_US, US, show_us

if TYPE_CHECKING:
    from fedsim.worlds.trace import Trace

_PER_LINE = 6
_USE = (
    "fedsim trace make {} -o world.parquet --set world.clients=10000    (docs/fitting.md explains the keys)"
)
_UNITS = ((DAY_US, "d"), (HOUR_US, "h"), (60 * US, "min"), (US, "s"), (1, "us"))


def fit(
    file: TraceFile,
    out: Annotated[Path, Option("--out", "-o", help="The TOML file to write, for `fedsim trace make`.")],
    png: Png = None,
    seed: Annotated[int, Option(min=0, help="Seed of the world that the trace is compared with.")] = 1,
    force: Force = False,
) -> None:
    """Fit a model to a trace, and show how well it agrees. The trace is compared with a world made from the model."""
    from fedsim.common.files import make_directory, write_text
    from fedsim.worlds.scenario import make_trace
    from fedsim.worlds.trace import read_trace

    check_free(out, force, [file])
    check_ending("--png", png, PICTURES)
    trace = read_trace(file)

    def simulate(options: Mapping[str, Any]) -> Trace:
        return make_trace(
            "fitted", options, clients=trace.clients, horizon_us=trace.horizon_us, seed=seed, after_end="stop"
        )

    model = analysis.fit_world(trace, simulate)
    comparison = analysis.compare_fit(trace, simulate(model.options()))
    lines = _findings(file, trace, model, comparison, seed)
    make_directory(out.parent)
    write_text(out, world_toml(trace, model.options(), [*lines, _USE.format(out.name)]))
    for line in [*lines, f"scenario: {out}"]:
        say(line)
    if png is not None:
        save_picture(analysis.fit_picture(comparison, title=file.name), png)


def world_toml(trace: Trace, options: Mapping[str, Any], comments: list[str]) -> str:
    """Return a file for `fedsim trace make`: a world as large and as long as the trace, with seed 1."""
    world = {
        "scenario": "fitted",
        "clients": trace.clients,
        "horizon": _exact(trace.horizon_us),
        "seed": 1,
        "after_end": trace.after_end,
    }
    plain = {key: value for key, value in options.items() if not isinstance(value, dict)}
    tables = {key: value for key, value in options.items() if isinstance(value, dict)}
    blocks = [_table("world", world), _table("world.options", plain)]
    blocks += [_table(f"world.options.{name}", table) for name, table in tables.items()]
    return (
        "\n\n".join(["\n".join(f"# {visible(' '.join(line.split()))}" for line in comments), *blocks]) + "\n"
    )


def _findings(
    file: Path, trace: Trace, model: analysis.WorldFit, comparison: analysis.FitComparison, seed: int
) -> list[str]:
    start = f", from {trace.origin}" if trace.origin else ""
    head = f"fitted to {file.name}: {trace.clients:,} clients, {show_us(trace.horizon_us)}{start}"
    against = f"the trace compared with a world of as many clients made from the fit (seed {seed}):"
    return [head, *model.notes, against, *(f"  {statistic}" for statistic in comparison.statistics)]


def _table(name: str, values: Mapping[str, Any]) -> str:
    return "\n".join([f"[{name}]", *(f"{key} = {_value(value)}" for key, value in values.items())])


def _value(value: Any) -> str:
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, list | tuple):
        parts = [_value(part) for part in value]
        if len(parts) <= _PER_LINE:
            return f"[{', '.join(parts)}]"
        rows = [", ".join(parts[i : i + _PER_LINE]) for i in range(0, len(parts), _PER_LINE)]
        return "[\n" + "".join(f"  {row},\n" for row in rows) + "]"
    return repr(value)


def _exact(time_us: int) -> str:
    """Write a duration in the largest unit that divides it."""
    scale, unit = next((scale, unit) for scale, unit in _UNITS if time_us % scale == 0)
    return f"{time_us // scale}{unit}"
