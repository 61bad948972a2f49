"""Elements of an HTML page. Every function escapes the texts that it is passed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from html import escape
from importlib.resources import files
from string import Template

from fedsim.analysis.drawing.picture import MARKERS, Key, Picture
from fedsim.analysis.drawing.svg import inline_svg
from fedsim.analysis.report.document import (
    Block,
    Code,
    Document,
    Facts,
    Figure,
    Findings,
    Gallery,
    Heading,
    Links,
    Table,
    Text,
    slugs,
)
from fedsim.common.errors import RunError, TraceError

_SHORT = 10
"""Most lines of a table that is not folded."""


def page(title: str, body: Iterable[str]) -> str:
    """Return a whole page that refers to no other file."""
    folder = files("fedsim.analysis.report")
    template = Template((folder / "report.html").read_text(encoding="utf-8"))
    css = (folder / "report.css").read_text(encoding="utf-8")
    return template.substitute(title=escape(title), css=css, body="\n".join(body))


def document(content: Document) -> str:
    """Return a report as a page, with a table of contents, and under each figure the command that draws it alone."""
    listed = [b.text for b in content.blocks if isinstance(b, Heading) and b.level == 2]
    ids = slugs(listed)
    return page(content.title, _document(content, listed, [f"s-{slug}" for slug in ids]))


def heading(text: str, level: int = 2, name: str = "") -> str:
    """Return a heading, with `name` as its id if there is one."""
    return f"<h{level}{f' id={chr(34)}{name}{chr(34)}' if name else ''}>{escape(text)}</h{level}>"


def paragraph(text: str, kind: str = "") -> str:
    """Return a paragraph; `kind` is "", "note" or "warning"."""
    return f"<p{_class(kind)}>{escape(text)}</p>"


def code(text: str) -> str:
    """Return preformatted text."""
    return f'<pre tabindex="0"><code>{escape(text)}</code></pre>'


def details(summary: str, content: str) -> str:
    """Return content folded away under a summary."""
    return f"<details><summary>{escape(summary)}</summary>\n{content}\n</details>"


def table(content: Table) -> str:
    """Return a table; the first cell of a row is its heading, and words are aligned left."""
    kinds = [_class("words" if words else "") for words in content.words()]
    pairs = zip(kinds, content.columns, strict=True)
    head = "".join(f'<th scope="col"{kind}>{escape(column.heading)}</th>' for kind, column in pairs)
    body = "\n".join(_row(row, kinds) for row in content.texts())
    inner = f"<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>"
    shown = f"<table>\n<caption><span>{escape(content.caption)}</span></caption>\n{inner}\n</table>"
    return _scroll(shown, content.caption)


def facts(rows: Iterable[tuple[str, str]]) -> str:
    """Return a table of names with their values."""
    body = "\n".join(_row(row) for row in rows)
    return f'<table class="facts"><tbody>\n{body}\n</tbody></table>'


def figure(picture: Picture, prefix: str, *, wide: bool = False, command: str = "") -> str:
    """Return a picture with its legend, its caption and the `command` that draws it alone.

    `prefix` must be unique among the figures of the page.
    """
    svg = inline_svg(picture.figure, prefix, picture.alt).replace("<svg ", '<svg class="plot" ', 1)
    inner = _scroll(svg, picture.caption) if wide else svg
    code = f'<code class="again">{escape(command)}</code>' if command else ""
    caption = f"<figcaption>{escape(picture.caption)}{code}</figcaption>"
    return f"<figure{_class('wide' if wide else '')}>\n{_legend(picture.keys)}{inner}\n{caption}\n</figure>"


def figures(parts: Iterable[str]) -> str:
    """Return figures side by side where they fit."""
    return '<div class="figures">\n' + "\n".join(parts) + "\n</div>"


def _document(content: Document, listed: Sequence[str], ids: Sequence[str]) -> Iterator[str]:
    if len(listed) > 2:
        items = (f'<li><a href="#{i}">{escape(text)}</a></li>' for i, text in zip(ids, listed, strict=True))
        yield f'<nav aria-label="Contents"><ul>{"".join(items)}</ul></nav>'
    names = iter(ids)
    show = _shower(content.command)
    for block in content.blocks:
        if isinstance(block, Heading):
            yield heading(block.text, block.level, next(names) if block.level == 2 else "")
        else:
            yield show(block)


def _shower(command: str) -> Callable[[Block], str]:
    """Return a function from a block to HTML; under a figure stands `command` with the options that draw it alone."""

    def drawn(block: Figure) -> str:
        try:
            alone = f"{command} --only {block.name} --figures figures"
            return figure(block.draw(), block.name, wide=block.wide, command=alone)
        except (RunError, TraceError) as error:
            return paragraph(f"Not drawn: {error}.")

    def show(block: Block) -> str:
        if isinstance(block, Figure):
            return drawn(block)
        if isinstance(block, Gallery):
            return figures(drawn(each) for each in block.figures)
        return _words(block)

    return show


def _words(block: Block) -> str:
    """Return a block without figures as HTML."""
    match block:
        case Text():
            return paragraph(block.text, block.kind)
        case Findings():
            items = "\n".join(f"<li>{escape(each.text)}</li>" for each in block.findings)
            return f'<ul class="findings">\n{items}\n</ul>'
        case Code():
            return details(block.summary, code(block.text)) if block.summary else code(block.text)
        case Facts():
            return _folded("Settings and machine", facts(block.rows), len(block.rows))
        case Links():
            return _links(block.rows)
        case Table():
            return _folded(block.caption, table(block), len(block.rows))
    raise TypeError(f"expected a block of words, found {type(block).__name__}")


def _folded(summary: str, content: str, lines: int) -> str:
    """Return a table, folded away under its caption if it is long."""
    return details(f"{summary} ({lines} lines)", content) if lines > _SHORT else content


def _links(rows: Iterable[tuple[str, str]]) -> str:
    items = (f'<li><a href="{escape(address)}">{escape(text)}</a></li>' for text, address in rows)
    return f'<ul class="links">{"".join(items)}</ul>'


def _scroll(inner: str, label: str) -> str:
    """Return wide content in a box that scrolls, also by keyboard."""
    return f'<div class="scroll" role="region" tabindex="0" aria-label="{escape(label)}">{inner}</div>'


def _row(cells: Sequence[str], kinds: Sequence[str] = ()) -> str:
    first, *others = cells
    values = zip(kinds[1:] or [""] * len(others), others, strict=True)
    named = f'<th scope="row">{escape(first)}</th>'
    return f"<tr>{named}{''.join(f'<td{kind}>{escape(cell)}</td>' for kind, cell in values)}</tr>"


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
        shape += _marker(key)
    return f'<svg viewBox="0 0 26 12" aria-hidden="true">{shape}</svg>'


def _marker(key: Key) -> str:
    return f'<path d="{MARKERS[key.marker]}" fill="{key.colour}"/>' if key.marker else ""


def _class(name: str) -> str:
    return f' class="{name}"' if name else ""
