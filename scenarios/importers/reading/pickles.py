"""Read pickles as data, plain values and numpy scalars, without calling, importing or executing anything.

A pickle is a program: it may name any function, and even without one it can ask for a memo of any size. So a small
machine of this module executes it instead of `pickle`. Its memo is a dictionary, it builds Python numbers where the
pickle asks for numpy's two functions, refuses all other globals by name, and allows only numbers and texts as keys.
"""

from __future__ import annotations

import pickletools
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from fedsim.common.errors import TraceError
from fedsim.scenarios.importers.reading.files import shown
from fedsim.worlds.importer import Source

_SCALARS = {"f8": "d", "f4": "f", "i8": "q", "i4": "i"}
_GLOBALS = {
    ("numpy", "dtype"): "dtype",
    ("numpy.core.multiarray", "scalar"): "scalar",
    ("numpy._core.multiarray", "scalar"): "scalar",
}
_SINGLE = {
    "NONE": None,
    "NEWTRUE": True,
    "NEWFALSE": False,
}
_VALUES = {"INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT"} | {
    f"{size}BIN{kind}" for size in ("", "SHORT_") for kind in ("STRING", "UNICODE", "BYTES")
}
_VALUES |= {"STRING", "UNICODE", "BINUNICODE8", "BINBYTES8"}
_PASSED = {"PROTO", "FRAME"}


def plain_pickle(source: Source) -> Any:
    """Return the value of a pickle of dicts, lists, tuples, texts, bytes, numbers, None and numpy scalars.

    Raises TraceError that names the position of another global, a truncated file or a broken stream.
    """
    machine, at = _Machine(), 0
    try:
        for opcode, argument, position in pickletools.genops(source.data):
            at = position or 0
            machine.step(opcode.name, argument)
    except _Refused as error:
        raise TraceError(f"{source.name}, byte {at}: {error}") from None
    except (ValueError, IndexError, KeyError, TypeError, AttributeError, struct.error) as error:
        raise TraceError(
            f"{source.name}, byte {at}: not a sound pickle: {type(error).__name__}: {error}"
        ) from None
    return machine.result


class _Refused(Exception):
    """An instruction or a value that the machine does not accept."""


@dataclass(eq=False, slots=True)
class _Dtype:
    """Stands for a numpy.dtype of numbers."""

    code: str
    order: str = "<"

    def number(self, data: bytes | str) -> float:
        raw = data.encode("latin-1") if isinstance(data, str) else data
        value: float = struct.unpack(self.order + _SCALARS[self.code], raw)[0]
        return value


@dataclass(slots=True)
class _Machine:
    """Executes opcodes on a stack and a memo."""

    stack: list[Any] = field(default_factory=list)
    below: list[list[Any]] = field(default_factory=list)
    """The stacks under each open mark."""
    memo: dict[int, Any] = field(default_factory=dict)
    result: Any = None

    def step(self, name: str, argument: Any) -> None:
        if name in _VALUES:
            self.stack.append(argument)
        elif name in _SINGLE:
            self.stack.append(_SINGLE[name])
        elif name == "MEMOIZE":
            self.memo[len(self.memo)] = self.stack[-1]
        elif name.endswith("GET"):
            self.stack.append(self.memo[int(argument)])
        elif name.endswith("PUT"):
            self.memo[int(argument)] = self.stack[-1]
        elif name in _ACTIONS:
            _ACTIONS[name](self)
        elif name in ("GLOBAL", "STACK_GLOBAL"):
            self._global(argument)
        elif name not in _PASSED:
            raise _Refused(
                f"expected plain values (dicts, lists, texts, numbers), found the instruction {name}"
            )

    def mark(self) -> None:
        """Begin a group of values."""
        self.below.append(self.stack)
        self.stack = []

    def group(self) -> list[Any]:
        """Take the values above the last mark, and the mark."""
        values, self.stack = self.stack, self.below.pop()
        return values

    def push(self, value: Any) -> None:
        """Put a value on the stack."""
        self.stack.append(value)

    def pop(self) -> None:
        """Take the last value or, if there is none above it, the last mark."""
        if self.stack:
            self.stack.pop()
        else:
            self.group()

    def take(self, n: int) -> list[Any]:
        """Take the last n values."""
        if len(self.stack) < n:
            raise IndexError(f"expected {n} values on the stack, found {len(self.stack)}")
        values = self.stack[len(self.stack) - n :]
        del self.stack[len(self.stack) - n :]
        return values

    def extend(self, values: list[Any]) -> None:
        """Append to the list on the stack."""
        target = self.stack[-1]
        if not isinstance(target, list):
            raise TypeError(f"values for a list, but {shown(target)} is there")
        target.extend(values)

    def fill(self, values: list[Any]) -> None:
        """Set items of the dict on the stack."""
        target = self.stack[-1]
        if not isinstance(target, dict):
            raise TypeError(f"items for a dict, but {shown(target)} is there")
        target.update(_items(values))

    def stop(self) -> None:
        """Keep the only value left as the result."""
        (self.result,) = self.stack

    def reduce(self) -> None:
        """Build a dtype or a scalar; numpy's functions themselves are never called."""
        function, arguments = self.take(2)
        if function == _Global("dtype") and isinstance(arguments, tuple) and arguments[0] in _SCALARS:
            self.stack.append(_Dtype(arguments[0]))
        elif function == _Global("scalar") and isinstance(arguments, tuple):
            dtype, data = arguments
            self.stack.append(dtype.number(data))
        else:
            raise _Refused(f"expected a numpy number of 4 or 8 bytes, found {shown(arguments)}")

    def build(self) -> None:
        """Set the byte order of a dtype."""
        dtype, state = self.take(2)
        if not isinstance(dtype, _Dtype) or not isinstance(state, tuple) or state[1] not in ("<", ">"):
            raise _Refused(f"expected the byte order of a numpy number, found the state {shown(state)}")
        dtype.order = state[1]
        self.stack.append(dtype)

    def _global(self, argument: str | None) -> None:
        module, name = self.take(2) if argument is None else argument.split(" ", 1)
        known = _GLOBALS.get((str(module), str(name)))
        if known is None:
            raise _Refused(f"refused: it asks for {str(module)[:80]}.{str(name)[:80]}, and data need no code")
        self.stack.append(_Global(known))


@dataclass(frozen=True, slots=True)
class _Global:
    """Stands for one of the two functions of numpy that build scalars."""

    name: str


def _items(values: list[Any]) -> dict[Any, Any]:
    if len(values) % 2:
        raise ValueError("a key without a value")
    keys = values[::2]
    for key in keys:
        if not isinstance(key, str | int | float | bytes | None):
            raise _Refused(f"expected numbers or texts as keys, found {shown(key)}")
    return dict(zip(keys, values[1::2], strict=True))


_ACTIONS: dict[str, Callable[[_Machine], None]] = {
    "MARK": _Machine.mark,
    "POP": _Machine.pop,
    "POP_MARK": lambda m: m.group().clear(),
    "DUP": lambda m: m.push(m.stack[-1]),
    "EMPTY_DICT": lambda m: m.push({}),
    "EMPTY_LIST": lambda m: m.push([]),
    "EMPTY_TUPLE": lambda m: m.push(()),
    "DICT": lambda m: m.push(_items(m.group())),
    "LIST": lambda m: m.push(m.group()),
    "TUPLE": lambda m: m.push(tuple(m.group())),
    "TUPLE1": lambda m: m.push(tuple(m.take(1))),
    "TUPLE2": lambda m: m.push(tuple(m.take(2))),
    "TUPLE3": lambda m: m.push(tuple(m.take(3))),
    "APPEND": lambda m: m.extend(m.take(1)),
    "APPENDS": lambda m: m.extend(m.group()),
    "SETITEM": lambda m: m.fill(m.take(2)),
    "SETITEMS": lambda m: m.fill(m.group()),
    "REDUCE": _Machine.reduce,
    "BUILD": _Machine.build,
    "STOP": _Machine.stop,
}
