"""FLGo as a contestant of `works.py`, as its documentation says to run it: one process, its own clients and loaders.

python benchmarks/peers/flgo_run.py work.npz --rounds 10
"""

from __future__ import annotations

import importlib
import os
import tempfile
from pathlib import Path
from typing import Any

import flgo
import flgo_benchmark
import torch
from flgo.benchmark.partition import BasicPartitioner

from contest import Rounds, arguments, build_model, test_accuracy


class Given(BasicPartitioner):
    """The partition of the work."""

    def __init__(self, rows: list[list[int]]) -> None:
        self.rows, self.num_clients = rows, len(rows)

    def __call__(self, data: Any) -> list[list[int]]:
        """Return the rows of each client."""
        return self.rows


def timed(rule: str, rounds: Rounds) -> type:
    """Return FLGo's algorithm `rule` with a server that notes when rounds end."""
    module = importlib.import_module(f"flgo.algorithm.{rule}")

    class Server(module.Server):  # type: ignore[misc, name-defined]
        def iterate(self) -> Any:
            done = super().iterate()
            rounds.end()
            return done

    return type(rule, (), {"Server": Server, "Client": module.Client})


def main() -> None:
    """Train, and print what was measured."""
    parser = arguments(__doc__)
    parser.add_argument("--rule", default="fedavg", help="one of FLGo's algorithms")
    given = parser.parse_args()
    os.environ["WORK"] = str(given.work)
    work, rounds = importlib.import_module("flgo_benchmark.core").WORK, Rounds(given.since)
    option = {
        "num_rounds": 1 + given.rounds,
        "proportion": work.spec.clients_per_round / work.n_clients,
        "num_epochs": 1,
        "batch_size": work.spec.batch_size,
        "learning_rate": work.spec.lr,
        "train_holdout": 0.0,
        "eval_interval": -1,
        "torch_num_threads": 2 if "channels" in work.spec.model_options else 1,  # whichever is faster
        "no_log_console": True,
        "no_tqdm": True,
    }
    with tempfile.TemporaryDirectory() as folder:
        task = str(Path(folder) / "task")
        rows = [list(range(*work.rows(client).indices(len(work.y)))) for client in range(work.n_clients)]
        flgo.gen_task_by_(flgo_benchmark, Given(rows), task)
        model = flgo.convert_model(lambda: build_model(work), work.spec.model)
        server = flgo.init(task, timed(given.rule, rounds), option, model)
        server.run()
    with torch.no_grad():
        rounds.say(test_accuracy(server.model, work))


if __name__ == "__main__":
    main()
