"""Runs of many kinds, and one that is stopped as if its process had been killed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedsim.common.files import write_json
from fedsim.records.manifest import read_manifest
from small import run

BUFFERED = {"preset": "fedbuff", "concurrency": 6, "buffer": 3}
CASES: dict[str, dict[str, Any]] = {
    "sync": {"record": {"conflicts": "layers"}, "audit": {"every": 2, "clients": 5}},
    "mean": {"evaluate": {"every_steps": 3, "model": "mean"}},
    "buffered": {"pacing": BUFFERED, "stop": {"steps": 16}, "audit": {"every": 3, "clients": 5}},
    "current": {
        "pacing": {"preset": "fedasync", "concurrency": 5},
        "algorithm": {"name": "fedasync", "rows": "current"},
        "stop": {"steps": 20},
    },
    "personal": {
        "pacing": BUFFERED,
        "client": {"name": "ditto"},
        "evaluate": {"every_steps": 3, "personal": True},
    },
    "late": {
        "pacing": {"preset": "deadline", "clients": 6, "deadline": "10min", "late": "history"},
        "stop": {"time": "20min"},
        "evaluate": {"every": "13min", "clients": 5},
    },
    "stateful": {"algorithm": {"name": "afl"}, "selection": {"name": "oort"}},
    "searching": {"algorithm": {"name": "fedmdfg", "search": 3}},
    "momentum": {"algorithm": {"name": "fedmgda_plus", "wrap": [{"name": "server_opt"}]}},
    "rounded": {"memory": {"history": "bfloat16"}},
    "columns": {
        "pacing": BUFFERED,
        "algorithm": {"name": "trimmed_mean", "beta": 0.2, "wrap": [{"name": "with_absent"}]},
        "memory": {"history": "bfloat16"},
        "record": {"conflicts": "layers"},
        "audit": {"every": 3, "clients": 5},
    },
    "diverse": {"selection": {"name": "divfl"}, "memory": {"history": "bfloat16"}},
    "sampled": {
        "pacing": BUFFERED,
        "algorithm": {"name": "fedavg"},
        "selection": {"name": "optimal_sampling"},
        "stop": {"steps": 16},
    },
    "received": {"algorithm": {"name": "fedawe"}, "stop": {"steps": 12}},
    "received, buffered": {
        "algorithm": {"name": "fedawe", "clip": 0.5},
        "pacing": BUFFERED,
        "client": {"name": "ditto"},
        "stop": {"steps": 16},
    },
    "patient": {
        "stop": {"steps": 40, "metric": "mean_percent", "patience": 2},
        "evaluate": {"every_steps": 1},
    },
}


def stopped_at(step: int, config: Any, out: Path, **options: Any) -> Path:
    """Run until a step, as if the process had been killed then; checkpoints are those of the configuration."""

    class Killed(BaseException):
        pass

    def watch(progress: Any) -> None:
        if progress.run_state.step == step:
            raise Killed

    with pytest.raises(Killed):
        run(config, out, watch=watch, **options)
    folder: Path = out / config.name
    write_json(folder / "manifest.json", read_manifest(folder) | {"status": "running"})
    return folder
