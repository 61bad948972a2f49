"""A strategy for Flower that aggregates with the rules of fedsim.

    strategy = FedsimStrategy("fedfv", options={"alpha": 0.1}, fraction_train=0.5)
    result = strategy.start(grid=grid, initial_arrays=ArrayRecord(model.state_dict()), num_rounds=100)

A client replies with its trained arrays and metrics: `num-examples` and, for rules that look at losses, `loss`, the
mean training loss of the model that it received, before training. Rules with a memory also use the last updates of
clients that are not in a round. The import raises ConfigError if Flower is not installed.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsim.common.errors import ConfigError
from fedsim.common.extras import install
from fedsim.server.combine import Combined, check_stands_alone, combine
from fedsim.server.rule_factory import build_rule

try:
    from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord
    from flwr.serverapp import Grid
    from flwr.serverapp.strategy import FedAvg
except ImportError as error:
    raise ConfigError(
        f"the package flwr is needed and cannot be imported ({error}): {install('flower')}"
    ) from error

_LOG = logging.getLogger("flwr")
Arrays = dict[str, NDArray[Any]]
_STEPS = "local-steps"
_COLUMNS = {"losses": "loss", "losses_after": "loss-after", "accuracies_after": "accuracy-after"}


@dataclass(frozen=True, slots=True)
class _Update:
    """The last update of a client."""

    row: NDArray[np.float64]
    metrics: Mapping[str, float]
    step: int
    updates: int
    """Updates of the client so far, including this one."""


class FedsimStrategy(FedAvg):  # type: ignore[misc]
    """Aggregates by a rule of fedsim; everything else is as in Flower's FedAvg.

    Args:
        rule: the name of a rule, see `fedsim list rules`.
        options: options of the rule.
        wrap: wrappers of the rule with their options, the first the innermost: `[("with_absent", {"window": 10})]`.
        loss_key: the metric that is a client's mean training loss at the model that it received, before training.
        fedavg: parameters of `flwr.serverapp.strategy.FedAvg`, such as `fraction_train` and `weighted_by_key`.

    Arrays of integers, such as counters of batch normalisation, are averaged by samples. Raises ConfigError for an
    unknown rule or option, for rules that search for the length of a step or that evaluate an average of models, and
    for replies without a metric that the rule needs: `loss`, or `loss-after` and `accuracy-after` of the trained model.
    `fednova` needs the metric `local-steps`.
    """

    def __init__(
        self,
        rule: str = "fedavg",
        *,
        options: Mapping[str, Any] | None = None,
        wrap: Sequence[tuple[str, Mapping[str, Any]]] = (),
        loss_key: str = "loss",
        **fedavg: Any,
    ) -> None:
        super().__init__(**fedavg)
        self._rule = build_rule(rule, options or {}, [{**given, "name": name} for name, given in wrap])
        check_stands_alone(self._rule)
        if self._rule.needs.search:
            raise ConfigError(
                f"rule {rule!r} asks clients for losses after trial steps, which Flower has not"
            )
        needs = self._rule.needs
        wanted = {"losses": needs.losses, "losses_after": needs.after, "accuracies_after": needs.after}
        self._keys = {c: k for c, k in ({**_COLUMNS, "losses": loss_key}).items() if wanted[c]}
        self._name, self._step, self._start = rule, 0, Arrays()
        self._last: dict[int, _Update] = {}
        self._numbers: dict[int, int] = {}
        self._online: frozenset[int] = frozenset()
        self._after: Combined[NDArray[Any]] | None = None

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Ask clients to train, as FedAvg does, and keep the arrays that they start from."""
        self._start = {name: array.numpy() for name, array in arrays.items()}
        self._online = frozenset(grid.get_node_ids())
        return super().configure_train(server_round, arrays, config, grid)  # type: ignore[no-any-return]

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Take a step by the rule from the replies without errors, whose arrays are finite."""
        received = [(message, self._row(message)) for message in replies if not message.has_error()]
        finite = [(message, row) for message, row in received if row is not None]
        valid = [message for message, _ in finite]
        if not valid:
            return None, None
        before = dict(self._last)
        present = [self._received(message, row) for message, row in finite]
        others = before if self._rule.needs.replaced else before.keys() - set(present)
        remembered = [
            (node, before[node]) for node in before if node in others and self._counts(before[node])
        ]
        rows = [*((node, self._last[node]) for node in present), *remembered]
        combined = self._combined(rows, len(present), len(before))
        if combined.average is not None:
            raise ConfigError(f"rule {self._name!r} evaluates an average of models, which Flower has not")
        self._after, self._step = combined, self._step + 1
        arrays = self._stepped(combined) | self._averaged(valid)
        metrics = self.train_metrics_aggr_fn([message.content for message in valid], self.weighted_by_key)
        record = ArrayRecord({name: Array(arrays[name]) for name in self._start})
        return record, metrics

    def _row(self, message: Message) -> NDArray[np.float64] | None:
        """Return the update of a reply; None if it is not finite, with a line in the log that names the node."""
        arrays, _ = _content(message)
        parts = [
            np.subtract(self._start[n], arrays[n].numpy(), dtype=np.float64).ravel() for n in self._trained()
        ]
        row: NDArray[np.float64] = np.concatenate(parts)
        if np.isfinite(row).all():
            return row
        _LOG.warning("node %s: left out, as its arrays are not finite", message.metadata.src_node_id)
        return None

    def _received(self, message: Message, row: NDArray[np.float64]) -> int:
        """Keep the update of a reply as its client's last one, and return the client."""
        node = int(message.metadata.src_node_id)
        _, metrics = _content(message)
        reported: dict[str, float] = {}
        for key in (self.weighted_by_key, *self._keys.values()):
            if key not in metrics:
                raise ConfigError(
                    f"node {node}: rule {self._name!r} needs the metric {key!r}, found {', '.join(sorted(metrics))}"
                )
            reported[key] = float(metrics[key])
        if _STEPS in metrics:
            reported[_STEPS] = float(metrics[_STEPS])
        before = self._last[node].updates if node in self._last else 0
        self._numbers.setdefault(node, len(self._numbers))
        self._last[node] = _Update(row, reported, self._step, before + 1)
        return node

    def _counts(self, update: _Update) -> bool:
        """Return whether the rule still uses an update of an earlier round."""
        return bool(self._rule.needs.memory) and update.step >= self._step - self._rule.needs.memory

    def _combined(self, rows: Sequence[tuple[int, _Update]], m: int, seen: int) -> Combined[NDArray[Any]]:
        """Combine the updates of nodes, of which the first `m` are those of the round."""
        (nodes, updates), after = zip(*rows, strict=True), self._after
        columns: dict[str, Any] = {
            column: [u.metrics[key] for u in updates] for column, key in self._keys.items()
        }
        if all(_STEPS in update.metrics for update in updates):
            columns["local_steps"] = [round(update.metrics[_STEPS]) for update in updates]
        return combine(
            self._rule,
            np.stack([update.row for update in updates]),
            **{"losses": None} | columns,
            n_samples=[round(update.metrics[self.weighted_by_key]) for update in updates],
            clients=[self._numbers[node] for node in nodes],
            ages=[self._step - update.step for update in updates],
            online=[i < m or node in self._online for i, node in enumerate(nodes)],
            participations=[update.updates for update in updates],
            blocks=self._blocks(),
            state=None if after is None else after.state,
            vectors=None if after is None else after.vectors,
            step=self._step,
            n_clients=len(self._numbers.keys() | self._online),
            total_samples=sum(round(u.metrics[self.weighted_by_key]) for u in self._last.values()),
            n_seen=seen,
        )

    def _trained(self) -> list[str]:
        return [name for name, array in self._start.items() if array.dtype.kind == "f"]

    def _blocks(self) -> list[int]:
        """Return the sizes of the layers: arrays whose names differ in the last part alone, as weight and bias."""
        sizes: dict[str, int] = {}
        for name in self._trained():
            layer = name.rpartition(".")[0] or name
            sizes[layer] = sizes.get(layer, 0) + self._start[name].size
        return list(sizes.values())

    def _stepped(self, combined: Combined[NDArray[Any]]) -> Arrays:
        arrays, at = Arrays(), 0
        for name in self._trained():
            start = self._start[name]
            step = combined.direction[at : at + start.size].reshape(start.shape)
            arrays[name] = (combined.keep * start.astype(np.float64) - step).astype(start.dtype)
            at += start.size
        return arrays

    def _averaged(self, replies: Sequence[Message]) -> Arrays:
        """Return the arrays of integers, averaged by samples."""
        contents = [_content(message) for message in replies]
        weights = [float(metrics[self.weighted_by_key]) for _, metrics in contents]
        averaged = Arrays()
        for name, start in self._start.items():
            if start.dtype.kind != "f":
                mean = np.average([arrays[name].numpy() for arrays, _ in contents], axis=0, weights=weights)
                averaged[name] = np.asarray(np.rint(mean), start.dtype)
        return averaged


def _content(message: Message) -> tuple[ArrayRecord, MetricRecord]:
    """Return the arrays and the metrics of a reply. Raises ConfigError unless it has one record of each."""
    arrays, metrics = (
        list(message.content.array_records.values()),
        list(message.content.metric_records.values()),
    )
    if len(arrays) != 1 or len(metrics) != 1:
        raise ConfigError(
            f"node {message.metadata.src_node_id}: expected one ArrayRecord and one MetricRecord, found "
            f"{len(arrays)} and {len(metrics)}"
        )
    return arrays[0], metrics[0]
