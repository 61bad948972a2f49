"""Flower as a contestant of `works.py`: its simulation in Ray with two actors, and a client as lean as it can be.

    python benchmarks/peers/flower_run.py work.npz --rounds 10

Each actor reads the samples once. A client is handed one flat vector and trains as the floors do: no DataLoader, no
optimiser. The server looks for replies every 10 ms instead of every 100.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from functools import cache
from pathlib import Path

os.environ["FLWR_TELEMETRY_ENABLED"] = os.environ["RAY_USAGE_STATS_ENABLED"] = "0"

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

from contest import Partition, Rounds, arguments, build_model, test_accuracy
from floors import Bench

PULL_S = 0.01


@cache
def bench(path: str) -> Bench:
    """Return an actor's tools, made for its first client."""
    torch.set_num_threads(1)
    return Bench(Partition.read(Path(path)), os.getpid())


def train(message: Message, context: Context) -> Message:
    """Train one client from the vector in the message, and send its own back."""
    tools = bench(str(message.content["config"]["work"]))
    params = torch.from_numpy(message.content["arrays"]["flat"].numpy())
    n = tools.train(params, [int(context.node_config["partition-id"])], torch.empty_like(params))
    content = RecordDict(
        {"arrays": ArrayRecord({"flat": tools.flat}), "metrics": MetricRecord({"num-examples": n})}
    )
    return Message(content=content, reply_to=message)


class Watched(FedAvg):
    """FedAvg that notes when rounds end."""

    def __init__(self, work: Partition, rounds: Rounds) -> None:
        share = work.spec.clients_per_round / work.n_clients
        super().__init__(fraction_train=share, fraction_evaluate=0.0, min_available_nodes=work.n_clients)
        self.rounds = rounds

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Aggregate, and note the time."""
        done = super().aggregate_train(server_round, replies)
        self.rounds.end()
        return done


def main() -> None:
    """Train, and print what was measured."""
    given = arguments(__doc__).parse_args()
    work, rounds = Partition.read(given.work), Rounds(given.since)
    logging.getLogger("flwr").setLevel(logging.WARNING)
    client, server = ClientApp(), ServerApp()
    client.train()(train)

    @server.main()
    def serve(grid: Grid, context: Context) -> None:
        grid.pull_interval = PULL_S
        found = Watched(work, rounds).start(
            grid=grid,
            initial_arrays=ArrayRecord({"flat": torch.from_numpy(work.initial)}),
            num_rounds=1 + given.rounds,
            train_config=ConfigRecord({"work": str(given.work.resolve())}),
        )
        model = build_model(work)
        flat = torch.from_numpy(found.arrays["flat"].numpy())
        torch.nn.utils.vector_to_parameters(flat, model.parameters())
        rounds.say(test_accuracy(model, work))

    run_simulation(
        server_app=server,
        client_app=client,
        num_supernodes=work.n_clients,
        backend_config={
            "init_args": {"num_cpus": 2, "log_to_driver": False, "logging_level": "error"},
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        },
    )


if __name__ == "__main__":
    import flower_run

    flower_run.main()  # as a module that the actors can import, so that only its name is sent to them, not its code
