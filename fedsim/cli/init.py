"""`fedsim init`: make a folder with an experiment to start from."""

from __future__ import annotations

import shlex
from importlib.resources import files
from pathlib import Path
from typing import Annotated

from typer import Argument

from fedsim.common.errors import FolderError
from fedsim.common.terminal import say

FILES = ("experiment.toml", "my_rule.py", "run.py", "README.md")
_COMMANDS = (
    ("fedsim run experiment.toml", "runs FedAvg and the rule in my_rule.py"),
    ("python run.py", "does so from Python, compares them and writes a report"),
)


def init(
    name: Annotated[Path, Argument(metavar="NAME", help="The folder to make.")] = Path("fedsim-experiment"),
) -> None:
    """Make a folder with an experiment to start from. It holds a configuration, a rule of your own and a script."""
    from fedsim.common.files import make_directory, write_text

    if name.exists() and not name.is_dir():
        raise FolderError(f"{name} is a file: choose another name")
    if name.is_dir() and any(name.iterdir()):
        raise FolderError(f"{name} exists and is not empty: choose another name")

    make_directory(name)
    templates = files("fedsim.cli.templates")
    for file in FILES:
        write_text(name / file, templates.joinpath(file).read_text(encoding="utf-8"))
    say(f"{name}: {', '.join(FILES)}\n\ncd {shlex.quote(str(name))}")
    for command, effect in _COMMANDS:
        say(f"{command:<28}# {effect}")
