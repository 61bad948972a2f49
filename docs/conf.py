"""Configuration of the site: `make docs` builds it into `docs/_build/html`, without a network."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "extensions"))

import fedsim

project = "fedsim"
author = "the authors of fedsim"
release = version = fedsim.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "repository_pages",
    "reference_pages",
    "scenario_pictures",
    "report_pictures",
]
exclude_patterns = ["_build", "extensions"]
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 4  # the anchors that GitHub gives to headings
smartquotes = False  # names of options and files have two or three hyphens
highlight_language = "text"  # blocks without a language are output
suppress_warnings = ["misc.highlighting_failure"]  # extracts of TOML and of Python with `...`

default_role = "literal"  # docstrings quote code in single backticks
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
autodoc_type_aliases = {"ArrayLike": "ArrayLike"}
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 90
nitpick_ignore_regex = [("py:.*", ".*")]  # types of other packages: their inventories would need a network

html_theme = "furo"
html_title = "fedsim"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_copyright = False
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#1f5f99", "color-brand-content": "#1f5f99"},
    "dark_css_variables": {"color-brand-primary": "#7db8ee", "color-brand-content": "#7db8ee"},
}
copybutton_exclude = ".linenos, .gp, .go"
