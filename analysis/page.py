"""Pieces of an HTML page; every text that comes from outside is escaped here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files
from string import Template

from analysis.plots._picture import Key, Picture
from analysis.svg import inline_svg


def page(title: str, body: Iterable[str]) -> str:
    """Return a whole page without any reference to another file."""
    folder = files("analysis")
    template = Template((folder / "report.html").read_text(encoding="utf-8"))
    css = (folder / "report.css").read_text(encoding="utf-8")
    return template.substitute(title=escape(title), css=css, body="\n".join(body))


def heading(text: str, level: int = 2) -> str:
    """Return a heading."""
    return f"<h{level}>{escape(text)}</h{level}>"


def paragraph(text: str, kind: str = "") -> str:
    """Return a paragraph; `kind` is "", "note" or "warning"."""
    return f"<p{_class(kind)}>{escape(text)}</p>"


def code(text: str) -> str:
    """Return preformatted text."""
    return f"<pre><code>{escape(text)}</code></pre>"


def details(summary: str, content: str) -> str:
    """Return content that is folded away under its summary."""
    return f"<details><summary>{escape(summary)}</summary>\n{content}\n</details>"


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table of texts; the first cell of a row is its name."""
    head = "".join(f'<th scope="col">{escape(h)}</th>' for h in headings)
    body = "\n".join(_row(row) for row in rows)
    inner = f"<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>"
    return f'<div class="scroll"><table>\n{inner}\n</table></div>'


def facts(rows: Iterable[tuple[str, str]]) -> str:
    """Return a table of names and what they are."""
    body = "\n".join(_row(row) for row in rows)
    return f'<table class="facts"><tbody>\n{body}\n</tbody></table>'


def figure(picture: Picture, prefix: str, *, wide: bool = False) -> str:
    """Return a picture with its legend and caption; `prefix` is its own among the figures of the page."""
    svg = inline_svg(picture.figure, prefix, picture.alt).replace("<svg ", '<svg class="plot" ', 1)
    inner = f'<div class="scroll">{svg}</div>' if wide else svg
    caption = f"<figcaption>{escape(picture.caption)}</figcaption>"
    return f"<figure{_class('wide' if wide else '')}>\n{_legend(picture.keys)}{inner}\n{caption}\n</figure>"


def figures(parts: Iterable[str]) -> str:
    """Return figures beside each other where there is room."""
    return '<div class="figures">\n' + "\n".join(parts) + "\n</div>"


def _row(cells: Sequence[str]) -> str:
    first, *others = cells
    return (
        f'<tr><th scope="row">{escape(first)}</th>'
        + "".join(f"<td>{escape(c)}</td>" for c in others)
        + "</tr>"
    )


def _legend(keys: Sequence[Key]) -> str:
    items = "".join(f"<li>{_swatch(key)}<span>{escape(key.label)}</span></li>" for key in keys)
    return f'<ul class="legend">{items}</ul>\n' if items else ""


def _swatch(key: Key) -> str:
    if key.area:
        paint = f'fill="{key.colour}" stroke="currentColor" stroke-opacity="0.4"'
        shape = f'<rect x="6.5" y="0.5" width="13" height="11" {paint}/>'
    else:
        dashes = f' stroke-dasharray="{" ".join(f"{2 * d:g}" for d in key.dashes)}"' if key.dashes else ""
        shape = f'<path d="M0 6H26" stroke="{key.colour}" stroke-width="3"{dashes}/>'
    return f'<svg viewBox="0 0 26 12" aria-hidden="true">{shape}</svg>'


def _class(name: str) -> str:
    return f' class="{name}"' if name else ""
