"""Notebooks of `examples/`: run them anew, and see whether they say what is written in them.

python tests/helpers/notebooks.py            # compare what the cells print
python tests/helpers/notebooks.py --update   # write text and pictures into the notebooks
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from os import environ
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))
TIMEOUT_S = 240


def executed(path: Path) -> Any:
    """Run all cells in a process of their own, and return the notebook. Raises CellExecutionError."""
    notebook: Any = nbformat.read(path, as_version=4)
    with own_folders():
        client = NotebookClient(notebook, timeout=TIMEOUT_S, kernel_name="python3", record_timing=False)
        client.execute(cwd=ROOT)
    notebook.metadata.pop("language_info", None)  # the version of Python is no news
    return notebook


def texts(notebook: Any) -> list[str]:
    """Return what the cells of code print, one text each; a picture counts as `<Figure size ...>`."""
    return [
        "".join(
            output.get("text") or output.get("data", {}).get("text/plain", "")
            for output in cell.outputs
            if output.get("name") != "stderr"
        )
        for cell in notebook.cells
        if cell.cell_type == "code"
    ]


@contextmanager
def own_folders() -> Iterator[None]:
    """Keep what Jupyter and IPython write about themselves out of the home folder."""
    before = dict(environ)
    with tempfile.TemporaryDirectory() as folder:
        names = ("JUPYTER_RUNTIME_DIR", "JUPYTER_DATA_DIR", "JUPYTER_CONFIG_DIR", "IPYTHONDIR")
        environ.update({name: f"{folder}/{name}" for name in names})
        try:
            yield
        finally:
            environ.clear()
            environ.update(before)


def main() -> None:
    """Run each notebook, and write it if asked to; the exit code is 1 if one says something else."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--update", action="store_true", help="write what is found")
    given = parser.parse_args()
    differ = 0
    for path in NOTEBOOKS:
        found = executed(path)
        same = texts(found) == texts(nbformat.read(path, as_version=4))
        print(f"{path.name}: {'the same' if same else 'differs'}")
        differ += not same
        if given.update:
            nbformat.write(found, path)
    sys.exit(1 if differ and not given.update else 0)


if __name__ == "__main__":
    main()
