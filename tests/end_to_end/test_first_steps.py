"""Where people are stuck in their first hour: files of other systems, words for units, names, what ends early."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest
import tomli_w

import fedsim
from fedsim.cli.main import main
from fedsim.common.errors import ConfigError
from small import small


@pytest.fixture
def text() -> str:
    return tomli_w.dumps(small().resolved())


def call(*arguments: object, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main([str(a) for a in arguments])
    printed = capsys.readouterr()
    return int(ended.value.code or 0), printed.out, printed.err


def test_the_package_is_the_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["fedsim", "--version"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("fedsim", run_name="__main__")
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"fedsim {fedsim.__version__}\n"


def test_a_list_of_nothing_says_of_what_there_are_lists(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call("list", capsys=capsys)
    assert code == 0
    assert "rules         how updates become a step" in out


def test_a_file_with_windows_mark_and_line_ends_is_read(text: str, tmp_path: Path) -> None:
    path = tmp_path / "small.toml"
    path.write_bytes(b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode())
    assert fedsim.load_config(path)[0].resolved() == small().resolved()


def test_a_file_that_is_not_in_utf8_is_refused_with_what_to_do(text: str, tmp_path: Path) -> None:
    path = tmp_path / "small.toml"
    path.write_text(text, encoding="utf-16")
    with pytest.raises(ConfigError, match=r"small\.toml: cannot be read: expected text in UTF-8"):
        fedsim.load_config(path)


def test_a_file_whose_name_is_none_for_a_run_asks_for_one(text: str, tmp_path: Path) -> None:
    path = tmp_path / "my run é.toml"
    path.write_text(text.replace('name = "small"\n', "", 1))
    message = r"the name of the file cannot be the run's: .*found 'my run é'; give one with name"
    with pytest.raises(ConfigError, match=message):
        fedsim.load_config(path)
    assert fedsim.load_config(path, ("name=mine",))[0].name == "mine"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("stop.time=1 hour", "found unit 'hour' in '1 hour'; known: d, h, m, min, ms, s, us, w"),
        ("algorithm=fedavg", "algorithm: expected a table, such as algorithm.KEY = VALUE, found 'fedavg'"),
        ("train.lr=inf", "train.lr: input should be a finite number, found inf"),
        ("evaluate.seed=3", "evaluate.seed: unknown key; 'seed' belongs above the first table"),
        ("pacing.client=4", "pacing.client: unknown key; did you mean 'clients'?"),
        ("world.name=churn", "world.name: unknown key; did you mean 'scenario'?"),
        ("train.stop={steps=3}", "train.stop: unknown key; [stop] is a table of its own"),
        ("task.client=13", "task: task 'digits' has no option 'client'; did you mean 'clients'?"),
        ("task.nam=digits", "task: task 'digits' has no option 'nam'; did you mean 'name'?"),
        ("algorithm.memmory=2h", "has no option 'memmory'; did you mean 'memory'?"),
        ("algorithm.q=2", "has no option 'q'; known: absent, fair_row, lengths"),
        ("task.fractions=0.8", "task.fractions: input should be a list, found 0.8"),
        (
            'algorithm.wrap={name="server_opt"}',
            "algorithm.wrap: expected a list of tables, each written [[algorithm.wrap]], found a single table",
        ),
        ("model.hidden=32", "option 'hidden': Input should be a list, found 32"),
        ("train.weight_decay=inf", "train.weight_decay: input should be a finite number, found inf"),
    ],
)
def test_what_is_wrong_says_what_is_right(text: str, tmp_path: Path, change: str, said: str) -> None:
    path = tmp_path / "small.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as raised:
        fedsim.load_config(path, (change,))
    assert said in str(raised.value)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("preset = sync", "Invalid value (at line 2, column 10): 'preset = sync'; text needs quotes"),
        ("deadline = 5min  # soon", "(at line 2, column 13): 'deadline = 5min  # soon'; text needs quotes"),
        ("deadline = 0,5", "(at line 2, column 13): 'deadline = 0,5'"),
        ('preset = "sync', """: 'preset = "sync'"""),
    ],
)
def test_what_is_no_toml_is_shown(tmp_path: Path, line: str, said: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(f"[pacing]\n{line}\nclients = 3\n")
    with pytest.raises(ConfigError) as raised:
        fedsim.load_config(path)
    assert str(raised.value).endswith(said)


def test_a_relative_path_says_from_where_it_was_looked_for(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.toml").write_text(text)
    code, _, err = call("plan", "small.toml", "--set", 'world={trace="w.parquet"}', capsys=capsys)
    assert code == 2
    assert f"w.parquet: there is no such file, seen from {tmp_path}" in err


def test_a_run_that_ends_because_nobody_is_there_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "nobody.py").write_text(
        "from fedsim.worlds.scenario import Scenario\n\n\n"
        "def nobody() -> Scenario:\n"
        "    def client(env, me):\n        yield env.timeout(1)\n\n"
        "    return Scenario(client)\n"
    )
    config = small(world={"scenario": f"{tmp_path / 'nobody.py'}:nobody", "horizon": "2h"})
    (tmp_path / "small.toml").write_text(tomli_w.dumps(config.resolved()))
    code, out, _ = call(
        "run", tmp_path / "small.toml", "--out", tmp_path, "--workers", 0, "--quiet", capsys=capsys
    )
    assert code == 0
    assert (
        "small: ended at step 0, before a limit of [stop]: no client is online or chosen any more, or" in out
    )


def test_arguments_from_python_are_checked(text: str, tmp_path: Path) -> None:
    path = tmp_path / "small.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"sets: expected several assignments.*found the text 'seed=2'"):
        fedsim.load_config(path, "seed=2")
    with pytest.raises(ConfigError, match=r"small.toml: there is no such file"):
        fedsim.simulate(tmp_path / "no" / "small.toml", out=tmp_path, workers=0)
    with pytest.raises(ConfigError, match="device: expected one of 'auto', 'cpu', 'cuda', found 'gpu'"):
        fedsim.simulate(small(), out=tmp_path, workers=0, device="gpu")  # type: ignore[arg-type]
    with pytest.raises(
        ConfigError, match="workers: expected a whole number or 'auto' or a RayPool, found '2'"
    ):
        fedsim.simulate(small(), out=tmp_path, workers="2")  # type: ignore[arg-type]


def test_a_folder_that_is_not_there_is_not_called_a_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = call("compare", tmp_path / "gone", capsys=capsys)
    assert (code, err) == (2, f"error: there is no folder {tmp_path / 'gone'}\n")


def test_a_metric_of_which_less_is_better_is_watched_so(text: str, tmp_path: Path) -> None:
    path = tmp_path / "small.toml"
    path.write_text(text.replace("rising = true\n", ""))
    (tmp_path / "spread.py").write_text(
        "SMALLER_IS_BETTER = True\n\n\ndef spread(accuracy, n):\n    return accuracy.std()\n"
    )
    for metric, said, rising in (
        ("mean_percent", (), True),
        ("angle_rad", (), False),
        (f"{tmp_path}/spread.py:spread", (), False),
        ("angle_rad", ("stop.rising=true",), True),
    ):
        config = fedsim.load_config(path, (f"stop.metric={metric}", "stop.patience=2", *said))[0]
        assert config.stop.stop().rising is config.resolved()["stop"]["rising"] is rising


def test_a_target_that_is_met_before_the_first_step_is_told(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "small.toml").write_text(text)
    run = ("run", tmp_path / "small.toml", "--out", tmp_path, "--workers", 0, "--quiet")
    code, out, _ = call(*run, "--set", "stop.target=0.0", capsys=capsys)  # a share, where percent are meant
    assert code == 0
    assert "small: ended before its first step: the initial model meets stop.target" in out
