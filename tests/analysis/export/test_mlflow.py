"""MLflow gets the curves that the tables hold, in a database of its own."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from fedsim import analysis
from fedsim.analysis.export.curves import COUNTS, METRICS
from fedsim.cli.main import main
from fedsim.common.errors import RunError
from fedsim.integrations.trackers import MLflowLogger
from fedsim.runs.simulate import simulate
from tracked import assert_whole, config

pytestmark = [
    pytest.mark.skipif(
        find_spec("mlflow") is None,
        reason="the package mlflow is not installed: pip install '.[mlflow]'",
    ),
    pytest.mark.filterwarnings("ignore"),  # those of MLflow
]

TAGS = [f"steps/{c}" for c in COUNTS] + [f"evaluation_test/{m}" for m in (*METRICS, "mean_loss")]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("store")


@pytest.fixture(autouse=True)
def experiment(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """An experiment for each test, as making a store takes seconds."""
    name = str(request.node.name)
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", name)
    return name


def runs_of(store: Path, experiment: str) -> dict[str, Any]:
    """Return by name: the runs, each with its curves."""
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{store / 'mlflow.db'}")
    found = client.get_experiment_by_name(experiment)
    assert Path(found.artifact_location.removeprefix("file://")) == store / "artifacts"
    runs = {run.info.run_name: run for run in client.search_runs([found.experiment_id])}
    for run in runs.values():
        histories = {tag: client.get_metric_history(run.info.run_id, tag) for tag in TAGS}
        run.curves = {
            tag: sorted((m.step, m.timestamp / 1000, m.value) for m in h) for tag, h in histories.items()
        }
    return runs


def test_a_logger_sends_what_the_tables_hold(tmp_path: Path, store: Path, experiment: str) -> None:
    configs = [config(name="both/one"), config(name="both/two", algorithm={"name": "fedavg"})]
    with MLflowLogger(str(store)) as logger:
        results = simulate(configs, out=tmp_path / "runs", workers=0, watch=logger)
    found = runs_of(store, experiment)
    assert sorted(found) == ["both/one", "both/two"]
    for result in results:
        opened = analysis.open_run(result.folder)
        run = found[opened.config["name"]]
        assert run.info.status == "FINISHED"
        assert run.data.params["algorithm.name"] == opened.config["algorithm"]["name"]
        assert set(run.data.metrics) == set(TAGS)
        assert_whole(run.curves, opened, time_s=5e-4)


def test_an_export_sends_the_same_as_a_logger(
    tmp_path: Path, store: Path, experiment: str, capsys: pytest.CaptureFixture[str]
) -> None:
    [result] = simulate(config(name="one"), out=tmp_path / "runs", workers=0)
    with pytest.raises(SystemExit) as ended:
        main(["export", "mlflow", str(result.folder), "--store", str(store)])
    assert ended.value.code == 0
    said = capsys.readouterr().out
    assert "8 steps, 5 evaluations" in said
    assert f"mlflow ui --backend-store-uri sqlite:///{store}/mlflow.db" in said
    [(name, run)] = runs_of(store, experiment).items()
    assert name == "one"
    assert_whole(run.curves, analysis.open_run(result.folder), time_s=5e-4)


def test_a_run_that_raises_is_marked_as_killed(tmp_path: Path, store: Path, experiment: str) -> None:
    def failing(progress: Any) -> None:
        logger(progress)
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError), MLflowLogger(str(store)) as logger:
        simulate(config(name="one"), out=tmp_path / "runs", workers=0, watch=failing)
    assert runs_of(store, experiment)["one"].info.status == "KILLED"


def test_a_server_that_does_not_answer_is_named_before_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", raising=False)
    with pytest.raises(RunError, match=r"^MLflow, http://127.0.0.1:9: .*Max retries exceeded"):
        MLflowLogger("http://127.0.0.1:9")
    assert "MLFLOW_HTTP_REQUEST_MAX_RETRIES" not in os.environ


def test_a_store_that_is_refused_is_named(tmp_path: Path) -> None:
    [result] = simulate(config(name="one"), out=tmp_path / "runs", workers=0)
    with pytest.raises(RunError, match=r"^MLflow, nonsense://x: "):
        analysis.export_mlflow([analysis.open_run(result.folder)], "nonsense://x")
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="file/below: the folder cannot be made: Not a directory"):
        analysis.export_mlflow([analysis.open_run(result.folder)], str(tmp_path / "file" / "below"))
