"""docs/trace_formats.md says what the importers say of themselves."""

from benchmarks.traces import formats


def test_the_page_lists_formats_and_options_as_they_are(root):
    page = (root / "docs" / "trace_formats.md").read_text()
    assert "\n".join(formats()) in page, "paste what `python benchmarks/traces.py --formats` prints"
