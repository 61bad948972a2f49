"""Figures as SVG inside an HTML page, in the page's font and text colour, without references to other files."""

from __future__ import annotations

import io
import re
from html import escape
from typing import Any

import matplotlib
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from fedsim.analysis.drawing.picture import INK

_DPI = 72
"""Dots per inch of every SVG: its unit is the point."""
_NO_METADATA = dict.fromkeys(("Creator", "Date", "Format", "Type"))
_FAMILIES = re.compile(r"(font: [^;\"]*?\dpx |font-family: )'[^;\"]*")


def inline_svg(figure: Figure, prefix: str, alt: str) -> str:
    """Return the figure as one `<svg>` element that scales with the page.

    `prefix` keeps its ids apart from those of other figures. For screen readers, the first sentence of `alt` becomes
    the title and the rest the description. The colour `INK` becomes the colour of the surrounding text. Equal figures
    give equal text.
    """
    buffer = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": prefix}):
        _print(figure, buffer)
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(
        r"<(metadata|style)\b.*?</\1>", "", text, flags=re.DOTALL
    )  # a style would rule the whole page
    text = re.sub(r'\bid="', f'id="{prefix}-', text)
    text = re.sub(r'xlink:href="#|href="#', f'href="#{prefix}-', text).replace("xlink:href", "href")
    text = text.replace("url(#", f"url(#{prefix}-").replace(INK, "currentColor")
    text = _FAMILIES.sub(r"\1system-ui, sans-serif", text)
    box = re.search(r'viewBox="[^"]*"', text)
    assert box is not None
    return re.sub(r"<svg[^>]*>", lambda _: _opening(box.group(), prefix, alt), text, count=1).strip()


def _print(figure: Figure, buffer: io.StringIO) -> None:
    """Write the same as `figure.savefig`, which would draw the figure twice."""
    canvas: Any = FigureCanvasSVG(figure)
    figure.dpi = _DPI
    if (layout := figure.get_layout_engine()) is not None:
        layout.execute(figure)
        figure.set_layout_engine("none")
    canvas.print_svg(buffer, metadata=_NO_METADATA)


def _opening(box: str, prefix: str, alt: str) -> str:
    title, _, rest = alt.partition(". ")
    parts = {"title": title, "desc": rest} if rest else {"title": title}
    named = " ".join(f"{prefix}-{tag}" for tag in parts)
    inner = "".join(f'<{tag} id="{prefix}-{tag}">{escape(text)}</{tag}>' for tag, text in parts.items())
    return f'<svg {box} role="img" aria-labelledby="{named}">{inner}'
