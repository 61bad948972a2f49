"""The closing table with the clients that never train."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from rich.console import Console

from fedsim import analysis
from fedsim.analysis.tables.closing import closing
from synthetic_runs import evals_table, write_run

SEEN = [[0.1, 0.2, 0.3], [0.2, 0.4, 0.6]]
UNSEEN = [[0.5, 0.1], [0.3, 0.1]]


def evaluations(**splits: list[list[float]]) -> pa.Table:
    """Return evaluations on several splits; unseen clients have numbers from 3 on."""
    tables = []
    for split, accuracy in splits.items():
        table = evals_table(accuracy, split=split)
        first = 3 if split.startswith("unseen") else 0
        shifted = pa.array(np.asarray(table["client"]) + first, pa.int32())
        tables.append(table.set_column(table.schema.get_field_index("client"), "client", shifted))
    return pa.concat_tables(tables).unify_dictionaries()


def run_with(folder: Path, **splits: list[list[float]]) -> analysis.Run:
    return analysis.open_run(write_run(folder, tables={"evals": evaluations(**splits)}))


def shown(printable: object, width: int = 80) -> str:
    console = Console(width=width, file=io.StringIO(), record=True)
    console.print(printable)
    return console.export_text()


def test_unseen_clients_have_a_row_below_their_run(tmp_path: Path) -> None:
    runs = [
        run_with(tmp_path / "plain", test=SEEN, unseen=UNSEEN),
        run_with(tmp_path / "none", test=SEEN),
        run_with(tmp_path / "ditto", test=SEEN, unseen=UNSEEN, unseen_personal=[[0.9, 1.0], [0.8, 0.8]]),
    ]
    text = shown(analysis.closing_table(runs))
    rows = [line.split() for line in text.splitlines()]
    names = [row[0] for row in rows if row and row[0] in ("plain", "none", "ditto", "unseen", "adapted")]
    assert names == ["plain", "unseen", "none", "ditto", "unseen", "adapted"]
    assert [row[1] for row in rows if row[:1] == ["unseen"]] == ["20.00", "20.00"]
    assert [row[1:] for row in rows if row[:1] == ["adapted"]] == [
        ["80.00", "0.00", "80.00", "80.00", "80.00", "0.000"]
    ]
    assert max(map(len, text.splitlines())) <= 80
    assert "unseen: clients that never train; adapted: after" in " ".join(text.split())
    assert closing(runs[0], "unseen").metrics["std_percent"] == pytest.approx(10)


def test_personal_models_have_a_row_below_their_run(tmp_path: Path) -> None:
    run = run_with(tmp_path / "ditto", test=SEEN, test_personal=[[0.9, 1.0], [0.8, 0.8]])
    text = shown(analysis.closing_table([run]))
    rows = [line.split() for line in text.splitlines()]
    assert [row[1:] for row in rows if row[:1] == ["own"]] == [
        ["80.00", "0.00", "80.00", "80.00", "80.00", "0.000"]
    ]
    assert "own: each client's personal model" in text
    assert "unseen" not in text
    assert " own " not in shown(analysis.closing_table([run], "test"))


def test_without_unseen_clients_the_table_is_as_it_was(tmp_path: Path) -> None:
    text = shown(analysis.closing_table([run_with(tmp_path / "none", test=SEEN)]))
    assert "unseen" not in text
    assert "adapted" not in text


def test_a_split_that_is_asked_for_is_shown_alone(tmp_path: Path) -> None:
    text = shown(analysis.closing_table([run_with(tmp_path / "plain", test=SEEN, unseen=UNSEEN)], "unseen"))
    assert "on the unseen split" in text
    assert [line.split()[:2] for line in text.splitlines() if "plain" in line] == [["plain", "20.00"]]
    assert not any(line.split()[:1] == ["unseen"] for line in text.splitlines())


def test_a_run_tells_its_splits_and_their_history(tmp_path: Path) -> None:
    run = run_with(tmp_path / "ditto", train=SEEN, test=SEEN, unseen=UNSEEN, unseen_personal=UNSEEN)
    assert run.recorded_splits == ("test", "train", "unseen", "unseen_personal")
    history = run.history("unseen", ["mean_percent"])
    assert history["clients"].tolist() == [2, 2]
    assert history["mean_percent"].tolist() == pytest.approx([30, 20])
    assert run.final("unseen").client.tolist() == [3, 4]


def noted(folder: Path, **accuracies: tuple[list[float], int]) -> str:
    """Return the table of runs with these accuracies on so many samples per client, in one line."""
    runs = [
        analysis.open_run(write_run(folder / name, tables={"evals": evals_table([values], n=n)}))
        for name, (values, n) in accuracies.items()
    ]
    return " ".join(shown(analysis.closing_table(runs)).split())


def test_a_note_says_how_much_std_an_equal_model_would_show(tmp_path: Path) -> None:
    """Accuracies of 0.4 and 0.6 on 10 samples: sqrt(0.5 * 0.25 / 10) is 11.2 points."""
    text = noted(tmp_path, one=([0.4, 0.6], 10))
    assert (
        "a perfectly equal model would show a std of 11.2 points on these test sets; observed: 10.0" in text
    )


@pytest.mark.parametrize(("n", "said"), [(49, True), (51, False)])
def test_the_note_is_about_runs_where_noise_may_be_half_of_the_std(
    tmp_path: Path, n: int, said: bool
) -> None:
    """At 50 samples the floor is exactly half of the spread of 10 points."""
    assert ("perfectly equal" in noted(tmp_path, one=([0.4, 0.6], n))) == said


def test_the_note_names_noisy_runs_alone(tmp_path: Path) -> None:
    noisy = ([0.4, 0.6], 10)
    text = noted(tmp_path, a=([0.1, 0.9], 10), b=noisy, equal=([0.5, 0.5], 10), c=noisy, d=noisy, e=noisy)
    note = "on these test sets; observed: 10.0 with b, 11.2 of 10.0 with c, 11.2 of 10.0 with d, 1 more"
    assert note in text
    none = analysis.open_run(write_run(tmp_path / "none"))
    assert "perfectly equal" not in shown(analysis.closing_table([none]))
