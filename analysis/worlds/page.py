"""A self-contained HTML page about a world: its numbers and pictures."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from fedsim.analysis.plots.availability import availability_picture
from fedsim.analysis.plots.class_hours import class_hours_picture, extremes
from fedsim.analysis.plots.world_spread import bandwidths, speeds, spell_lengths
from fedsim.analysis.report import page
from fedsim.analysis.worlds.facts import QUARTILES_NOTE, client_facts, world_facts
from fedsim.common import arguments
from fedsim.common.arrays import Floats
from fedsim.common.files import from_json, write_text
from fedsim.common.paths import as_path
from fedsim.worlds.trace import Trace


@arguments.checked
def write_world_page(trace: Trace, title: str, out: str | Path, classes: Floats | None = None) -> None:
    """Write an HTML page about a world to `out`; `classes` [classes, 24] is the result of `class_hours`, if known."""
    write_text(as_path(out, "out"), page.page(title, _body(trace, classes)))


def _body(trace: Trace, classes: Floats | None) -> Iterator[str]:
    facts = world_facts(trace)
    own = {f"fact {name}" for name, _ in client_facts(trace)}
    yield page.facts([(name, text) for name, text in facts if name not in own | {"source"}])
    yield page.paragraph(f"* {QUARTILES_NOTE}.", "note")
    yield page.heading("Who is online")
    yield page.figure(availability_picture(trace), "w0", wide=True)
    yield from _classes(classes)
    yield page.heading("How clients differ")
    drawn = [spell_lengths(trace), speeds(trace), bandwidths(trace)]
    yield page.figures(page.figure(p, f"d{i}") for i, p in enumerate(drawn) if p is not None)
    if own:
        yield page.heading("What is known of the clients")
        yield page.facts(client_facts(trace))
    yield page.heading("Where it comes from")
    yield page.code(_readable(trace.source) or "not told")


def _classes(classes: Floats | None) -> Iterator[str]:
    if classes is not None:
        yield page.heading("Whose data is online when")
        yield page.paragraph(extremes(classes))
        yield page.figure(class_hours_picture(classes), "c0", wide=True)


def _readable(source: str) -> str:
    try:
        return json.dumps(from_json(source), indent=2, sort_keys=True)
    except ValueError:
        return source
