"""The examples give the digests that they gave before; CONTRIBUTING.md says how to change them on purpose."""

from __future__ import annotations

import subprocess
from contextlib import nullcontext
from pathlib import Path

import pytest

import golden_digests
import inputs
from fedsim.config.load import load_config
from golden_digests import CONFIGS, difference, digests, kind, recorded, records, unknown, updated


def test_every_digest_is_of_an_example() -> None:
    names = {run.name for path in CONFIGS for run in load_config(path)}
    assert all(set(record["digests"]) <= names for record in records())
    assert set.union(*(set(record["digests"]) for record in records())) == names, "each was taken somewhere"


@pytest.mark.parametrize("path", CONFIGS, ids=lambda p: p.stem)
def test_an_example_gives_the_digest_that_it_gave(path: Path) -> None:
    """Those that are recorded for machines of this kind; what is not compared is skipped and named."""
    runs = load_config(path)
    expected = {run.name: recorded()[run.name] for run in runs if run.name in recorded()}
    if expected:
        inputs.data_of(runs[0].task.name)
        found = digests(path)
        assert {name: found[name] for name in expected} == expected, (
            "if this is meant: python tests/tools/golden_digests.py --update, see CONTRIBUTING.md"
        )
    if reason := unknown(run.name for run in runs):
        pytest.skip(reason)


def test_a_machine_of_another_kind_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "abacus")
    assert "machine " in (told := str(difference()))
    assert "here abacus" in told
    assert recorded() == {}


@pytest.mark.parametrize("what", kind())
def test_a_record_that_leaves_open_what_bits_depend_on_is_not_compared(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = {key: value for key, value in kind().items() if key != what}
    monkeypatch.setattr(
        "golden_digests.records", lambda: [{"kind": part, "digests": {"quickstart/fedavg": "1"}}]
    )
    assert recorded() == {}


def test_what_changed_here_is_to_be_found_out_again_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    here, other = kind(), kind() | {"machine": "abacus"}
    before = [
        {"kind": other, "digests": {"same": "1", "changed": "2", "gone": "3"}},
        {"kind": here, "digests": {"same": "4", "changed": "5", "gone": "6"}},
    ]
    monkeypatch.setattr("golden_digests.records", lambda: before)
    assert updated({"same": "4", "changed": "7", "new": "8"}) == [
        {"kind": other, "digests": {"same": "1"}},
        {"kind": here, "digests": {"same": "4", "changed": "7", "new": "8"}},
    ]


def test_a_recording_that_lacks_an_example_says_which_and_what_records_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    part = [{"kind": kind(), "digests": {"quickstart/fedavg": "1"}}]
    monkeypatch.setattr("golden_digests.records", lambda: part)
    assert unknown(["quickstart/fedavg"]) is None
    assert (told := unknown(["quickstart/fedavg", "oort_fedbuff"])) is not None
    assert "no digest of oort_fedbuff for this kind of machine" in told
    assert "`python tests/tools/golden_digests.py --update`" in told


def test_a_partial_recording_is_compared_as_far_as_it_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    [path] = [path for path in CONFIGS if path.stem == "quickstart"]
    found = {run.name: "right" for run in load_config(path)}
    monkeypatch.setitem(globals(), "digests", lambda path: found)
    part = [{"kind": kind(), "digests": {"quickstart/fedavg": "wrong"}}]
    monkeypatch.setattr("golden_digests.records", lambda: part)
    with pytest.raises(AssertionError, match="if this is meant"):
        test_an_example_gives_the_digest_that_it_gave(path)
    part[0]["digests"]["quickstart/fedavg"] = "right"
    with pytest.raises(pytest.skip.Exception, match="no digest of quickstart/fedfv, quickstart/fedlf"):
        test_an_example_gives_the_digest_that_it_gave(path)


def test_without_its_data_an_example_is_left_out_of_the_comparison_and_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(inputs, "DATA", tmp_path)
    monkeypatch.setattr("golden_digests.digests", lambda path: {run.name: "new" for run in load_config(path)})
    monkeypatch.setattr("sys.argv", ["golden_digests.py"])
    with pytest.raises(SystemExit, match="1"):
        golden_digests.main()
    told = capsys.readouterr().out
    assert "fashion_mnist: left out: no FashionMNIST/raw/train-images-idx3-ubyte" in told
    assert "quickstart/fedavg: " in told
    assert "fashion_mnist/fedavg: " not in told, "what is left out is not gone"
    monkeypatch.setattr("sys.argv", ["golden_digests.py", "--update"])
    before = golden_digests.FILE.read_bytes()
    with pytest.raises(SystemExit, match="nothing is written"):
        golden_digests.main()
    assert golden_digests.FILE.read_bytes() == before
    assert not list(tmp_path.iterdir()), "nothing is downloaded"


def repository(folder: Path, digest: str) -> Path:
    """Make a repository whose script computes a digest of each of two examples, committed."""
    tools = folder / "tests" / "tools"
    tools.mkdir(parents=True, exist_ok=True)
    (tools / "golden_digests.json").write_text(f'"{digest}"')
    (tools / "golden_digests.py").write_text(
        "from pathlib import Path\n"
        "CONFIGS = [Path('a.toml'), Path('ab.toml')]\n"
        f"digests = lambda path: {{f'{{path.stem}}/fedavg': '{digest}'}}\n"
    )
    identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (["init", "--quiet"], ["add", "-A"], [*identity, "commit", "--quiet", "-m", digest]):
        subprocess.run(["git", *words], cwd=folder, check=True)
    return tools / "golden_digests.json"


def test_digests_are_computed_again_with_the_commit_that_recorded_them(tmp_path: Path) -> None:
    file = repository(tmp_path, "before")
    commit = golden_digests.recording_commit(file)
    (tmp_path / "other.txt").write_text("a later commit that records nothing")
    repository(tmp_path, "before")
    assert golden_digests.recording_commit(file) == commit
    assert golden_digests.digests_at(commit, ["a"], tmp_path) == {"a/fedavg": "before"}
    repository(tmp_path, "after")
    last = golden_digests.recording_commit(file)
    assert golden_digests.digests_at(last, ["a", "ab"], tmp_path) == {
        "a/fedavg": "after",
        "ab/fedavg": "after",
    }
    assert golden_digests.digests_at(commit, ["a"], tmp_path) == {"a/fedavg": "before"}


def test_the_commit_that_recorded_the_digests_computes_them() -> None:
    if not (golden_digests.ROOT / ".git").exists():
        pytest.skip("not a clone: another commit's code cannot be had")
    [path] = [path for path in CONFIGS if path.stem == "quickstart"]
    names = {run.name for run in load_config(path)}
    found = golden_digests.digests_at(golden_digests.recording_commit(), [path.stem])
    assert found.keys() == names
    assert found == found | {name: digest for name, digest in recorded().items() if name in names}


@pytest.mark.parametrize(("then", "code"), [("same", None), ("other", 1)])
def test_on_an_unknown_kind_of_machine_a_changed_digest_is_an_error(
    then: str, code: int | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    record = {"kind": kind() | {"instructions": "abacus"}, "digests": {"quickstart/fedavg": "1"}}
    monkeypatch.setattr("golden_digests.records", lambda: [record])
    monkeypatch.setattr(
        "golden_digests.digests", lambda path: {run.name: "same" for run in load_config(path)}
    )
    monkeypatch.setattr("golden_digests.recording_commit", lambda: "0123456789abcdef")
    monkeypatch.setattr("golden_digests.digests_at", lambda commit, examples: {"quickstart/fedavg": then})
    monkeypatch.setattr("sys.argv", ["golden_digests.py", "--again"])
    with nullcontext() if code is None else pytest.raises(SystemExit, match=str(code)):
        golden_digests.main()
    told = capsys.readouterr().out
    assert f"1 digests computed again with 0123456789, {0 if code is None else 1} of them changed" in told
    monkeypatch.setattr("golden_digests.records", lambda: [record | {"kind": {"torch": "0.1"}}])
    golden_digests.main()
    assert "digests of no machine with these packages are known" in capsys.readouterr().out
