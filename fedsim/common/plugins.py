"""Finds and builds plug-ins: a plug-in, its module and its factory have the same name.

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

from __future__ import annotations

import dis
import importlib
import importlib.util
import inspect
import os
import pkgutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from importlib.machinery import SourceFileLoader
from itertools import takewhile
from pathlib import Path
from traceback import format_exception, format_exception_only, walk_tb
from types import ModuleType
from typing import TYPE_CHECKING, Any

from fedsim.common.errors import ConfigError, Error, RunError, closest
from fedsim.common.option_requirements import lacks_in, refusal
from fedsim.common.plugin_options import call, checked_options, completed, options_model, options_of, plain

if TYPE_CHECKING:
    import importlib.metadata


@dataclass(frozen=True, slots=True)
class Kind:
    """Where plug-ins of one kind come from, and what they make."""

    package: str
    """The package of the plug-ins that fedsim ships."""
    group: str
    """The group of the entry points of other distributions."""
    product: str
    """The return type of a factory (a metric is itself the function)."""
    purpose: str
    """What plug-ins of the kind do, in a few words."""


KINDS = {
    "rule": Kind("fedsim.algorithms", "fedsim.rules", "Algorithm", "how updates become a step of the server"),
    "wrapper": Kind(
        "fedsim.algorithms.wrappers",
        "fedsim.wrappers",
        "Algorithm",
        "change a rule: clip, discount, remember",
    ),
    "client": Kind("fedsim.algorithms.clients", "fedsim.clients", "ClientMethod", "how a client trains"),
    "selector": Kind(
        "fedsim.algorithms.selection", "fedsim.selectors", "Selector", "which clients the server asks"
    ),
    "scenario": Kind(
        "fedsim.scenarios", "fedsim.scenarios", "Scenario", "who is online, how fast, when clients fail"
    ),
    "importer": Kind(
        "fedsim.scenarios.importers", "fedsim.importers", "Importer", "read published traces as worlds"
    ),
    "task": Kind("fedsim.data.tasks", "fedsim.tasks", "Task", "data sets"),
    "model": Kind("fedsim.models", "fedsim.models", "Module", "networks"),
    "partitioner": Kind(
        "fedsim.data.partitioners",
        "fedsim.partitioners",
        "Partition",
        "how samples are divided among clients",
    ),
    "metric": Kind(
        "fedsim.analysis.metrics", "fedsim.metrics", "float", "numbers over the accuracies of clients"
    ),
    "adversary": Kind(
        "fedsim.training.attacks",
        "fedsim.adversaries",
        "Attack",
        "what malicious clients do to data and updates",
    ),
}

Suggest = Callable[..., str]
"""A function such as `fedsim.common.errors.closest`."""

_provided: dict[str, Any] = {}
"""Modules made from source texts, by the path in a plug-in's name."""
_installed: set[str] = set()
"""Installed modules that names of plug-ins referred to."""

GIVEN = "python:"
"""Prefix of the names of objects that Python code passes to a run; a digest of the object follows."""
_given: dict[str, Callable[..., Any]] = {}
"""The factories of such objects by name."""

_CHECKED = ("task", "client", "selector", "adversary")
"""Kinds whose products `build` checks by the names of their classes; the callers check the others."""
_PREFIX = "fedsim_plugin_"
"""Prefix of the names of modules that were read from files."""
ONLY_SHIPPED = "FEDSIM_ONLY_SHIPPED"
"""The environment variable that allows only the plug-ins that fedsim ships."""


def names(kind: str) -> list[str]:
    """Return the sorted names of the plug-ins of a kind (a key of `KINDS`), shipped and of entry points."""
    return sorted(shipped(kind) | entry_points(kind).keys())


def shipped(kind: str) -> set[str]:
    """Return the names of the plug-ins in the folder of a kind; modules that start with `_` are private."""
    modules = pkgutil.iter_modules(importlib.import_module(KINDS[kind].package).__path__)
    return {m.name for m in modules if not m.ispkg and not m.name.startswith("_")}


@cache
def entry_points(kind: str) -> Mapping[str, Sequence[importlib.metadata.EntryPoint]]:
    """Return the entry points of other distributions by name, except for names of shipped plug-ins."""
    import importlib.metadata  # slow: reads the metadata of all installed distributions

    points: dict[str, list[importlib.metadata.EntryPoint]] = {}
    for point in importlib.metadata.entry_points(group=KINDS[kind].group):
        if point.name not in shipped(kind):
            points.setdefault(point.name, []).append(point)
    return points


def distribution(kind: str, name: str) -> str | None:
    """Return the distribution whose entry point names a plug-in; None for a shipped plug-in."""
    points = entry_points(kind).get(name, ())
    return ", ".join(str(point.dist and point.dist.name) for point in points) or None


def factory(kind: str, name: str) -> Callable[..., Any]:
    """Return the factory of a plug-in. Raises ConfigError that suggests the closest name."""
    if name.startswith(GIVEN):
        return _passed(kind, name)
    if ":" in name:
        return _elsewhere(kind, name)
    if name.endswith(".py"):
        raise ConfigError(
            f"{kind} {name!r}: expected the name of the function too, such as '{name}:{Path(name).stem}'"
        )
    module = f"{KINDS[kind].package}.{name}"
    imported = getattr(sys.modules.get(module), name, None)
    if callable(imported):  # much faster than listing the folder
        return imported  # type: ignore[no-any-return]
    if name in shipped(kind):
        return _member(kind, name, module, name)
    points = entry_points(kind).get(name)
    if not points:
        raise ConfigError(f"there is no {kind} {name!r}{closest(name, names(kind))}")
    if len(points) > 1:
        raise ConfigError(
            f"there is more than one {kind} {name!r}, of {distribution(kind, name)}: write one of "
            f"{', '.join(repr(point.value) for point in points)}"
        )
    return _elsewhere(kind, points[0].value)


def build(kind: str, name: str, options: Mapping[str, Any], **supplied: Any) -> Any:
    """Call a plug-in's factory with `options` of a configuration and with the arguments `supplied` by fedsim.

    The options are checked against the factory's signature. Raises ConfigError that names each unknown option, with
    the closest known one, and each wrong type.
    """
    plugin, expected = f"{kind} {name!r}", KINDS[kind].product
    checked = check(kind, name, options, supplied)
    if lines := [
        refusal(f"{plugin}, option {place!r}", lacks)
        for place, lacks in idle_options(kind, name, options, supplied)
        if lacks
    ]:
        raise ConfigError("\n".join(lines))
    with contained(plugin):
        product = call(factory(kind, name), checked, supplied)
    returned = f"{plugin} returned {type(product).__name__}"
    if kind in _CHECKED and expected not in (c.__name__ for c in type(product).__mro__):
        raise ConfigError(f"{returned}, expected an instance of {expected}")
    if kind == "partitioner" and not callable(product):
        raise ConfigError(f"{returned}, expected a function")
    return product


def summary(kind: str, name: str) -> str:
    """Return the first line of a plug-in's docstring."""
    return (inspect.getdoc(factory(kind, name)) or "").strip().split("\n")[0]


def check(
    kind: str,
    name: str,
    options: Mapping[str, Any],
    supplied: Iterable[str],
    others: Iterable[str] = (),
    *,
    suggest: Suggest = closest,
) -> dict[str, Any]:
    """Return the options of a plug-in converted by the annotations of its factory's parameters.

    Raises ConfigError if there is no such plug-in, or if it does not accept these options.

    Args:
        kind: a key of `KINDS`.
        name: the plug-in.
        options: its options in a configuration.
        supplied: parameters that fedsim sets.
        others: other keys of the plug-in's table, which a message may suggest.
        suggest: returns the hint for an unknown option, from the option, the known ones and `others`.
    """
    make = factory(kind, name)
    return checked_options(f"{kind} {name!r}", make, options, supplied, partial(suggest, others=others))


def idle_options(
    kind: str, name: str, options: Mapping[str, Any], supplied: Iterable[str]
) -> list[tuple[str, str]]:
    """Return the options that depend on another one, and what each lacks to have an effect, or ""."""
    make = factory(kind, name)
    given = completed(options, options_of(make, supplied))
    return list(lacks_in(options_model(make, tuple(supplied)).model_validate(given)))


def resolved(kind: str, name: str, options: Mapping[str, Any], supplied: Iterable[str]) -> dict[str, Any]:
    """Return the options with all defaults, except for defaults that TOML cannot express, such as None."""
    if name.startswith(GIVEN):  # it has no options, and it may be absent
        return dict(options)
    known = options_of(factory(kind, name), supplied)
    defaults = {n: plain(p.default) for n, p in known.items() if p.default is not p.empty}
    values = {n: v for n, v in defaults.items() if v is not None} | dict(options)
    return {n: list(v) if isinstance(v, tuple) else v for n, v in values.items()}


def smaller_is_better(metric: str) -> bool:
    """Return whether smaller values of a metric are better, which its file states by `SMALLER_IS_BETTER = True`."""
    try:
        module = sys.modules[factory("metric", metric).__module__]
    except ConfigError:  # not a metric, but another column of a frame
        return False
    return bool(getattr(module, "SMALLER_IS_BETTER", False))


def number_of(metric: str, value: Any) -> float:
    """Return the value that a metric returned as a float. Raises RunError if it is no number."""
    import numpy as np  # not needed to list plug-ins

    if np.ndim(value) or not isinstance(value, (int, float, np.number, np.bool_)):
        fault = f"an array of shape {list(np.shape(value))}" if np.ndim(value) else type(value).__name__
        raise RunError(f"metric {metric!r}: expected a number, found {fault}")
    return float(value)


def sources(plugins: Iterable[str]) -> dict[str, str]:
    """Return the text of each file that names of plug-ins refer to, by its path, for `provide` in another process."""
    paths = {where for where, _, _ in (name.rpartition(":") for name in plugins) if where.endswith(".py")}
    return {path: Path(path).read_text(encoding="utf-8") for path in sorted(paths)}


def provide(texts: Mapping[str, str]) -> None:
    """Use the texts of `sources` in place of the files at their paths, unless this process has equal files."""
    for where, text in texts.items():
        path = Path(where)
        if path.is_file() and path.read_text(encoding="utf-8") == text:
            continue
        with tempfile.TemporaryDirectory() as folder:
            copy = Path(folder) / path.name
            copy.write_text(text, encoding="utf-8")
            _provided[where] = _from_file(copy)


@contextmanager
def given(factories: Mapping[str, Callable[..., Any]]) -> Iterator[None]:
    """Let configurations name `factories`, whose names start with `GIVEN`, in the body."""
    added = {name: make for name, make in factories.items() if name not in _given}
    _given.update(added)
    try:
        yield
    finally:
        for name in added:
            _given.pop(name, None)


def is_given(name: str) -> bool:
    """Return whether a name is that of an object that Python code has passed to this process."""
    return name in _given


def all_given() -> dict[str, Callable[..., Any]]:
    """Return the factories that Python code has passed to this process, by name."""
    return dict(_given)


def keep_given(factories: Mapping[str, Callable[..., Any]]) -> None:
    """Let configurations name `factories` in place of those of earlier calls: for a process that trains one run."""
    _given.clear()
    _given.update(factories)


def _passed(kind: str, name: str) -> Callable[..., Any]:
    if name in _given:
        return _given[name]
    raise ConfigError(
        f"{kind} {name!r} came from Python code, and no file holds it: call fedsim.simulate, study, resume, fork, "
        f"replay or verify with {kind}=..."
    )


def _elsewhere(kind: str, name: str) -> Callable[..., Any]:
    if os.environ.get(ONLY_SHIPPED, "0") not in ("", "0"):
        raise ConfigError(f"{kind} {name!r} is code that fedsim does not ship, and {ONLY_SHIPPED} refuses it")
    where, _, member = name.rpartition(":")
    if not where.endswith(".py"):
        _installed.add(where)
    make = _member(kind, name, where, member)
    if not where.endswith(".py"):
        _check_returns(make, kind, name)
    return make


def _check_returns(make: Callable[..., Any], kind: str, name: str) -> None:
    """Raise ConfigError for functions that are no plug-ins; else a configuration could call `os.system`."""
    returned = make if isinstance(make, type) else getattr(make, "__annotations__", {}).get("return")
    if isinstance(returned, str):
        classes = {returned.rpartition(".")[2]}
    else:
        classes = {c.__name__ for c in getattr(returned, "__mro__", ())}
    expected = KINDS[kind].product
    if expected not in classes:
        raise ConfigError(
            f"{kind} {name!r}: expected a function whose annotation says that it returns a {expected}, "
            f"found {returned!r}"
        )


def _member(kind: str, name: str, where: str, member: str) -> Callable[..., Any]:
    """Return a function in the module or file `where`. Raises ConfigError with the fault and its line."""
    try:
        if where.endswith(".py"):
            imported = _provided.get(where) or _from_file(Path(where))
        else:
            imported = importlib.import_module(where)
    except Error:
        raise
    except BaseException as error:  # a user's module may raise anything
        if not isinstance(error, Exception) and not _ends_the_process(error):
            raise
        plain_message = isinstance(error, (ImportError, OSError, SyntaxError))
        message = str(error) if plain_message else _with_type(error)
        raise ConfigError(f"cannot import the {kind} {name!r}: {message}{line_of(error)}") from error
    make = getattr(imported, member, None)
    if not callable(make):
        functions = [n for n, v in vars(imported).items() if inspect.isfunction(v) and not n.startswith("_")]
        raise ConfigError(f"{kind} {name!r}: {where} has no function {member!r}{closest(member, functions)}")
    return make  # type: ignore[no-any-return]


@contextmanager
def contained(plugin: str = "") -> Iterator[None]:
    """Raise RunError if a plug-in raises a BaseException such as SystemExit, which would end the process.

    Args:
        plugin: the plug-in in the message. If it is given, the body runs only the plug-in, which then raised any
            SystemExit.
    """
    try:
        yield
    except BaseException as error:
        exits = plugin != "" and isinstance(error, SystemExit)
        if isinstance(error, Exception) or not (exits or _ends_the_process(error)):
            raise
        prefix = f"{plugin}: " if plugin else ""
        raise RunError(
            f"{prefix}{_with_type(error)}{line_of(error)}: a plug-in may end a run by an Exception alone"
        ) from error


def _with_type(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _ends_the_process(error: BaseException) -> bool:
    """Return whether a plug-in raised this BaseException, which is not the case for a real Ctrl-C within one."""
    root = _root(error)
    if not line_of(error) or type(root).__module__.partition(".")[0] == "fedsim":
        return False
    if not isinstance(root, KeyboardInterrupt):
        return True
    last = root.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    if last is None:  # a cause that was never raised
        return True
    ours = str(last.tb_frame.f_globals.get("__name__")).startswith("fedsim.")
    return not ours and last.tb_frame.f_code.co_code[last.tb_lasti] == dis.opmap["RAISE_VARARGS"]


def _root(error: BaseException) -> BaseException:
    """Return the first cause of an error: SimPy raises copies of the errors of processes."""
    seen = {id(error)}
    while error.__cause__ is not None and id(error.__cause__) not in seen:
        error = error.__cause__
        seen.add(id(error))
    return error


def line_of(error: BaseException) -> str:
    """Return the last line of a plug-in's file in the traceback of an error, as ` (file, line n)`, or "".

    It is empty for a syntax error, whose message has the line.
    """
    if isinstance(error, SyntaxError):
        return ""
    lines = [
        (Path(frame.f_code.co_filename).name, line)
        for through in (error, _root(error))
        for frame, line in walk_tb(through.__traceback__)
        if _of_plugin(str(frame.f_globals.get("__name__")))
    ]
    return f" ({lines[-1][0]}, line {lines[-1][1]})" if lines else ""


def _of_plugin(module: str) -> bool:
    return module.startswith(_PREFIX) or module in _installed


def traceback_of(error: BaseException) -> str:
    """Return an error and its traceback from the first line of a plug-in's file on; empty if it has no such line.

    The frames above that are cut out of the error.
    """
    in_plugin = False
    for each in _chain(error):
        frame = each.__traceback__
        while frame is not None and not _of_plugin(str(frame.tb_frame.f_globals.get("__name__"))):
            frame = frame.tb_next
        if frame is not None:
            each.__traceback__, in_plugin = frame, True
    return "".join(format_exception(error)).rstrip() if in_plugin else _traceback_of_actor(error)


def _traceback_of_actor(error: BaseException) -> str:
    """Return the same for an error of an actor, whose traceback is the text of its cause."""
    files = {module.__file__ for name, module in [*sys.modules.items()] if _of_plugin(name)}
    lines = str(error.__cause__).splitlines()
    first = next((i for i, line in enumerate(lines) if _file_in(line) in files), None)
    if first is None:
        return ""
    frames = takewhile(lambda line: line.startswith(" "), lines[first:])
    text = "".join(format_exception_only(error)).rstrip()
    return "\n".join(["Traceback (most recent call last):", *frames, text])


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error, and the errors before it that Python shows above it."""
    seen = set[int]()
    while error is not None and id(error) not in seen:
        yield error
        seen.add(id(error))
        error = error.__cause__ or error.__context__


def _file_in(line: str) -> str:
    """Return the whole path in a line of a traceback, or ""."""
    return str(Path(line.split('"')[1]).absolute()) if line.lstrip().startswith('File "') else ""


class _TextLoader(SourceFileLoader):
    """Compiles a file each time: cached bytecode is matched by second and size, which an edit may not change."""

    def path_stats(self, path: Any) -> Mapping[str, Any]:
        """Raise OSError, so that no cached bytecode is used."""
        raise OSError


def _from_file(path: Path) -> Any:
    if not path.is_file():
        raise FileNotFoundError(f"{path} is not a file, seen from {Path.cwd()}")
    qualified = f"{_PREFIX}{path.resolve().as_posix().replace('/', '_').removesuffix('.py')}"
    if qualified in sys.modules:
        return sys.modules[qualified]
    loader = _TextLoader(qualified, str(path))
    spec = importlib.util.spec_from_file_location(qualified, path, loader=loader)
    assert spec is not None
    module = sys.modules[qualified] = importlib.util.module_from_spec(spec)
    try:
        loader.exec_module(module)
    except BaseException:
        del sys.modules[qualified]
        raise
    return module


def require(extra: str, module: str) -> ModuleType:
    """Return a module of an optional package, which pip installs as an extra of fedsim.

    Raises ConfigError, with the command that installs the extra, if the module cannot be imported.
    """
    package = module.partition(".")[0]
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ConfigError(
            f"the package {package} is needed and cannot be imported ({error}): "
            f"pip install 'fedsim-dynamics[{extra}]'"
        ) from error
