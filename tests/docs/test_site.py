"""The site is built without a warning and without a network, and each of its links leads somewhere."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from repository_pages import COPIES, DOCS, retargeted

REASON = "the site needs the extra docs: make docs, or pip install -e '.[docs]'"


@dataclass
class Page:
    """What the tests look at in a page."""

    ids: set[str] = field(default_factory=set)
    links: set[str] = field(default_factory=set)
    loaded: set[str] = field(default_factory=set)
    """Scripts, styles and pictures, which the page loads itself."""


class Reader(HTMLParser):
    """Collects the ids and the addresses of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.page = Page()

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        found = {name: value for name, value in attributes if value}
        if "id" in found:
            self.page.ids.add(found["id"])
        if tag == "a" and "href" in found:
            self.page.links.add(found["href"])
        elif tag in ("link", "image") and "href" in found:
            self.page.loaded.add(found["href"])
        elif "src" in found:
            self.page.loaded.add(found["src"])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    for package in ("sphinx", "myst_parser", "furo", "sphinx_copybutton"):
        pytest.importorskip(package, reason=REASON)
    out = tmp_path_factory.mktemp("site")
    command = [
        sys.executable,
        "-m",
        "sphinx",
        "-b",
        "html",
        "-n",
        "-W",
        "--keep-going",
        "-q",
        str(DOCS),
        str(out),
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-5000:]
    return out


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    found = {}
    for path in site.rglob("*.html"):
        reader = Reader()
        reader.feed(path.read_text(encoding="utf-8"))
        found[path] = reader.page
    return found


def local(addresses: set[str]) -> list[tuple[str, str, str]]:
    """Return the addresses without a host: the whole, its path and its part of a page."""
    split = [(address, urlsplit(address)) for address in sorted(addresses)]
    return [
        (address, unquote(s.path), unquote(s.fragment))
        for address, s in split
        if not s.scheme and not s.netloc
    ]


@pytest.mark.slow
@pytest.mark.xdist_group("site")
def test_every_link_leads_to_a_file_and_a_place_in_it(site: Path, pages: dict[Path, Page]) -> None:
    broken, followed = [], 0
    for path, page in pages.items():
        for address, file, part in local(page.links):
            target = (path.parent / file).resolve() if file else path
            followed += 1
            if not target.is_file() or (part and part not in pages[target].ids):
                broken.append(f"{path.relative_to(site)}: {address}")
    assert broken == []
    assert followed > 1000


@pytest.mark.slow
@pytest.mark.xdist_group("site")
def test_the_site_loads_nothing_from_elsewhere(pages: dict[Path, Page]) -> None:
    for path, page in pages.items():
        foreign = [address for address in page.loaded if urlsplit(address).netloc]
        assert foreign == [], path.name
        missing = [a for a, file, _ in local(page.loaded) if file and not (path.parent / file).exists()]
        assert missing == [], path.name


@pytest.mark.slow
@pytest.mark.xdist_group("site")
def test_every_page_of_docs_is_on_the_site_and_found_from_its_first_page(
    site: Path, pages: dict[Path, Page]
) -> None:
    reached, queue = set(), [site / "index.html"]
    while queue:
        path = queue.pop()
        if path not in reached and path in pages:
            reached.add(path)
            queue += [(path.parent / file).resolve() for _, file, _ in local(pages[path].links) if file]
    written = [
        path.relative_to(DOCS).with_suffix(".html")
        for path in DOCS.rglob("*.md")
        if "_build" not in path.parts
    ]
    assert len(written) > 60
    assert [str(name) for name in written if site / name not in reached] == []


@pytest.mark.slow
@pytest.mark.xdist_group("site")
def test_the_search_knows_keys_rules_and_public_names(site: Path) -> None:
    index = (site / "searchindex.js").read_text(encoding="utf-8")
    for name in ("least_candid", "fedstaleweight", "write_report"):
        assert name in index, name


def test_links_to_copied_pages_lead_to_the_copies() -> None:
    page = DOCS / "results" / "dropout.md"
    text = "[a](../../CONTRIBUTING.md#tests) [b](../rules.md) [c](https://x.org/a.md) [d](#e) [e](../../examples/a.py)"
    assert retargeted(text, page, page) == (
        "[a](../generated/contributing.md#tests) [b](../rules.md) [c](https://x.org/a.md) [d](#e) "
        "[e](../../examples/a.py)"
    )


def test_a_copy_links_from_its_own_place() -> None:
    (source,) = (path for path in COPIES if path.name == "CONTRIBUTING.md")
    text = retargeted("[a](docs/rules.md) [b](SECURITY.md) [c](.ci/run)", source, COPIES[source])
    assert text == "[a](../rules.md) [b](security.md) [c](../../.ci/run)"
