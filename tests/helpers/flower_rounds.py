"""Rounds of Flower's simulation in which each client adds a known update; the models go to a file.

FLWR_TELEMETRY_ENABLED=0 python flower_rounds.py models.npz
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation

from fedsim.integrations.flower import FedsimStrategy

CLIENTS, ROUNDS = 3, 2
client_app = ClientApp()
server_app = ServerApp()


def update(client: int) -> np.ndarray[Any, Any]:
    """Return what a client's training adds to the model [2, 3]; the updates of clients conflict."""
    return np.random.default_rng(client).normal(size=(2, 3)).astype(np.float32)


@client_app.train()
def train(message: Message, context: Context) -> Message:
    """Add the client's update."""
    client = int(context.node_config["partition-id"])
    trained = message.content["arrays"]["layer.weight"].numpy() + update(client)
    content = {
        "arrays": ArrayRecord({"layer.weight": Array(trained)}),
        "metrics": MetricRecord({"num-examples": 10, "loss": 1.0 + client}),
    }
    return Message(RecordDict(content), reply_to=message)


@server_app.main()
def serve(grid: Grid, context: Context) -> None:
    """Aggregate by FedFV, and write the last model."""
    strategy = FedsimStrategy(
        "fedfv", options={"alpha": 0.1}, min_available_nodes=CLIENTS, fraction_evaluate=0.0
    )
    start = ArrayRecord({"layer.weight": Array(np.zeros((2, 3), np.float32))})
    result = strategy.start(grid=grid, initial_arrays=start, num_rounds=ROUNDS)
    np.savez(sys.argv[1], last=result.arrays["layer.weight"].numpy())


if __name__ == "__main__":
    run_simulation(server_app, client_app, num_supernodes=CLIENTS)
