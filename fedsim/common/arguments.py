"""Checks the arguments of public functions against their annotations."""

from __future__ import annotations

import builtins
import functools
import inspect
import types
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from numbers import Integral, Real
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np
from numpy.typing import ArrayLike

from fedsim.common.errors import ConfigError, closest, described

Checked = TypeVar("Checked", bound=Callable[..., Any])

_WORDS: Mapping[Any, tuple[str, str]] = {
    bool: ("True or False", "truth values"),
    int: ("a whole number", "whole numbers"),
    float: ("a number", "numbers"),
    str: ("text", "texts"),
    Path: ("a path", "paths"),
    np.ndarray: ("an array of numbers", "arrays of numbers"),
    Any: ("a value", "values"),
}
"""The singular and the plural of a type in messages; other types go by their names."""
_FROM = {
    "Board": "fedsim.studies.progress.board_on yields",
    "Cell": "Study.cells holds",
    "Document": "analysis.run_document returns",
    "Run": "analysis.open_run returns",
    "RunConfig": "fedsim.load_config returns",
    "Study": "analysis.open_study returns",
    "StudyConfig": "fedsim.studies.load_study.load_study returns",
    "Trace": "fedsim.read_trace returns",
}
"""Where users get an object of a class."""
_MEANT = {"gpu": "cuda"}
"""What users mean by words that are not accepted."""
_TOO_LARGE = 2**63
"""The smallest whole number that arrays cannot hold."""
_LISTS = (Sequence, Collection, Iterable, list)


def checked(function: Checked) -> Checked:
    """Decorate a function or a class so that a call raises ConfigError for arguments that do not match annotations.

    The message names the argument or its entry, the expected type and where users get it, and the value found.
    """
    if isinstance(function, type):
        function.__init__ = checked(function.__init__)  # type: ignore[misc]
        return function
    signature = inspect.signature(function)
    single = {n for n, p in signature.parameters.items() if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)}
    hints = functools.cache(lambda: hints_of(function))

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            arguments = signature.bind(*args, **kwargs).arguments
        except TypeError:  # a missing or superfluous argument: the call itself raises the better error
            return function(*args, **kwargs)
        for name, hint in hints().items():
            if name in single and name in arguments:
                check(name, arguments[name], hint)
        return function(*args, **kwargs)

    return call  # type: ignore[return-value]


class _Unknown(type):
    """Stands for a class or a module that only type checkers import, under its name."""

    def __getattr__(cls, name: str) -> _Unknown:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Unknown(name, (), {})


class _Names(dict[str, Any]):
    def __missing__(self, name: str) -> _Unknown:
        return _Unknown(name, (), {})


def hints_of(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the annotations of a function's parameters; classes that only type checkers import are `_Unknown`."""
    known = _Names(vars(builtins) | inspect.unwrap(function).__globals__)
    return {n: hint for n, hint in get_type_hints(function, localns=known).items() if n != "return"}


def check(name: str, value: Any, hint: Any) -> None:
    """Raise ConfigError, as `checked` does, for an argument that does not match an annotation."""
    if _matches(value, hint):
        return
    for kind in _alternatives(hint):
        if get_origin(kind) in _LISTS and isinstance(value, (list, tuple)):
            position = next(i for i, each in enumerate(value) if not _matches(each, get_args(kind)[0]))
            check(f"{name}[{position}]", value[position], get_args(kind)[0])
    known = [each for kind in _alternatives(hint) if get_origin(kind) is Literal for each in get_args(kind)]
    meant = _MEANT.get(value, value) if isinstance(value, str) else ""
    near = closest(meant, known) if meant else ""
    near = near if "did you mean" in near else ""  # the message lists all known values already
    wanted = _words(hint)
    if isinstance(value, Integral) and abs(int(value)) >= _TOO_LARGE:
        wanted = wanted.replace("a whole number", "a whole number below 2^63 in size")
    raise ConfigError(f"{name}: expected {wanted}, found {described(value)}{near}")


def unaliased(hint: Any) -> Any:
    """Return what an alias of a `type` statement stands for, such as NDArray of NumPy 2.5; other annotations as is."""
    alias = get_origin(hint) or hint
    if hint is ArrayLike or not hasattr(alias, "__value__"):
        return hint
    of = get_args(hint)
    return unaliased(alias.__value__[of] if of else alias.__value__)


def _matches(value: Any, hint: Any) -> bool:
    hint = unaliased(hint)
    if hint is ArrayLike or np.ndarray in (hint, get_origin(hint)):
        return _numeric(value)
    kinds = _alternatives(hint)
    if len(kinds) > 1:
        return any(_matches(value, kind) for kind in kinds)
    if (origin := get_origin(hint)) is not None:
        return _matches_generic(value, origin, get_args(hint))
    if isinstance(hint, _Unknown):
        return hint.__name__ in (c.__name__ for c in type(value).__mro__)
    if hint is int:
        return not isinstance(value, bool) and isinstance(value, Integral) and abs(int(value)) < _TOO_LARGE
    if hint is float:
        return not isinstance(value, bool) and isinstance(value, Real) and _is_float(value)
    return hint is Any or isinstance(hint, TypeVar) or isinstance(value, hint or type(None))


def _matches_generic(value: Any, origin: Any, of: tuple[Any, ...]) -> bool:
    if origin is Literal:
        return isinstance(value, str) and value in of
    if origin is tuple:
        fits = isinstance(value, (tuple, list)) and (of[-1] is ... or len(value) == len(of))
        return fits and all(map(_matches, value, [of[0]] * len(value) if of[-1] is ... else of))
    if origin in _LISTS:
        return _matches_list(value, origin, of[0])
    return callable(value) if origin is Callable else isinstance(value, origin)


def _matches_list(value: Any, origin: Any, of: Any) -> bool:
    if isinstance(value, np.ndarray):
        return value.ndim == 1 and _matches(value[:1].tolist(), list[of])
    if isinstance(value, (str, bytes)) or not isinstance(value, Iterable):
        return False
    if isinstance(value, Mapping) and of is not str:  # the keys of a mapping may be the list of names
        return False
    if origin is Iterable and not isinstance(value, Collection):
        return True  # checking the entries of an iterator would exhaust it
    ordered = hasattr(value, "__len__") and (origin is not Sequence or hasattr(value, "__getitem__"))
    return ordered and all(_matches(each, of) for each in value)


def _is_float(value: Real) -> bool:
    try:
        return not np.isnan(float(value))
    except OverflowError:
        return False


def _numeric(value: Any) -> bool:
    try:
        array = np.asarray(value)
        return array.ndim > 0 and array.dtype.kind in "biuf"
    except (ValueError, TypeError, OverflowError):
        return False


def _alternatives(hint: Any) -> tuple[Any, ...]:
    hint = unaliased(hint)
    union = get_origin(hint) in (Union, types.UnionType) and hint is not ArrayLike
    return get_args(hint) if union else (hint,)


def _words(hint: Any, *, several: bool = False) -> str:
    """Return what an annotation asks for, in words."""
    kinds = _alternatives(hint)
    if Path in kinds:  # a path may be text, so `str` needs no mention
        kinds = tuple(kind for kind in kinds if kind is not str)
    if len(kinds) > 1:
        first, *others = dict.fromkeys(_words(kind, several=several) for kind in kinds)
        source = first[first.find(", as ") :] if ", as " in first else ""
        return f"{',' if source else ''} or ".join([first, *(other.replace(source, "") for other in others)])
    return _words_of(kinds[0], several)


def _words_of(kind: Any, several: bool) -> str:
    kind = unaliased(kind)
    origin, of = get_origin(kind), get_args(kind)
    if kind is ArrayLike:
        kind = np.ndarray
    if (known := _WORDS.get(np.ndarray if origin is np.ndarray else kind)) is not None:
        return known[several]
    if origin is Literal:
        return f"{'one of ' if len(of) > 1 else ''}{', '.join(map(repr, of))}"
    if origin in _LISTS:
        return f"a list of {_words(of[0], several=True)}"
    if origin is tuple:
        return f"({', '.join('...' if each is ... else _words(each) for each in of)})"
    if origin is Callable:
        return "a function"
    if kind in (None, type(None)):
        return "None"
    name = "dict" if origin is Mapping else (origin or kind).__name__
    source = f", as {_FROM[name]}" if name in _FROM else ""
    one = f"an {name}" if name[0] in "AEIO" else f"a {name}"
    return f"{name}s{source}" if several else f"{one}{source}"
