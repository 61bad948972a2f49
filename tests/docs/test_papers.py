"""Each paper's setting and each repeated table runs, has the paper's sizes and settings, and says where it differs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import defaultdict
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import inputs
from fedsim import analysis, study
from fedsim.analysis.statistics.audit import audit_frame
from fedsim.common.terminal import Terminal
from fedsim.config.data import federation
from fedsim.config.load import load_config
from fedsim.config.run import RunConfig
from fedsim.records.existing_run import differences
from fedsim.runs.simulate import simulate
from fedsim.studies.grid import Cell, cells_of
from fedsim.studies.load_study import load_study
from fedsim.training.network import build_network
from few_images import write_few_images
from golden_digests import kind

ROOT = Path(__file__).resolve().parents[2]
TABLES = sorted(
    path
    for path in (ROOT / "examples" / "papers").glob("*.toml")
    if "_table" in path.stem or "_figure" in path.stem
)
"""Studies that repeat a table or a figure whole."""
_ONE_PROCESS = {
    path.stem: [pytest.mark.xdist_group("cifar10")] for path in TABLES if '"cifar10"' in path.read_text()
}
"""Marks that keep the tests of CIFAR-10 in one process, which decodes its images once."""
CONFIGS = sorted({*(ROOT / "examples" / "papers").glob("*.toml")} - {*TABLES})
"""Configurations that have an experiment's setting, with an arm for each rule."""
_NARROW = ("model.channels=[4,4]", "model.hidden=[8,8]")
SMALLER = {
    "fedmgda_cifar": _NARROW,
}
"""What keeps a test short, and what is possible with a tenth of the images."""
# configuration: clients, samples for training and for testing of the smallest and the largest client, parameters
SIZES = {
    "fedmdfg_fashion": (5, (6000, 18_000), (1000, 3000), 199_210),
    "fedmgda_fashion": (100, (480, 480), (60, 60), 21_840),
}


TABLE_SIZES = {
    "fedfv_table2": (100, (400, 400), (50, 50), 656_810),
    "fedfv_figure2_cifar": (100, (400, 400), (50, 50), 656_810),
    "fedfv_figure2_mnist": (200, (240, 240), (30, 30), 608_702 - 52 * 513),
    "fedfv_table3": (3, (5600, 5600), (700, 700), 2_355),
    "fedfv_table4": (3, (5600, 5600), (700, 700), 2_355),
    "fedlf_table1_fashion": (100, (10, 6_000), (1, 1_000), 199_210),  # bounds: each seed draws its own shares
    "fedlf_table1_cifar": (100, (8, 5_000), (1, 1_000), 797_962),
    "fedlf_table2": (100, (500, 500), (100, 100), 797_962),
    "fedlf_table3": (100, (600, 600), (100, 100), 199_210),
    "fedmgda_table7": (2, (330, 25_718), (181, 16_100), 200),
    "fedmgda_figure1": (100, (400, 400), (50, 50), 797_962),
    "fedmgda_figure4": (100, (400, 400), (50, 50), 797_962),
    "fedmgda_figure5": (100, (480, 480), (60, 60), 21_840),
    "qffl_figure10": (100, (40, 1_000), (5, 120), 610),
    "qffl_table1": (100, (40, 1_000), (5, 120), 610),  # bounds: each seed draws its own sizes
    "qffl_table10": (100, (40, 1_000), (5, 120), 610),
    "qffl_table1_shakespeare": (31, (378, 15_014), (47, 1_877), 819_920),
    "qffl_table1_vehicle": (23, (5, 428), (1, 53), 202),
    "qffl_table6": (100, (40, 1_000), (5, 120), 610),
    "qffl_table6_vehicle": (23, (5, 428), (1, 53), 202),
    "qffl_table12_vehicle": (23, (5, 428), (1, 53), 202),
    "qffl_table2_adult": (2, (413, 32_148), (181, 16_100), 200),
    "qffl_table2_fashion": (3, (6000, 6000), (1000, 1000), 2_355),
}
"""The same of the studies."""


def data_of(path: Path) -> Path:
    """Return the folder with the data of a configuration, or skip."""
    return inputs.data_of(load_config(path)[0].task.name)


@pytest.fixture(scope="module")
def few_images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    write_few_images(folder)
    return folder


@pytest.mark.parametrize("path", CONFIGS, ids=lambda p: p.stem)
def test_the_setting_of_a_paper_runs(path: Path, tmp_path: Path, few_images: Path) -> None:
    data_of(path)
    sets = ("stop.steps=1", f"task.data_dir='{few_images}'", *SMALLER.get(path.stem, ()))
    results = simulate(load_config(path, sets), out=tmp_path, workers=0)
    runs = [analysis.open_run(result.folder) for result in results]
    assert [run.label for run in runs] == [config.label for config in load_config(path)]
    for run in runs:
        assert run.manifest["steps"] == 1
        assert np.isfinite(run.final().loss).all()


@pytest.mark.parametrize("name", SIZES)
def test_clients_and_models_have_the_sizes_of_the_paper(name: str) -> None:
    path = ROOT / "examples" / "papers" / f"{name}.toml"
    data_of(path)
    config: RunConfig = load_config(path)[0]
    clients, train, test, parameters = SIZES[name]
    task, data = federation(config)
    assert data.n_clients == clients
    assert (data.train.sizes.min(), data.train.sizes.max()) == train
    assert (data.test.sizes.min(), data.test.sizes.max()) == test
    model, options = (config.model.name, config.model.options) if config.model else (task.model, {})
    assert parameters == build_network(model, options, data.x.shape[1:], data.n_classes).P


# What the captions of the tables say, and the common settings above them; a set has the values of several rows.
TABLE_CAPTIONS: dict[str, dict[str, Any]] = {
    "fedfv_table2": {
        "task.clients": 100, "pacing.clients": 10, "partition.shards_per_client": 2, "train.batch_size": "full",
        "train.lr": 0.1, "train.epochs": 1, "stop.steps": 2000,
    },
    "fedfv_table3": {
        "task.clients": 3, "task.classes": [0, 2, 6], "pacing.clients": 3, "train.batch_size": "full", "train.lr": 0.1,
        "train.epochs": 1, "stop.steps": 200,
    },
    "fedfv_table4": {
        "task.clients": 3, "task.classes": [0, 2, 6], "pacing.clients": 3, "train.batch_size": "full", "train.lr": 0.1,
        "train.epochs": 1, "stop.steps": 200, "algorithm.alpha": 0, "algorithm.tau": 0,
    },
    "fedlf_table1_fashion": {
        "train.lr": 0.1, "task.clients": 100, "pacing.clients": 10, "partition.name": {"dirichlet", "pathological"},
        "train.batch_size": {50, "full"}, "train.epochs": 1, "train.lr_decay": 0.999, "stop.steps": 3000,
    },
    "fedlf_table1_cifar": {
        "task.clients": 100, "pacing.clients": 10, "partition.name": {"dirichlet", "pathological"},
        "train.batch_size": {50, "full"}, "train.epochs": 1, "train.lr_decay": 0.999, "stop.steps": 3000,
    },
    "fedlf_table2": {
        "task.name": "cifar10", "task.clients": 100, "pacing.clients": 10, "partition.classes": 1,
        "train.batch_size": {200, "full"}, "train.epochs": 1, "train.lr_decay": 0.999, "record.conflicts": "layers",
    },
    "fedlf_table3": {
        "task.name": {"fashion_mnist", "cifar10"}, "task.clients": 100, "pacing.clients": 10, "partition.classes": 2,
        "train.batch_size": "full", "train.epochs": 1, "train.lr_decay": 0.999,
    },
    "fedmgda_table7": {
        "task.clients": 2, "pacing.clients": 2, "train.batch_size": 10, "train.lr": 0.01, "train.epochs": 1,
        "task.pool": "official", "stop.steps": 500, "model.name": "softmax", "task.train_rows": {"next", "own"},
    },
    "qffl_table1": {
        "task.clients": 100, "task.alpha": 1, "task.beta": 1, "pacing.clients": 10, "train.batch_size": 10,
        "train.lr": 0.1, "train.epochs": 1, "task.fractions": [0.8, 0.1, 0.1], "model.name": "softmax",
    },
    "fedfv_figure2_cifar": {
        "task.name": "cifar10", "task.clients": 100, "pacing.clients": 10, "partition.shards_per_client": 2,
        "train.batch_size": "full", "train.lr": 0.1, "train.epochs": 1, "stop.steps": 2000, "evaluate.every_steps": 50,
    },
    "fedfv_figure2_mnist": {
        "task.name": "mnist", "task.clients": 200, "pacing.clients": 20, "partition.shards_per_client": 2,
        "train.batch_size": "full", "train.lr": 0.1, "train.epochs": 1, "stop.steps": 1000, "evaluate.every_steps": 50,
    },
    "fedmgda_figure1": {
        "task.name": "cifar10", "task.clients": 100, "pacing.clients": 10, "partition.name": {"shards", "iid"},
        "train.batch_size": 10, "train.lr": 0.01, "train.epochs": 1, "stop.steps": 2000, "algorithm.normalise": False,
        "algorithm.epsilon": {0.0, 0.05, 0.1, 0.5, 1.0}, "algorithm.server_lr": 1.0, "algorithm.decay": 1.0,
    },
    "fedmgda_figure4": {
        "task.name": "cifar10", "task.clients": 100, "pacing.clients": 10, "partition.shards_per_client": 5,
        "train.batch_size": {10, "full"}, "train.lr": {0.01, 0.1}, "train.epochs": 1, "stop.steps": {2000, 3000},
        "audit.clients": 10,
    },
    "fedmgda_figure5": {
        "task.name": "fashion_mnist", "task.clients": 100, "pacing.clients": 10, "partition.name": {"shards", "iid"},
        "train.batch_size": 10, "train.lr": 0.01, "train.epochs": 1, "stop.steps": 2000, "algorithm.normalise": False,
        "algorithm.epsilon": {0.0, 0.05, 0.1, 0.5, 1.0}, "algorithm.server_lr": 1.0, "algorithm.decay": 1.0,
    },
    "qffl_figure10": {
        "task.clients": 100, "pacing.clients": 10, "train.batch_size": {10, "full"}, "train.lr": 0.1, "train.epochs": 1,
        "task.fractions": [0.8, 0.1, 0.1], "task.variant": {"iid", "hybrid", "noniid"}, "algorithm.q": 1.0,
    },
    "qffl_table6": {
        "task.clients": 100, "task.alpha": 1, "task.beta": 1, "pacing.clients": 10, "train.batch_size": 10,
        "train.lr": 0.1, "train.epochs": 1, "task.fractions": [0.8, 0.1, 0.1], "evaluate.split": "train",
    },
    "qffl_table6_vehicle": {
        "task.clients": 23, "pacing.clients": 10, "train.batch_size": 64, "train.epochs": 1, "train.loss": "hinge",
        "task.fractions": [0.8, 0.1, 0.1], "evaluate.split": "train", "selection.name": {"weighted", "uniform"},
    },
    "qffl_table12_vehicle": {
        "task.clients": 23, "pacing.clients": 10, "train.batch_size": 64, "train.epochs": 1, "train.loss": "hinge",
        "task.fractions": [0.8, 0.1, 0.1], "algorithm.q": {None, 0.001, 0.01, 0.1, 1.0, 2.0, 5.0, 10.0},
    },
    "qffl_table1_shakespeare": {
        "task.name": "shakespeare", "task.clients": 31, "pacing.clients": 10, "train.batch_size": 10, "train.lr": 0.8,
        "train.epochs": 1, "task.fractions": [0.8, 0.1, 0.1], "selection.name": {"weighted", "uniform"},
        "model.name": "lstm", "model.embedding": 8, "stop.steps": 80,
    },
    "qffl_table1_vehicle": {
        "task.clients": 23, "pacing.clients": 10, "train.batch_size": 64, "train.epochs": 1, "train.loss": "hinge",
        "task.fractions": [0.8, 0.1, 0.1], "model.name": "softmax", "selection.name": {"weighted", "uniform"},
    },
    "qffl_table10": {
        "task.clients": {100, 50}, "task.alpha": {None, 1.0, 2.0}, "task.beta": {None, 1.0, 2.0}, "pacing.clients": 10,
        "train.batch_size": 10, "train.lr": 0.1, "train.epochs": 1, "task.fractions": [0.8, 0.1, 0.1],
    },
    "qffl_table2_adult": {
        "task.clients": 2, "pacing.clients": 2, "train.batch_size": "full", "train.lr": 0.1, "task.pool": "official",
        "stop.steps": 600, "model.name": "softmax",
    },
    "qffl_table2_fashion": {
        "task.clients": 3, "task.classes": [0, 2, 6], "pacing.clients": 3, "train.batch_size": "full",
        "train.lr": 0.001, "task.pool": "official", "stop.steps": 6000, "model.name": "softmax",
    },
}  # fmt: skip
_FEDLF_ROWS: list[dict[str, Any]] = [
    {"name": "drfl"}, {"name": "fedfa", "form": "gfedplat"}, {"name": "fedgini"}, {"name": "fedavg"},
    {"name": "fedmgda_plus"}, {"name": "fedmdfg"}, {"name": "fedlf", "lengths": "raw"},
]  # fmt: skip
_FEDLF_TABLE_1: list[dict[str, Any]] = [
    {"name": "fedavg"}, {"name": "qfedavg", "q": 0.1}, {"name": "fedavg"}, {"name": "fedavg"},
    {"name": "afl", "by": "client"}, {"name": "afl", "by": "place", "projection": "gfedplat"},
    {"name": "fedavg", "weighting": "data"}, {"name": "fedavg", "weighting": "sequential"}, {"name": "fedfv"},
    {"name": "fedfv_released"}, *_FEDLF_ROWS, {"name": "fedlf", "lengths": "equal"}, {"name": "fedlf_released"},
]  # fmt: skip
TABLE_ARMS: dict[str, list[dict[str, Any]]] = {
    "fedfv_table2": [
        {"name": "fedavg"}, *({"name": "qfedavg", "q": q, "losses": "before"} for q in (0.1, 0.2, 1, 2, 5)),
        {"name": "qfedavg", "q": 5, "losses": "after"}, {"name": "fedfa", "beta": 0.5, "gamma": 0.5},
        *({"name": "fedmgda_plus", "epsilon": epsilon, "server_lr": 0.1} for epsilon in (0.01, 0.05, 0.1)),
        {"name": "fedmgda_plus", "epsilon": 0.1, "server_lr": 1.0},
        *({"name": "fedmgda_plus", "epsilon": epsilon, "server_lr": 0.1} for epsilon in (0.5, 1)),
        *({"name": "fedfv", "alpha": alpha, "tau": 0} for alpha in (0.1, 0.2, 0.5)),
        *({"name": "fedfv", "alpha": 0.1, "tau": tau} for tau in (1, 3, 10)),
        {"name": "fedfv_released", "alpha": 0.1, "tau": 10},
    ],
    "fedlf_table1_fashion": _FEDLF_TABLE_1,
    "fedlf_table1_cifar": _FEDLF_TABLE_1,
    "fedlf_table2": [
        {"name": "fedavg"}, {"name": "qfedavg", "q": 0.1}, {"name": "fedavg"}, {"name": "afl"}, {"name": "fedavg"},
        {"name": "fedfv"}, *_FEDLF_ROWS,
    ],
    "fedlf_table3": [
        {"name": "fedlf", "lengths": "raw"}, {"name": "fedlf", "lengths": "equal"},
        {"name": "fedavg", "weighting": "uniform"}, {"name": "fedlf", "level": "model"},
        {"name": "fedlf", "level": "slices"}, {"name": "fedlf", "fair_row": "none"},
        {"name": "fedlf", "fair_row": "unit"}, {"name": "fedlf", "absent": "none"},
        {"name": "fedlf", "absent": "previous"}, {"name": "fedlf", "absent": "all"},
    ],
    "fedfv_figure2_cifar": [
        {"name": "fedavg"}, {"name": "qfedavg", "q": 1}, {"name": "fedfa", "beta": 0.5, "gamma": 0.5},
        {"name": "fedmgda_plus", "epsilon": 0.1}, {"name": "fedfv", "alpha": 0.1, "tau": 0},
        {"name": "fedfv", "alpha": 0.1, "tau": 10},
    ],
    "fedfv_figure2_mnist": [
        {"name": "fedavg"}, {"name": "qfedavg", "q": 1}, {"name": "fedfa", "beta": 0.5, "gamma": 0.5},
        {"name": "fedmgda_plus", "epsilon": 0.1}, {"name": "fedfv", "alpha": 0.1, "tau": 0},
        {"name": "fedfv", "alpha": 0.2, "tau": 3},
    ],
    "fedmgda_figure1": [{"name": "fedmgda_plus", "epsilon": epsilon} for epsilon in (0.0, 0.05, 0.1, 0.5, 1.0)],
    "fedmgda_figure4": [
        {"name": "fedavg", "weighting": "uniform"}, {"name": "fedavg", "weighting": "uniform"},
        {"name": "fedmgda_plus", "server_lr": 1.0, "decay": 0.89},
        {"name": "fedmgda_plus", "epsilon": 1.0, "server_lr": 1.0, "decay": 0.89},
        {"name": "fedavg_n", "server_lr": 1.0, "decay": 0.89}, {"name": "qfedavg", "q": 0.5, "L": 1.0},
    ],
    "fedmgda_figure5": [{"name": "fedmgda_plus", "epsilon": epsilon} for epsilon in (0.0, 0.05, 0.1, 0.5, 1.0)],
    "qffl_figure10": [{"name": "qfedavg", "q": 1}, {"name": "qfedsgd", "q": 1}],
    "qffl_table6": [
        {"name": "fedavg", "weighting": "uniform"}, {"name": "fedavg", "weighting": "uniform"},
        {"name": "qfedavg", "q": 1},
    ],
    "qffl_table6_vehicle": [
        {"name": "fedavg", "weighting": "uniform"}, {"name": "fedavg", "weighting": "uniform"},
        {"name": "qfedavg", "q": 5, "reduction": "mean"}, {"name": "fedavg", "weighting": "uniform"},
        {"name": "fedavg", "weighting": "uniform"}, {"name": "qfedavg", "q": 5, "reduction": "sum"},
    ],
    "qffl_table12_vehicle": [
        {"name": "fedavg", "weighting": "uniform"},
        *({"name": "qfedavg", "q": q, "reduction": "sum"} for q in (0.001, 0.01, 0.1, 1, 2, 5, 10)),
    ],
    "qffl_table1_shakespeare": [
        {"name": "fedavg", "weighting": "uniform"}, {"name": "fedavg", "weighting": "uniform"},
        {"name": "qfedavg", "q": 0.001},
    ],
    "qffl_table1_vehicle": [
        {"name": "fedavg", "weighting": "uniform"}, {"name": "fedavg", "weighting": "uniform"},
        {"name": "qfedavg", "q": 5, "reduction": "mean"}, {"name": "fedavg", "weighting": "uniform"},
        {"name": "fedavg", "weighting": "uniform"}, {"name": "qfedavg", "q": 5, "reduction": "sum"},
    ],
    "qffl_table10": [{"name": "fedavg", "weighting": "uniform"}, {"name": "qfedavg", "q": 1}],
    "fedfv_table3": [
        {"name": "fedavg"}, {"name": "afl", "gamma_lambda": 0.01}, {"name": "afl", "gamma_lambda": 0.1},
        {"name": "afl", "gamma_lambda": 0.5}, {"name": "qfedavg", "q": 5, "losses": "before"},
        {"name": "qfedavg", "q": 5, "losses": "after"}, {"name": "qfedavg", "q": 15, "losses": "before"},
        {"name": "qfedavg", "q": 15, "losses": "after"},
        {"name": "fedfa", "beta": 0.5, "gamma": 0.5}, {"name": "fedmgda_plus", "epsilon": 0.05},
        {"name": "fedmgda_plus", "epsilon": 0.1}, {"name": "fedmgda_plus", "epsilon": 1.0},
        {"name": "fedfv", "alpha": 0, "tau": 0}, {"name": "fedfv", "alpha": 0.333, "tau": 0},
        {"name": "fedfv", "alpha": 0.666, "tau": 0},
    ],
    "fedfv_table4": [{"name": "fedfv", "order": order} for order in ("loss", "random", "reverse")],
    "fedmgda_table7": [
        *4 * [{"name": "afl", "gamma_lambda": 0.1}], *4 * [{"name": "qfedavg", "q": 5, "reduction": "sum"}],
        *4 * [{"name": "qfedavg", "q": 2, "reduction": "sum"}], {"name": "qfedavg", "q": 0.1, "reduction": "sum"},
        {"name": "fedmgda_plus"}, {"name": "fedmgda_plus"},
    ],
    "qffl_table1": [
        {"name": "fedavg", "weighting": "uniform"}, {"name": "fedavg", "weighting": "uniform"},
        *({"name": "qfedavg", "q": q} for q in (0.1, 1, 2, 5)),
    ],
    "qffl_table2_adult": [
        {"name": "fedsgd", "weighting": "uniform"}, {"name": "fedsgd", "weighting": "data"},
        {"name": "afl", "gamma_lambda": 0.1, "projection": "exact", "average": True},
        {"name": "afl", "gamma_lambda": 0.1, "projection": "fair_flearn", "average": True},
        {"name": "afl", "gamma_lambda": 0.1, "projection": "exact", "average": False},
        {"name": "afl", "gamma_lambda": 0.0, "projection": "exact", "average": True},
        {"name": "qfedsgd", "q": 0.01}, {"name": "qfedsgd", "q": 2},
    ],
    "qffl_table2_fashion": [
        {"name": "fedsgd", "weighting": "uniform"}, {"name": "afl", "gamma_lambda": 0.01},
        {"name": "afl", "gamma_lambda": 0.0},
        {"name": "qfedsgd", "q": 5}, {"name": "qfedsgd", "q": 15},
    ],
}  # fmt: skip
"""The rows of each table, in its order."""
PUBLISHED_SUMS = {
    "fedfv_table2": {
        "mean_percent": 893.3 + 45.52 + 50.42,
        "std_percent": 213.29 + 11.32 + 9.7,
        "worst5_percent": 474.8 + 24.32 + 32.24,
        "best5_percent": 1300.56 + 68.48 + 69.68,
    },
    "fedlf_table1_fashion": {"mean_percent": 3813.8 + 996.6, "angle_rad": 6.095 + 1.781},
    "fedlf_table1_cifar": {"mean_percent": 2928.8 + 715.2, "angle_rad": 9.974 + 2.808},
    "fedfv_figure2_cifar": {"mean_percent": 284.58, "std_percent": 69.07, "worst5_percent": 146.8},
    "fedfv_figure2_mnist": {"mean_percent": 419.75, "std_percent": 148.41, "worst5_percent": 127.4},
    "fedmgda_figure1": {},
    "fedmgda_figure5": {},
    "qffl_figure10": {},
    "qffl_table6": {"mean_over_samples_percent": 244.1, "worst10_percent": 108.0, "variance_percent2": 1255},
    "qffl_table6_vehicle": {
        "mean_over_samples_percent": 525.2,
        "worst10_percent": 334.8,
        "variance_percent2": 1070,
    },
    "qffl_table12_vehicle": {
        "mean_over_samples_percent": 175.0,
        "worst10_percent": 112.9,
        "variance_percent2": 339,
    },
    "fedlf_table2": {"mean_percent": 612.5, "angle_rad": 4.328},
    "fedlf_table3": {"mean_percent": 1615.6, "angle_rad": 2.008},
    "qffl_table10": {
        "mean_over_samples_percent": 1024.0,
        "worst10_percent": 578.4,
        "best10_percent": 1200.0,
        "variance_percent2": 3809.0,
    },
    "fedfv_table3": {"mean_percent": 1161.32, "std_percent": 110.27, "shirt": 1054.23},
    "fedfv_table4": {"std_percent": 55.95},
    "fedmgda_table7": {"mean_over_samples_percent": 1075.24, "phd": 984.85},
    "qffl_table1_shakespeare": {
        "mean_over_samples_percent": 154.1,
        "worst10_percent": 122.8,
        "best10_percent": 212.5,
        "variance_percent2": 207,
    },
    "qffl_table1_vehicle": {
        "mean_over_samples_percent": 523.6,
        "worst10_percent": 316.6,
        "variance_percent2": 1212,
    },
    "qffl_table1": {"variance_percent2": 3166, "worst10_percent": 164.2, "mean_over_samples_percent": 465.0},
    "qffl_table2_adult": {"phd": 580.3, "non_phd": 662.1},
    "qffl_table2_fashion": {"shirt": 357.7, "pullover": 403.3, "tshirt": 409.2},
}
"""Sums over the rows of columns of the printed tables, added by hand."""
PRINTED = {
    "qffl_table12_vehicle": ROOT / "docs" / "papers" / "qffl_more.md",
    "qffl_figure10": ROOT / "docs" / "papers" / "qffl_more.md",
    "qffl_table6_vehicle": ROOT / "docs" / "papers" / "qffl_more.md",
    "qffl_table6": ROOT / "docs" / "papers" / "qffl_more.md",
    "qffl_table1_vehicle": ROOT / "docs" / "papers" / "qffl.md",
    "fedfv_table4": ROOT / "docs" / "papers" / "fedfv.md",
    "qffl_table2_adult": ROOT / "docs" / "papers" / "qffl_afl.md",
    "qffl_table1": ROOT / "docs" / "papers" / "qffl.md",
    "qffl_table2_fashion": ROOT / "docs" / "papers" / "qffl_afl.md",
    "fedfv_table3": ROOT / "docs" / "papers" / "fedfv.md",
    "fedmgda_table7": ROOT / "docs" / "papers" / "fedmgda.md",
}
"""Tables whose values a page prints, from the quickest to the slowest."""
RULES = {
    "FedAvg": "fedavg", "AFL": "afl", "q-FFL": "qfedavg", "q =": "qfed", "FedMGDA+": "fedmgda_plus", "TERM": "term",
    "FedMGDA": "fedmgda", "FedAvg-n": "fedavg_n", "FedFV": "fedfv", "FedMDFG": "fedmdfg", "FedLF": "fedlf",
}  # fmt: skip
"""What the manual calls rules."""


def _cells(path: Path, sets: dict[str, Any] | None = None) -> list[Cell]:
    """Return the first seed's cells of a table; tuned levels have the last of the values that they try."""
    study = load_study(path, sets=sets or {})
    if study.tune:
        chosen = study.tune.values[-1]
        for axis in reversed(study.tune.axes):
            chosen = dict.fromkeys(study.axes[axis], chosen)
        study = load_study(path, sets={**(sets or {}), "tune.chosen": chosen})
    return [cell for cell in cells_of(study, path.name) if cell.seed == study.seeds[0]]


@pytest.mark.parametrize("path", TABLES, ids=lambda p: p.stem)
def test_a_table_has_the_settings_of_its_caption(path: Path) -> None:
    settings = [cell.config.resolved() for cell in _cells(path)]
    for key, value in TABLE_CAPTIONS[path.stem].items():
        table, _, name = key.partition(".")
        values = {repr(each[table].get(name)) for each in settings}
        wanted = value if isinstance(value, set) else [type(settings[0][table][name])(value)]
        assert values == set(map(repr, wanted)), key


@pytest.mark.parametrize("path", TABLES, ids=lambda p: p.stem)
def test_a_table_has_its_rows_and_no_others(path: Path) -> None:
    study = load_study(path)
    assert study.compare is not None
    others = {axis: next(iter(levels)) for axis, levels in study.axes.items() if axis != study.compare.axis}
    rows = [c.config.algorithm for c in _cells(path) if others.items() <= c.levels.items()]
    expected = TABLE_ARMS[path.stem]
    assert len(rows) == len(expected)
    for row, wanted in zip(rows, expected, strict=True):
        assert {key: row.resolved()[key] for key in wanted} == wanted


CURVE_SUMS = {
    "fedfv_figure2_cifar": {"mean_percent": 239.7 + 261.9 + 275.7, "std_percent": 78.0 + 72.4 + 71.1},
    "fedfv_figure2_mnist": {"mean_percent": 179.9 + 393.8 + 412.6, "std_percent": 144.6 + 150.6 + 149.4},
}
"""The sums of values at given steps, those of figures, step by step."""


@pytest.mark.parametrize("path", [p for p in TABLES if p.stem in PUBLISHED_SUMS], ids=lambda p: p.stem)
def test_published_values_are_those_of_the_paper(path: Path) -> None:
    published = load_study(path).published
    assert published is not None
    curves = CURVE_SUMS.get(path.stem, {})
    for at_the_end, sums in ((True, PUBLISHED_SUMS[path.stem]), (False, curves)):
        rows = [row for row in published.rows if (row.at == "end") == at_the_end]
        for column, total in sums.items():
            values = [row.values[column][0] for row in rows if column in row.values]
            assert sum(values) == pytest.approx(total, abs=0.005), column
    assert bool(curves) == any(row.at != "end" for row in published.rows)


STRIDES = {
    "fedfv_table2": 3, "fedlf_table1_fashion": 4, "fedlf_table1_cifar": 76, "fedlf_table2": 27, "fedlf_table3": 13,
    "fedfv_figure2_cifar": 5, "fedfv_figure2_mnist": 7, "fedmgda_figure1": 20, "fedmgda_figure4": 11,
    "fedmgda_figure5": 9, "fedmgda_table7": 4, "qffl_table12_vehicle": 3,
}  # fmt: skip
"""Where a table has many rows or a large model, every so many of its cells run."""
FEWER_CLIENTS = {
    "fedlf_table1_cifar", "fedlf_table2", "fedlf_table3", "fedmgda_figure1", "fedmgda_figure4", "fedmgda_figure5",
    "qffl_table1_shakespeare",
}  # fmt: skip
"""Tables of a large model, whose first step is cut to two clients, evaluated on test samples alone."""
FEWER_SAMPLES = {"qffl_table1_shakespeare": {"run.task.stride": 100}}
"""What shortens the first step of a table whose model takes a second for some minibatches."""


def _cut(path: Path, steps: int) -> dict[str, Any]:
    """Return the assignments that cut the runs of a table to a few steps, also where a row has its own number."""
    study = load_study(path)
    own = {
        axis: {level for level in levels if "stop" in levels[level]} for axis, levels in study.axes.items()
    }
    places = {f"axes.{axis}.{level}" for axis, levels in own.items() for level in levels}
    if all(levels != set(study.axes[axis]) for axis, levels in own.items()):
        places.add("run")
    return {f"{place}.stop.steps": steps for place in places}


@pytest.mark.parametrize(
    "path", [pytest.param(path, id=path.stem, marks=_ONE_PROCESS.get(path.stem, [])) for path in TABLES]
)
def test_the_first_step_of_a_table_runs(path: Path, tmp_path: Path) -> None:
    inputs.data_of(str(_cells(path)[0].config.task.name))
    fewer = {"run.pacing.clients": 2, "run.evaluate": {"clients": 5}} if path.stem in FEWER_CLIENTS else {}
    fewer |= FEWER_SAMPLES.get(path.stem, {})
    cells = _cells(path, _cut(path, 1) | fewer)[:: STRIDES.get(path.stem, 1)]
    results = simulate([cell.config for cell in cells], out=tmp_path, workers=0)
    assert len(results) == len(cells)
    for result in results:
        run = analysis.open_run(result.folder)
        assert run.manifest["steps"] == 1
        final = run.final()
        assert np.isfinite(final.loss[final.n > 0]).all()


@pytest.mark.xdist_group("cifar10")
def test_figure_4_of_fedmgda_measures_the_users_of_a_round(tmp_path: Path) -> None:
    path = ROOT / "examples" / "papers" / "fedmgda_figure4.toml"
    fewer = {"run.pacing.clients": 2, "run.audit": {"every": 1, "clients": 2}, "run.evaluate": {"clients": 1}}
    cell, *_ = _cells(path, _cut(path, 2) | fewer)
    inputs.data_of(str(cell.config.task.name))
    [result] = simulate([cell.config], out=tmp_path, workers=0)
    run = analysis.open_run(result.folder)
    second = run.jobs.to_pandas().query("version == 1")
    audit = audit_frame(run)
    assert audit["client"].to_list() == sorted(second["client"])
    assert set(audit["group"]) == {"present"}
    assert np.isfinite(audit[["loss_before", "loss_after"]]).all(axis=None)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=_ONE_PROCESS.get(name, [])) for name in TABLE_SIZES]
)
def test_tables_have_the_sizes_of_the_paper(name: str) -> None:
    path = ROOT / "examples" / "papers" / f"{name}.toml"
    config = _cells(path)[0].config
    inputs.data_of(config.task.name)
    clients, train, test, parameters = TABLE_SIZES[name]
    _, data = federation(config)
    assert data.n_clients == clients
    drawn = any(word in path.read_text() for word in ("synthetic", "dirichlet", "shakespeare"))
    if drawn:
        assert train[0] <= data.train.sizes.min() < data.train.sizes.max() <= train[1]
        assert test[0] <= data.test.sizes.min() < data.test.sizes.max() <= test[1]
    else:
        assert (data.train.sizes.min(), data.train.sizes.max()) == train
        assert (data.test.sizes.min(), data.test.sizes.max()) == test
    assert config.model is not None
    network = build_network(config.model.name, config.model.options, data.x.shape[1:], data.n_classes)
    assert parameters == network.P


def _printed(page: Path, name: str) -> tuple[str, str]:
    """Return the values and the verdicts of a table that a page prints."""
    (begin,) = _begins(page, name)
    table = page.read_text()[begin + 4 :].partition("\n```")[0]
    values, _, verdicts = table.partition("What the paper concludes\n")
    return values, verdicts


def _numbers(text: str) -> list[float]:
    return [float(number) for number in re.findall(r"-?\d+(?:\.\d+)?(?:e[+-]\d+)?", text)]


RESULTS = ROOT / "docs" / "papers" / "results"
"""The results of the tables that were run, a folder for each."""


@pytest.mark.parametrize("name", sorted(path.name for path in RESULTS.iterdir()))
def test_a_page_prints_what_its_results_say(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "118")
    opened, (page,) = analysis.open_study(RESULTS / name), _pages(name)
    console = Terminal(width=118, file=StringIO())
    for table in analysis.published_tables(opened):
        console.print(table)
    assert isinstance(console.file, StringIO)
    again = "\n".join(line.rstrip() for line in console.file.getvalue().strip().splitlines())
    values, verdicts = _printed(page, name)
    assert values.rstrip() in again
    assert verdicts.rstrip() in again
    if opened.digest:
        assert f"`{opened.digest[:16]}`" in page.read_text()


@pytest.mark.parametrize("name", ["fedfv_table4", "qffl_figure10", "qffl_table1_vehicle"])
def test_a_run_today_has_the_digest_that_is_kept(name: str, tmp_path: Path) -> None:
    """One of the quick cells; after a change of the records' format the kept studies are to be run again."""
    there = {"torch": "2.15", "vendor": "GenuineIntel", "instructions": "AVX512"}
    if different := dict(there.items() - kind().items()):
        pytest.skip(f"the results are of another kind of machine: {different}")
    kept = load_study(RESULTS / name / "study.toml")
    inputs.data_of(str(kept.run["task"]["name"]))
    cell = cells_of(kept, name)[0]
    (result,) = simulate([cell.config], out=tmp_path, workers=0, device="cpu")
    cells = analysis.open_study(RESULTS / name).cells
    (found,) = [each for each in cells if (each.levels, each.seed) == (cell.levels, cell.seed)]
    assert result.digest == found.results[0].digest


@pytest.mark.parametrize("name", sorted(path.name for path in RESULTS.iterdir()))
def test_results_are_those_of_the_settings(name: str) -> None:
    """A changed file of settings makes its results and its page stale."""
    paths = ROOT / "examples" / "papers" / f"{name}.toml", RESULTS / name / "study.toml"
    kept = load_study(paths[1])
    sets: dict[str, Any] = {"skip": kept.skip, "only": kept.only}
    sets |= {"tune.chosen": kept.tune.chosen} if kept.tune else {}
    studies = load_study(paths[0], sets=sets), kept
    ours, theirs = ({cell.folder: cell.config for cell in cells_of(each, "")} for each in studies)
    for folder, config in theirs.items():
        assert folder in ours
        assert list(differences(config, ours[folder], config.memory)) == []
    assert studies[0].published == studies[1].published


def _pages(name: str) -> list[Path]:
    """Return the pages that print a table."""
    pages = sorted((ROOT / "docs" / "papers").glob("*.md"))
    return [page for page in pages if _begins(page, name)]


def _begins(page: Path, name: str) -> list[int]:
    """Return where a page prints a table, whose title may say which evaluations it averages."""
    return [found.start() for found in re.finditer(f"```\n{name}(,[^`]*,)? beside\\s", page.read_text())]


@pytest.mark.tables
@pytest.mark.timeout(0)
@pytest.mark.parametrize("name", PRINTED)
def test_a_printed_table_can_be_made_again(name: str, tmp_path: Path) -> None:
    path = ROOT / "examples" / "papers" / f"{name}.toml"
    inputs.data_of(str(load_study(path).run["task"]["name"]))
    outcome = study(path, out=tmp_path)
    assert outcome.failed == ()
    values, verdicts = _printed(PRINTED[name], name)
    text = subprocess.run(
        [sys.executable, "-m", "fedsim", "compare", str(outcome.folder), "--published"],
        capture_output=True, text=True, check=True, env={**os.environ, "COLUMNS": "118"},
    ).stdout  # fmt: skip
    again = "\n".join(line.rstrip() for line in text.strip().splitlines())
    if f"{values}What the paper concludes\n{verdicts}" == again:
        return
    # Rounding on another processor moves means a little.
    found, _, _ = again.partition("What the paper concludes\n")
    np.testing.assert_allclose(_numbers(found), _numbers(values), rtol=0.05, atol=1.0)


def test_the_manual_names_the_rules_of_each_file() -> None:
    rows = re.findall(r"`examples/papers/(\w+)\.toml` \| (.+) \|", (ROOT / "docs" / "papers.md").read_text())
    before = ""
    for name, arms in [row for row in rows if row[0] in {path.stem for path in CONFIGS}]:
        before = before if arms == "the same" else arms
        words = before.replace("MGDA-Prox", "").replace("FedProx", "")
        whole = {word: rf"(?<![\w-]){re.escape(word)}(?![\w+-])" for word in RULES}
        named = {plugin for word, plugin in RULES.items() if re.search(whole[word], words)}
        run = {config.algorithm.name for config in load_config(ROOT / "examples" / "papers" / f"{name}.toml")}
        if "qfed" in named:  # q = 0 is the average
            assert any(rule.startswith("qfed") for rule in run), name
            run -= {"qfedavg", "qfedsgd", "fedavg", "fedsgd"}
        assert run == named - {"qfed"}, name


def test_the_manual_lists_the_results_that_are_kept() -> None:
    manual = (ROOT / "docs" / "papers.md").read_text()
    listed = manual.partition("`docs/papers/results` has ")[2].partition("`fedsim compare")[0]
    assert set(re.findall(r"`(\w+)`", listed)) == {path.name for path in RESULTS.iterdir()}


def test_every_setting_is_in_the_table_of_the_manual() -> None:
    manual = (ROOT / "docs" / "papers.md").read_text()
    assert set(re.findall(r"`(?:examples/papers/)?(\w+)\.toml` \|", manual)) == {
        path.stem for path in [*CONFIGS, *TABLES]
    }


def test_the_verdict_on_a_table_follows_from_its_results() -> None:
    manual = (ROOT / "docs" / "papers.md").read_text()
    verdicts = dict(re.findall(r"`(\w+)\.toml` \| \*{0,2}(reproduced|partly|not|unknown)\*{0,2} \|", manual))
    assert verdicts.keys() == {path.stem for path in TABLES}
    for name, verdict in verdicts.items():
        if not (RESULTS / name).is_dir():
            assert verdict == "unknown", name
        elif verdict == "reproduced":
            assert _reproduced(analysis.open_study(RESULTS / name)), name


def _reproduced(kept: analysis.Study) -> bool:
    """Return whether, in one reading of the settings, nine in ten values are the paper's and no claim is refuted."""
    values = [value for value in analysis.published_values(kept) if value.published_std is not None]
    rules = {value.levels.get("rule") for value in values}
    other_losses = {rule for rule in rules if f"{rule}_after" in rules}  # the code has those after training
    groups: dict[str, list[bool]] = defaultdict(list)
    for value in values:
        if value.levels.get("rule") not in other_losses:
            groups[_reading(value.levels)].append(value.differs)
    refuted = {
        _reading(claim.others)
        for claim in analysis.claim_results(kept)
        for pair in claim.pairs
        if pair.verdict == "does not hold" and not {pair.lower, pair.higher} & other_losses
    }
    shares = {reading: np.mean(differ) for reading, differ in groups.items()}
    return any(share <= 0.1 for reading, share in shares.items() if reading not in refuted) or not values


def _reading(levels: dict[str, str]) -> str:
    return levels.get("softmax", "the only one")
