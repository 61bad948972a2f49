"""Figures as SVG inside an HTML page: no foreign addresses, the page's own font and text colour."""

from __future__ import annotations

import io
import re

import matplotlib
from matplotlib.figure import Figure

from analysis.plots._picture import INK

_NO_METADATA = dict.fromkeys(("Creator", "Date", "Format", "Type"))
_FAMILIES = re.compile(r"(font: [^;\"]*?\dpx |font-family: )'[^;\"]*")


def inline_svg(figure: Figure, prefix: str, alt: str) -> str:
    """Return the figure as one `<svg>` element that scales with the page.

    `prefix` keeps its ids apart from those of other figures; `alt` is its description. Colour `INK` becomes
    the colour of the text around it. Equal figures give equal text.
    """
    buffer = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": prefix}):
        figure.savefig(buffer, format="svg", metadata=_NO_METADATA)
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
    opening = f'<svg {box.group()} role="img" aria-label="{_attribute(alt)}">'
    return re.sub(r"<svg[^>]*>", lambda _: opening, text, count=1).strip()


def _attribute(text: str) -> str:
    return text.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;").replace(">", "&gt;")
