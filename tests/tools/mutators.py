"""Where code can be changed, and how: Cosmic Ray's operators, and three that it has not."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import parso
from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.operators.operator import Example, Operator
from cosmic_ray.plugins import get_operator, operator_names

Place = tuple[int, int]
Makers = list[tuple[str, Callable[[], str | None]]]

OPPOSITES = [
    ("min", "max"), ("minimum", "maximum"), ("argmin", "argmax"), ("any", "all"), ("ceil", "floor"), ("first", "last"),
    ("'left'", "'right'"), ('"left"', '"right"'),
]  # fmt: skip
SWAPPED = {a: b for pair in OPPOSITES for a, b in (pair, pair[::-1])}


class SwapOpposites(Operator):
    """Replace a function by its opposite, as `min` by `max`."""

    def mutation_positions(self, node: Any) -> Iterator[tuple[Place, Place]]:
        if node.type in ("name", "string") and node.value in SWAPPED:
            yield node.start_pos, node.end_pos

    def mutate(self, node: Any, index: int) -> Any:
        node.value = SWAPPED[node.value]
        return node

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        return (Example("min(x)", "max(x)"),)


class SwapMembership(Operator):
    """Replace `in` by `not in`, and the other way round."""

    def mutation_positions(self, node: Any) -> Iterator[tuple[Place, Place]]:
        if node.type == "comparison":
            for child in node.children[1::2]:
                if child.get_code().strip() in ("in", "not in"):
                    yield child.start_pos, child.end_pos

    def mutate(self, node: Any, index: int) -> Any:
        at = [i for i, child in enumerate(node.children) if child.get_code().strip() in ("in", "not in")][
            index
        ]
        node.children[at] = parso.parse(" not in" if node.children[at].get_code().strip() == "in" else " in")
        return node

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        return (Example("x in y", "x not in y"),)


class RemoveCall(Operator):
    """Leave out a call whose result nobody wants."""

    def mutation_positions(self, node: Any) -> Iterator[tuple[Place, Place]]:
        if node.type == "atom_expr" and node.parent.type == "simple_stmt":
            yield node.start_pos, node.end_pos

    def mutate(self, node: Any, index: int) -> Any:
        first = node.get_first_leaf()
        return parso.python.tree.Name("pass", first.start_pos, first.prefix)

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        return (Example("f(x)\n", "pass\n"),)


def operators() -> Iterator[Operator]:
    for name in operator_names():
        if not name.endswith(
            ("VariableReplacer", "VariableInserter")
        ):  # these want to be told which variables
            yield get_operator(name)()
    yield from (SwapOpposites(), SwapMembership(), RemoveCall())


def places(source: str) -> dict[Place, Makers]:
    """Return for each place of a source the mutants there: the operator's name, and what makes the mutated source."""
    nodes = list(ast_nodes(get_ast(source)))
    found: dict[Place, Makers] = defaultdict(list)
    for operator in operators():
        starts = [start for node in nodes for start, _ in operator.mutation_positions(node)]
        for occurrence, start in enumerate(starts):
            make = partial(mutate_code, source, operator, occurrence)
            found[start].append((type(operator).__name__, make))
    return dict(sorted(found.items()))
