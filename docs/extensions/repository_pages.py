"""Shows Markdown pages from outside of `docs/` on the site, and points links at their copies.

A link from a page in `docs/` to `../CONTRIBUTING.md` works on GitHub. The site has a copy of that file, and the link
leads there. A link to any other file of the repository becomes a download, which MyST makes of it. A `<picture>` with a
dark form, which GitHub switches with its theme, becomes two images of which the site's theme shows one.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
GENERATED = DOCS / "generated"
COPIES = {
    ROOT / "CONTRIBUTING.md": GENERATED / "contributing.md",
    ROOT / "SECURITY.md": GENERATED / "security.md",
    ROOT / "CHANGELOG.md": GENERATED / "changelog.md",
    ROOT / "README.md": GENERATED / "readme.md",
    ROOT / "benchmarks" / "README.md": GENERATED / "benchmarks.md",
    ROOT / "benchmarks" / "peers" / "README.md": GENERATED / "peers.md",
    ROOT / "tests" / "golden" / "README.md": GENERATED / "golden.md",
}
_LINK = re.compile(r"(\]\()([^)#\s]+)")
_PICTURE = re.compile(r"<picture>\n *<source [^>]*srcset=\"([^\"]+)\">\n *<img ([^>]*)>\n</picture>")


def retargeted(text: str, page: Path, shown: Path) -> str:
    """Return the text of `page` with the links and pictures that it needs as the file `shown` of the site."""

    def target(match: re.Match[str]) -> str:
        opening, old = match.groups()
        if re.match(r"[a-z]+:", old):
            return match[0]
        file = Path(os.path.normpath(page.parent / old))
        return opening + os.path.relpath(COPIES.get(file, file), shown.parent)

    def pictures(match: re.Match[str]) -> str:
        given = dict(re.findall(r'(src|alt)="([^"]*)"', match[2]))
        files = {"only-light": given["src"], "only-dark": match[1]}
        there = {theme: os.path.relpath(page.parent / file, shown.parent) for theme, file in files.items()}
        return "\n".join(
            f":::{{image}} {file}\n:alt: {given['alt']}\n:class: {theme}\n:::"
            for theme, file in there.items()
        )

    return _PICTURE.sub(pictures, _LINK.sub(target, text))


def write_copies(app: Any) -> None:
    """Write the copies into `docs/generated/`."""
    for source, copy in COPIES.items():
        write_if_changed(copy, retargeted(source.read_text(encoding="utf-8"), source, copy))


def write_if_changed(path: Path, text: str) -> None:
    """Write a generated page, unless it already has this text: Sphinx builds changed pages alone."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.is_file() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")


def _retarget(app: Any, docname: str, source: list[str]) -> None:
    page = Path(app.env.doc2path(docname))
    if GENERATED not in page.parents:
        source[0] = retargeted(source[0], page, page)


def setup(app: Any) -> dict[str, bool]:
    """Connect the extension."""
    app.connect("builder-inited", write_copies)
    app.connect("source-read", _retarget)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
