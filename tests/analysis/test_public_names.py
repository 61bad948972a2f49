"""The public names of `fedsim.analysis`: all of them can be imported, none before it is used."""

from __future__ import annotations

import subprocess
import sys

import pytest

from fedsim import analysis


def test_public_names_are_exactly_what_can_be_imported() -> None:
    for name in analysis.__all__:
        assert getattr(analysis, name) is not None
    with pytest.raises(AttributeError, match="analysis attribute nothing"):
        _ = analysis.nothing


def test_opening_the_package_imports_nothing_of_it() -> None:
    code = (
        "from fedsim import analysis; import sys; print([m for m in sys.modules if 'fedsim.analysis.' in m])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
