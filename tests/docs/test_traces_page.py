"""docs/trace_formats.md says what the importers say of themselves."""

from benchmarks.traces import formats
from fedsim.plugins import factory, names
from fedsim.plugins.options import options_of


def test_the_page_lists_formats_and_options_as_they_are(root):
    page = (root / "docs" / "trace_formats.md").read_text()
    assert "\n".join(formats()) in page, "paste what `python benchmarks/traces.py --formats` prints"


def test_every_option_is_explained():
    for name in names("importer"):
        make = factory("importer", name)
        told = make.__doc__ or ""
        if name != "parquet":  # whose options are those of csv
            assert [o for o in options_of(make) if f"`{o}" not in told] == [], name
