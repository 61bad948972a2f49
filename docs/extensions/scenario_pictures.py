"""Draws a world of each included scenario, for the gallery, at the start of each build."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fedsim import plugins
from fedsim.analysis import availability_picture, online_share
from fedsim.analysis.drawing.svg import inline_svg
from fedsim.common.units import DAY_US
from fedsim.worlds.scenario import make_trace
from repository_pages import GENERATED, write_if_changed

CLIENTS, DAYS, SEED = 100, 2, 1


def pictures() -> Iterator[str]:
    """Yield a section per scenario: its name, what it does, and the picture of its world."""
    for name in sorted(plugins.shipped("scenario")):
        trace = make_trace(name, {}, clients=CLIENTS, horizon_us=DAYS * DAY_US, seed=SEED)
        if online_share(trace, 1).min() == 1:  # with its defaults it changes speeds alone
            continue
        picture = availability_picture(trace)
        drawing = inline_svg(picture.figure, f"world-{name}", picture.alt)
        yield f"## {name}\n"
        yield f"{plugins.summary('scenario', name)} [Options](scenarios.md#{name}).\n"
        yield f'```{{raw}} html\n<figure class="world">{drawing}</figure>\n```\n'


def page() -> str:
    """Return the page of the pictures."""
    intro = (
        f"{CLIENTS} clients for {DAYS} days in each included scenario in which clients come and go, with its defaults. "
        "Above: how many are online. Below: a row per client, filled while it is online. "
        "[Worlds and scenarios](../scenarios.md) explains the models.\n"
    )
    return "\n".join(["# Pictures of worlds\n", intro, *pictures()])


def _write(app: Any) -> None:
    write_if_changed(GENERATED / "scenario_pictures.md", page())


def setup(app: Any) -> dict[str, bool]:
    """Connect the extension."""
    app.connect("builder-inited", _write)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
