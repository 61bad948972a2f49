"""docs/analysis.md answers one question in pandas, Polars and DuckDB, with the same numbers."""

from __future__ import annotations

import json
import re
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

import programs
from synthetic_runs import evals_table, jobs_table, write_run

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "analysis.md").read_text(encoding="utf-8")
SECTION = PAGE[PAGE.index("## pandas, Polars and DuckDB") :]
CODES = re.findall(r"```py\w*\n(.*?)```", SECTION, re.DOTALL)
PAIRS = {"pandas": "answer.items()", "polars": "answer.iter_rows()", "duckdb": "answer.fetchall()"}
UPDATES = {"fedavg": [4, 1, 0, 2], "fedfv": [1, 3, 2, 0]}
ACCURACY = {"fedavg": [0.9, 0.5, 0.25, 0.625], "fedfv": [0.75, 0.5, 0.625, 0.75]}


@pytest.mark.parametrize(("tool", "code"), [*zip(PAIRS, CODES, strict=True)], ids=PAIRS)
def test_the_answer_is_the_correlation_of_updates_and_accuracies(
    tool: str, code: str, tmp_path: Path
) -> None:
    if find_spec(tool) is None:
        pytest.skip(f"the package {tool} is not installed: make integrations")
    for run, updates in UPDATES.items():
        clients = [client for client, count in enumerate(updates) for _ in range(count + 1)]
        first = {client: i for i, client in reversed([*enumerate(clients)])}  # each client also loses a job
        jobs = jobs_table(
            dispatch_us=np.arange(len(clients)),
            client=clients,
            status=["lost" if first[c] == i else "aggregated" for i, c in enumerate(clients)],
        )
        evals = evals_table([[0.1, 0.4, 0.2, 0.3], ACCURACY[run]])
        write_run(tmp_path / "runs" / "quickstart" / run, tables={"jobs": jobs, "evals": evals})
    written = f"import json; json.dump(dict({PAIRS[tool]}), open('answer.json', 'w'))"
    done = programs.python(f"{code}\n{written}", tmp_path)
    assert done.code == 0, done.err[-2000:]
    expected = {run: np.corrcoef(UPDATES[run], ACCURACY[run])[0, 1] for run in UPDATES}
    assert json.loads((tmp_path / "answer.json").read_text()) == pytest.approx(expected)
