"""Draws figures of a report about the quickstart, for the gallery, at the start of each build.

The runs stay in `docs/generated/runs`: a later build draws them again without training.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fedsim import analysis, simulate
from repository_pages import GENERATED, ROOT, write_if_changed

QUICKSTART = ROOT / "examples" / "quickstart.toml"
FIGURES = {
    "participation": "Who took part, and what became of accuracy",
    "labels": "How samples and labels are divided among clients",
    "accuracy-over-time": "Accuracy over virtual time",
    "accuracy-histogram": "Distribution of accuracy over clients",
    "accuracy-by-client": "Share of clients at or below each accuracy",
    "participation-groups": "Accuracy by how much clients took part",
    "lost-jobs": "Where jobs were lost",
    "fedlf-clients": "What each client did",
    "fedlf-memory": "Updates in a step, staleness, and ages of remembered updates",
    "fedlf-conflict-counts": "Conflicts between updates",
}
"""The title of each figure by its name in the report."""


def page(folder: Path) -> str:
    """Draw the figures into `folder`, for a light and a dark page, and return the page that shows them."""
    results = simulate(QUICKSTART, out=GENERATED / "runs", workers=0, resume=True, progress=False)
    document = analysis.run_document([result.run for result in results])
    for theme in ("light", "dark"):
        analysis.write_figures(document, folder, "svg", tuple(FIGURES), theme)
    return "\n".join(_lines(folder))


def _lines(folder: Path) -> Iterator[str]:
    yield "# Figures of a report\n"
    yield (
        "The first command runs [the quickstart](../tutorials/quickstart.md); each of the others draws one figure of "
        "its report. [Reports](../report.md#figures-and-tables-for-papers) has the other formats, PDF and PNG.\n"
    )
    yield "```sh\nfedsim run examples/quickstart.toml --workers 0\n```\n"
    for name, title in FIGURES.items():
        yield f"## {title}\n"
        yield f"```sh\nfedsim report runs/quickstart --figures figures --format svg --only {name}\n```\n"
        for theme in ("light", "dark"):
            yield f":::{{image}} {folder.name}/{name}-{theme}.svg\n:alt: {title}\n:class: only-{theme}\n:::\n"


def _write(app: Any) -> None:
    write_if_changed(GENERATED / "report_pictures.md", page(GENERATED / "figures"))


def setup(app: Any) -> dict[str, bool]:
    """Connect the extension."""
    app.connect("builder-inited", _write)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
