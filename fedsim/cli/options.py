"""Options that several commands share, alone and in groups, and the command lines that continue commands."""

from __future__ import annotations

import functools
import inspect
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_type_hints

from typer import Argument, Exit, Option
from typer.models import OptionInfo

from fedsim import analysis
from fedsim.common.errors import ConfigError
from fedsim.common.terminal import say

if TYPE_CHECKING:
    from fedsim.integrations.trackers import Logger

Config = Annotated[
    Path, Argument(help="A TOML file: `fedsim init` writes one, `fedsim schema` describes its keys.")
]
RunFolder = Annotated[Path, Argument(help="The folder of a run.")]
Sets = Annotated[
    list[str] | None,
    Option("--set", metavar="KEY=VALUE", help="Change a key: algorithm.alpha=0.2; may be repeated."),
]
Device = Annotated[
    Literal["auto", "cpu", "cuda"], Option(help="Device to compute on; auto takes a GPU if there is one.")
]
Quiet = Annotated[bool, Option("--quiet", help="Show no progress.")]

PICTURES, PAGES = (".png", ".svg", ".pdf"), (".html", ".htm")
"""Endings of the names of files that commands write."""
_RECORDS = {"arms.json", "manifest.json", "study.json"}


def check_ending(option: str, path: Path | None, endings: tuple[str, ...]) -> None:
    """Raise ConfigError if a file's name has none of the endings, or is that of a file of runs and studies."""
    if path is None:
        return
    if path.suffix.lower() not in endings:
        raise ConfigError(f"{option} {path}: expected a name that ends in {', '.join(endings)}")
    if path.name in _RECORDS:
        raise ConfigError(
            f"{option} {path}: this is the name of a file that describes runs: choose another one"
        )


@dataclass(frozen=True, kw_only=True)
class NewRun:
    """Options of commands that make a run."""

    sets: Sets = None
    out: Annotated[Path, Option("--out", "-o", help="Where run folders go: OUT/NAME.")] = Path("runs")
    force: Annotated[bool, Option("--force", help="Overwrite a run of the same name.")] = False

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of `fedsim.simulate` and `fedsim.fork` that the options stand for."""
        return {"out": self.out, "force": self.force}


@dataclass(frozen=True, kw_only=True)
class Training:
    """Options of all commands that train a run."""

    workers: Annotated[
        str,
        Option(
            help="Processes that train the clients of one run: a number, or auto; 0 trains in this process."
        ),
    ] = "auto"
    device: Device = "auto"
    write_report: Annotated[bool, Option("--report", help="Write the HTML report as well.")] = False
    quiet: Quiet = False

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of `fedsim.simulate`, `resume` and `fork` that the options stand for."""
        return {"workers": count_of(self.workers), "device": self.device, "progress": False}


@dataclass(frozen=True, kw_only=True)
class WatchedTraining(Training):
    """Options of `run` and `resume`."""

    ray_address: Annotated[
        str | None,
        Option(help="The Ray cluster to join: auto or HOST:PORT (docs/cluster.md); by default a local one."),
    ] = None
    profile: Annotated[
        bool, Option("--profile", help="Show where the wall time went, and write profile.json for Perfetto.")
    ] = False
    live: Annotated[bool, Option("--live", help="Show a dashboard in the terminal during the run.")] = False
    tensorboard: Annotated[Path | None, Option(help="Write TensorBoard events during the run: DIR/NAME.")] = (
        None
    )

    wandb: Annotated[
        str | None,
        Option(metavar="PROJECT", help="Send curves to this project of Weights & Biases during the run."),
    ] = None
    mlflow: Annotated[
        str | None,
        Option(metavar="STORE", help="Send curves to MLflow during the run: a tracking URI or a folder."),
    ] = None

    def __post_init__(self) -> None:
        required = {
            analysis.require_tensorboard: self.tensorboard,
            analysis.require_wandb: self.wandb,
            analysis.require_mlflow: self.mlflow,
        }
        for require, wanted in required.items():
            if wanted is not None:
                require()  # raises before anything starts

    def loggers(self) -> Iterator[Logger]:
        """Yield a logger for each tracker that the options name."""
        if (self.tensorboard, self.wandb, self.mlflow) == (None, None, None):
            return
        from fedsim.integrations.trackers import MLflowLogger, TensorBoardLogger, WandbLogger

        if self.tensorboard is not None:
            yield TensorBoardLogger(self.tensorboard)
        if self.wandb is not None:
            yield WandbLogger(self.wandb)
        if self.mlflow is not None:
            yield MLflowLogger(self.mlflow)

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of `fedsim.simulate` and `resume` that the options stand for."""
        return super().arguments() | {"profile": self.profile, "ray_address": self.ray_address}


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """Decorate a command for Typer, so that the fields of its dataclass parameters are options after its own ones."""
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {name: hint for name, hint in hints.items() if is_dataclass(hint)}

    @functools.wraps(command)
    def call(**values: Any) -> None:
        for name, group in groups.items():
            values[name] = group(**{field.name: values.pop(field.name) for field in fields(group)})
        command(**values)

    own = [p for name, p in inspect.signature(command).parameters.items() if name not in groups]
    members = [p for group in groups.values() for p in inspect.signature(group).parameters.values()]
    for group in groups.values():
        hints |= get_type_hints(group, include_extras=True)
    call.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [p.replace(kind=p.KEYWORD_ONLY, annotation=hints[p.name]) for p in (*own, *members)]
    )
    return call


def command_line(*words: object, groups: tuple[Any, ...] = ()) -> str:
    """Return a command as text for a shell: its words without None, and the options of groups that are no defaults."""
    texts = ["fedsim", *(str(word) for word in words if word is not None)]
    for group in groups:
        hints = get_type_hints(type(group), include_extras=True)
        for field in fields(group):
            value, option = getattr(group, field.name), _option(field.name, hints[field.name])
            if value is True:
                texts.append(option)
            elif value != field.default:
                texts += [text for each in _listed(value) for text in (option, str(each))]
    return shlex.join(texts)


def interrupted(state: str, command: str) -> Exit:
    """Show the command that continues an interrupted one, and return what ends the latter with code 130."""
    say(f"{state}; continue with: {command}")
    return Exit(130)


def _option(name: str, hint: Any) -> str:
    """Return the long option of a field."""
    for entry in get_args(hint):
        if isinstance(entry, OptionInfo):
            # In an annotation, Typer keeps the first declared name as the default.
            declared = [name for name in (entry.default, *(entry.param_decls or ())) if isinstance(name, str)]
            return next((name for name in declared if name.startswith("--")), _plain(name))
    return _plain(name)


def _plain(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def count_of(text: str, option: str = "--workers", least: int = 0) -> int | Literal["auto"]:
    """Return the number that an option such as `--workers` names. Raises ConfigError."""
    if text == "auto":
        return "auto"
    if not text.isdecimal() or int(text) < least:
        raise ConfigError(f"{option}: expected 'auto' or a number of at least {least}, found {text!r}")
    return int(text)
