"""The section of a report about one run: settings, costs of clients, participation, conflicts, how to repeat it."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from functools import partial

from fedsim.analysis.drawing.picture import Picture
from fedsim.analysis.opening.facts import facts
from fedsim.analysis.opening.run import Run
from fedsim.analysis.plots.blocks_over_time import blocks_over_time
from fedsim.analysis.plots.conflict_layers import conflict_layers
from fedsim.analysis.plots.conflicts_over_time import conflict_angles, conflict_counts
from fedsim.analysis.plots.memory_over_time import memory_over_time
from fedsim.analysis.plots.participation import participation
from fedsim.analysis.plots.protection import protection
from fedsim.analysis.plots.weights_over_clients import weights_over_clients
from fedsim.analysis.report.audit_section import audit_blocks
from fedsim.analysis.report.document import (
    Block,
    Code,
    Column,
    Facts,
    Figure,
    Gallery,
    Heading,
    Table,
    Text,
    frame_table,
)
from fedsim.analysis.statistics import observatory
from fedsim.analysis.statistics.waste import FATES, total_waste
from fedsim.records.file_names import CONFIG

_MOST_CLIENTS = 10
"""Rows in the table of the most protected clients."""
_SPENT = {
    "jobs": ("jobs", 1),
    "device_s": ("device time, h", 3600),
    "computing_s": ("computing time, h", 3600),
    "bytes": ("traffic, GiB", 2**30),
}
"""Names and units of what clients spent."""


def run_section(run: Run, prefix: str) -> Iterator[Block]:
    """Yield the blocks about one run; `prefix` goes before the names of its figures and tables."""
    yield Heading(f"Run: {run.label}")
    yield Facts(facts(run))
    if len(run.jobs):
        yield Heading("What clients spent", 3)
        yield _spent(run, prefix)
        yield Text(
            "Used: the update went into a step or refreshed the history. Wasted: lost, late, stale, void or nonfinite."
            " The share is that of used and wasted together.",
            "note",
        )
    yield Heading("Participation", 3)
    yield Figure(f"{prefix}clients", partial(participation, run), wide=True)
    if len(run.steps):
        yield Heading("Staleness and history", 3)
        yield _history(run, prefix)
        yield from _conflicts(run, prefix)
    yield from audit_blocks([run], prefix, "Audit of remembered updates")
    config = run.folder / CONFIG
    yield Heading("Reproduce", 3)
    yield Code(f"fedsim run {shlex.quote(str(config))} --out reproduced")
    yield Code(config.read_text(encoding="utf-8"), summary="Configuration")


def _spent(run: Run, prefix: str) -> Table:
    """Return the table of what the clients' work cost, used and wasted."""
    rows = []
    for measure, (*totals, wasted_percent) in total_waste(run).items():
        name, unit = _SPENT[measure]
        rows.append((name, *(total / unit for total in totals), wasted_percent))
    columns = (Column("what"), *(Column(fate, None) for fate in FATES), Column("wasted, %", 1))
    return Table(f"{prefix}spent", f"What the clients of {run.label} spent", columns, tuple(rows))


def _history(run: Run, prefix: str) -> Block:
    """Return the figure of what steps use, or a sentence where its curves would be constant."""
    steps = run.frame("steps")
    steps = steps[steps.updates > 0]
    if (
        len(steps)
        and not (steps.remembered.any() or steps.mean_staleness.any())
        and steps.updates.nunique() == 1
    ):
        return Text(
            f"Each step used {steps.updates.iloc[0]} updates of staleness 0, and none that was remembered of absent"
            " clients."
        )
    return Figure(f"{prefix}memory", partial(memory_over_time, run))


_NO_CONFLICTS = (
    "No conflicts are known: the rule needs no inner products of updates, and none were recorded."
    f" Run it with {observatory.SETTING} to see them."
)


def _conflicts(run: Run, prefix: str) -> Iterator[Block]:
    yield Heading("Conflicts", 3)
    seen = run.frame("steps")
    if not (seen.model_conflicts >= 0).any() and not len(run.conflicts):
        yield Text(_NO_CONFLICTS, "note")
        return
    drawn: list[tuple[str, Callable[[Run], Picture]]] = [("conflict-counts", conflict_counts)]
    if len(run.conflicts):
        drawn.append(("conflict-angles", conflict_angles))
    blocks = seen.blocks[seen.blocks > 0]
    if blocks.nunique() > 1:
        drawn.append(("blocks", blocks_over_time))
    elif (blocks > 1).any():
        yield Text(f"The rule worked on {blocks.iloc[0]} blocks of layers in every step.", "note")
    yield Gallery(tuple(Figure(f"{prefix}{name}", partial(draw, run)) for name, draw in drawn))
    if len(run.conflicts):
        yield from _observed(run, prefix)
    else:
        yield Text(
            f"Angles, layers, weights and who was protected are known where they are recorded: {observatory.SETTING}.",
            "note",
        )


def _observed(run: Run, prefix: str) -> Iterator[Block]:
    """Yield the blocks that need `conflicts.parquet`."""
    rows = observatory.recorded(run)
    if rows.block.max() >= 0:
        yield Figure(f"{prefix}conflict-layers", partial(conflict_layers, run))
    layers = observatory.by_layer(rows).replace({"block": {-1: "whole model"}})
    caption = "Conflicts by layer: updates of present and absent clients at more than 90° from the direction"
    yield frame_table(f"{prefix}layers", caption, layers, _LAYERS)
    merged = observatory.merges(run, rows)
    if len(merged):
        caption = "Steps in which the rule merged a layer with the next one: both have the same weights"
        yield frame_table(f"{prefix}merged", caption, merged, _MERGED)
    if rows.weight.isna().any():
        yield Text("The rule combines updates column by column, so no update has a weight.", "note")
        return
    yield Heading("Who was protected", 3)
    yield Figure(f"{prefix}weights", partial(weights_over_clients, run), wide=True)
    clients = observatory.by_client(rows)
    if clients.absent_steps.any():
        yield Figure(f"{prefix}protection", partial(protection, run))
        most = clients.sort_values(["protected_steps", "client"], ascending=[False, True]).head(_MOST_CLIENTS)
        caption = f"The {len(most)} clients whose remembered updates had a weight in most steps"
        yield frame_table(f"{prefix}protected", caption, most, _PROTECTED)
    else:
        yield Text("No update of an absent client was remembered in any step.", "note")


_LAYERS = {
    "block": Column("layer"),
    "kind": Column("clients"),
    "conflict_percent": Column("in conflict, %", 1),
    "angle_deg": Column("median angle, °", 1),
}
_MERGED = {"layer": Column("layer"), "merged_percent": Column("merged with the next, % of steps", 1)}
_PROTECTED = {
    "present_steps": Column("steps present"),
    "absent_steps": Column("steps remembered"),
    "protected_steps": Column("of these with a weight"),
    "present_weight_percent": Column("mean weight present, %", 2),
    "absent_weight_percent": Column("mean weight remembered, %", 2),
    "against_percent": Column("updates in conflict, %", 1),
}
