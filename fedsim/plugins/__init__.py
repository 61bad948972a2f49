"""Finds and builds plug-ins: a plug-in, its module and its factory have the same name.

    from fedsim import plugins
    plugins.names("rule")                       # ["ace", "afl", ...]
    plugins.build("partitioner", "dirichlet", {"alpha": 0.1})

The rule `fedfv` is `algorithms/fedfv.py: fedfv(...)`. Code in other places is named `package.module:factory` or
`path/to/file.py:factory`. There is no registry to edit. An installed distribution can give its plug-ins short names
with entry points of the groups in `KINDS`:

    [project.entry-points."fedsim.rules"]
    strongest = "my_package.rules:strongest"

A factory in an installed module must annotate its return type. A plug-in that fedsim ships takes precedence over an
entry point of the same name.

Objects that Python code passes to a run are named `python:DIGEST` (`given`); such a name means nothing elsewhere.

A name with a colon is code: running a configuration runs the code that it names. `FEDSIM_ONLY_SHIPPED=1` refuses it.
"""

from fedsim.plugins.errors import contained, keep_line, line_of, traceback_of, with_type
from fedsim.plugins.factories import (
    ONLY_SHIPPED,
    build,
    check,
    factory,
    idle_options,
    number_of,
    resolved,
    smaller_is_better,
    summary,
)
from fedsim.plugins.kinds import KINDS, Kind, distribution, entry_points, installed_file, names, shipped
from fedsim.plugins.loading import Source, provide, read_once, sources
from fedsim.plugins.python_objects import GIVEN, all_given, given, is_given, keep_given

__all__ = [
    "GIVEN",
    "KINDS",
    "ONLY_SHIPPED",
    "Kind",
    "Source",
    "all_given",
    "build",
    "check",
    "contained",
    "distribution",
    "entry_points",
    "factory",
    "given",
    "idle_options",
    "installed_file",
    "is_given",
    "keep_given",
    "keep_line",
    "line_of",
    "names",
    "number_of",
    "provide",
    "read_once",
    "resolved",
    "shipped",
    "smaller_is_better",
    "sources",
    "summary",
    "traceback_of",
    "with_type",
]
