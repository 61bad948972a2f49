from __future__ import annotations

import os
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import threadpoolctl
import tomli_w

from fedsim import plugins
from fedsim.cli.main import main
from fedsim.common.errors import ConfigError
from fedsim.records import environment
from fedsim.server.rule_factory import build_rule
from rule_calls import combine
from small import small

RULE = '''
"""A rule outside of fedsim."""
import numpy as np
from fedsim.server.rule import Algorithm, Direction, stateless

def strongest(*, share: float = 1.0) -> Algorithm:
    """Follow the longest update."""
    return stateless(lambda stack: Direction(np.eye(stack.n)[0] * share))
'''


@pytest.mark.parametrize("kind", plugins.KINDS)
def test_each_plug_in_is_a_module_with_a_factory_of_its_name(kind: str) -> None:
    found = plugins.names(kind)
    assert found
    for name in found:
        assert plugins.factory(kind, name).__name__ == name
        assert plugins.summary(kind, name), f"{kind} {name} has no docstring"


def test_a_file_elsewhere_is_a_plug_in(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(RULE)
    name = f"{path}:strongest"
    assert plugins.build("rule", name, {"share": 0.5}).weigh
    assert plugins.resolved("rule", name, {}, ()) == {"share": 1.0}
    with pytest.raises(ConfigError, match="no option 'shere'; did you mean 'share'"):
        plugins.build("rule", name, {"shere": 0.5})
    with pytest.raises(ConfigError, match="has no function 'weakest'"):
        plugins.factory("rule", f"{path}:weakest")


def test_a_dataclass_may_hold_the_options_of_a_plug_in(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(
        "from dataclasses import dataclass\n"
        "from typing import Annotated\n"
        "from fedsim.algorithms.fedavg import fedavg\n"
        "from fedsim.common.option_requirements import With\n"
        "from fedsim.server.rule import Algorithm\n"
        "@dataclass(frozen=True)\n"
        "class Options:\n"
        "    weighting: str\n"
        "    kind: str = 'a'\n"
        "    depth: Annotated[int, With('kind', 'b')] = 1\n"
        "def mine(options: Options, lr: float, more: int = 3) -> Algorithm:\n"
        "    assert (options.depth, lr, more) == (2, 0.1, 4)\n"
        "    return fedavg(weighting=options.weighting)\n"
    )
    name, valid = f"{path}:mine", {"weighting": "uniform", "kind": "b", "depth": 2.0, "more": 4}
    assert plugins.build("rule", name, valid, lr=0.1).weigh
    assert plugins.resolved("rule", name, {"kind": "b"}, ["lr"]) == {"kind": "b", "depth": 1, "more": 3}
    for wrong, message in (
        ({**valid, "dept": 1}, "no option 'dept'; did you mean 'depth'"),
        ({**valid, "depth": 1.5}, "option 'depth': .*integer.*, found 1.5"),
        ({"kind": "a"}, "needs the option 'weighting'"),
        ({**valid, "kind": "a"}, "option 'depth': it would have no effect with kind = \"a\""),
    ):
        with pytest.raises(ConfigError, match=message):
            plugins.build("rule", name, wrong, lr=0.1)


def test_the_annotations_of_a_class_are_those_of_its_init(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(
        "from typing import Annotated\n"
        "from pydantic import Field\n"
        "from torch import nn\n"
        "class Net(nn.Linear):\n"
        "    hidden: str\n"
        "    def __init__(self, *, in_shape, n_classes, hidden: Annotated[int, Field(ge=1)] = 8):\n"
        "        super().__init__(in_shape[0], n_classes)\n"
    )
    name, supplied = f"{path}:Net", ("in_shape", "n_classes")
    assert plugins.check("model", name, {"hidden": 3}, supplied) == {"hidden": 3}
    for value, fault in (
        ("x", "valid integer"),
        (True, "expected a number"),
        (0, "greater than or equal to 1"),
    ):
        with pytest.raises(ConfigError, match=f"option 'hidden': .*{fault}"):
            plugins.check("model", name, {"hidden": value}, supplied)


def test_a_value_of_several_types_has_one_message() -> None:
    with pytest.raises(ConfigError) as caught:
        plugins.check("rule", "krum", {"keep": 0}, ())
    assert str(caught.value) == (
        "rule 'krum', option 'keep': Input should be greater than or equal to 1 or 'honest', found 0"
    )


@pytest.mark.parametrize("future", ["", "from __future__ import annotations\n"])
def test_a_partitioner_of_a_module_may_return_the_alias(future: str, site: Path) -> None:
    (site / "dealing.py").write_text(
        f"{future}from fedsim.data.partitioners import Partition\n"
        "def dealt() -> Partition:\n    return None\n"
        "def other() -> int:\n    return 1\n"
    )
    assert plugins.factory("partitioner", "dealing:dealt")
    with pytest.raises(ConfigError, match="returns a Partition, found"):
        plugins.factory("partitioner", "dealing:other")
    del sys.modules["dealing"]


def test_no_option_is_called_like_a_key_of_its_table(tmp_path: Path) -> None:
    """Else the run's file would give it the value of that key, and a run of the resolved file another one."""
    path = tmp_path / "mine.py"
    path.write_text(RULE.replace("share", "memory"))
    algorithm = {"name": f"{path}:strongest"}
    with pytest.raises(ConfigError, match="its option 'memory' is called like a key of the table itself"):
        small(algorithm=algorithm)
    path.write_text(RULE)
    assert small(algorithm=algorithm).algorithm.options == {}


def test_a_rule_keeps_its_own_rate_and_gets_that_of_the_run_where_it_has_none(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(
        RULE.replace("share: float = 1.0", "lr: float = 1.0, momentum: float | None = None").replace(
            "* share", "* lr * (momentum or 0)"
        )
    )
    algorithm = {"name": f"{path}:strongest"}
    rule = build_rule(algorithm["name"], {}, lr=0.25, momentum=0.5)
    assert combine(rule, np.eye(2), losses=None).weights.tolist() == [[0.5, 0]]
    assert small(algorithm=algorithm).resolved()["algorithm"]["lr"] == 1.0


def test_an_edit_within_a_second_that_keeps_the_size_takes_effect(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python alone would keep its module, or reuse its bytecode, matched by the second of its time and its size."""
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    path = tmp_path / "mine.py"
    for number in ("1", "2"):
        path.write_text(f"def mine(*, share: int = {number}): pass\n")
        os.utime(path, (10, 10))
        assert plugins.resolved("rule", f"{path}:mine", {}, ()) == {"share": int(number)}


def test_a_file_computes_with_one_thread_while_it_is_imported(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    most = "max(pool['num_threads'] for pool in threadpoolctl.threadpool_info())"
    path.write_text(f"import numpy, threadpoolctl\n\ndef mine(*, threads: int = {most}): pass\n")
    with threadpoolctl.threadpool_limits(2):
        assert plugins.resolved("rule", f"{path}:mine", {}, ()) == {"threads": 1}


def test_an_edit_during_a_run_takes_effect_in_the_next(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    name = f"{path}:mine"
    text = "def mine(*, share: int = {}): pass\n"
    with plugins.read_once():
        path.write_text(text.format(1))
        first = plugins.factory("rule", name)
        path.write_text(text.format(2))
        with plugins.read_once():
            assert plugins.factory("rule", name) is first
        assert plugins.sources([name])[str(path)].text == text.format(1)
    assert plugins.resolved("rule", name, {}, ()) == {"share": 2}


def test_the_files_of_another_process_replace_those_of_its_earlier_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a pool whose program changed its folder, where the path was that of a third file."""
    text = "def mine(*, share: int = {}): pass\n"
    files = [
        {"mine.py": plugins.Source(tmp_path / folder / "mine.py", text.format(folder))} for folder in "12"
    ]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(text.format(3))
    try:
        for number in (0, 1, 0):
            plugins.provide(files[number])
            assert plugins.resolved("rule", "mine.py:mine", {}, ()) == {"share": number + 1}
    finally:
        plugins.provide({})
    assert plugins.resolved("rule", "mine.py:mine", {}, ()) == {"share": 3}


DEFAULTS = """
import enum
from pathlib import Path

class Kind(enum.Enum):
    ONE = "one"

def mine(*, file: Path = Path("a.csv"), kind: Kind = Kind.ONE, some: frozenset[int] = frozenset({3}),
         pairs: tuple = ((1, 2),), bound: float = float("inf"), code=len, nothing=None, holes: tuple = (1, None)): pass
"""


def test_defaults_are_written_as_toml_values(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(DEFAULTS)
    found = plugins.resolved("rule", f"{path}:mine", {}, ())
    assert tomllib.loads(tomli_w.dumps(found)) == {
        "file": "a.csv",
        "kind": "one",
        "some": [3],
        "pairs": [[1, 2]],
        "bound": float("inf"),
    }
    plugins.check("rule", f"{path}:mine", found, ())


def test_a_module_elsewhere_is_a_plug_in() -> None:
    assert plugins.factory("rule", "fedsim.algorithms.fedavg:fedavg") is plugins.factory("rule", "fedavg")


@pytest.mark.parametrize("kind", plugins.KINDS)
def test_a_plug_in_of_any_kind_may_be_named_by_its_module(kind: str) -> None:
    name = plugins.names(kind)[0]
    here = plugins.factory(kind, name)
    assert plugins.factory(kind, f"{plugins.KINDS[kind].package}.{name}:{name}") is here
    with pytest.raises(ConfigError, match=f"expected a function .* returns a {plugins.KINDS[kind].product}"):
        plugins.factory(kind, "os:system")


@pytest.mark.parametrize("name", ["nowhere.at.all:rule", "missing.py:rule"])
def test_a_module_that_cannot_be_imported_is_named(name: str) -> None:
    with pytest.raises(ConfigError, match="cannot import the rule"):
        plugins.factory("rule", name)


def test_a_broken_file_is_refused_each_time(tmp_path: Path) -> None:
    path = tmp_path / "broken.py"
    path.write_text("import nothing_of_this_name\n")
    for _ in range(2):
        with pytest.raises(ConfigError, match="nothing_of_this_name"):
            plugins.factory("rule", f"{path}:rule")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x = 1\ny = missing\n", r"NameError: name 'missing' is not defined \(mine\.py, line 2\)"),
        ("x = {}['a']\n", r"KeyError: 'a' \(mine\.py, line 1\)"),
        ("\nimport nothing_of_this_name\n", r"No module named 'nothing_of_this_name' \(mine\.py, line 2\)"),
        ("def rule(:\n", r"invalid syntax \(mine\.py, line 1\)"),
    ],
)
def test_a_fault_in_a_file_is_reported_with_its_line(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "mine.py").write_text(text)
    with pytest.raises(ConfigError, match=f"cannot import the rule '.*mine.py:rule': {said}$"):
        plugins.factory("rule", f"{tmp_path}/mine.py:rule")


def test_a_broken_file_in_the_folder_of_its_kind_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import fedsim.analysis.metrics

    (tmp_path / "half.py").write_text("def half(accuracy, n):\n    return accuracy.mean(\n")
    monkeypatch.setattr(fedsim.analysis.metrics, "__path__", [str(tmp_path)])
    with pytest.raises(ConfigError, match=r"cannot import the metric 'half': .* \(half\.py, line 2\)"):
        plugins.factory("metric", "half")


def installed(folder: Path, distribution: str, module: str, group: str, name: str) -> None:
    """Write a distribution with one entry point into a folder of the search path, as an installer would."""
    about = folder / (distribution.replace("-", "_") + "-1.0.dist-info")
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(f"[{group}]\n{name} = {module}:strongest\n")
    (folder / f"{module}.py").write_text(RULE)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.syspath_prepend(str(tmp_path))
    plugins.entry_points.cache_clear()
    yield tmp_path
    plugins.entry_points.cache_clear()


def test_every_kind_has_its_own_group_of_entry_points() -> None:
    assert len({kind.group for kind in plugins.KINDS.values()}) == len(plugins.KINDS)


def test_an_installed_package_gives_its_rules_short_names(site: Path) -> None:
    installed(site, "strong-rules", "strong_rules_1", "fedsim.rules", "strongest")
    assert "strongest" in plugins.names("rule")
    assert "strongest" not in plugins.names("selector")
    assert plugins.distribution("rule", "strongest") == "strong-rules"
    assert plugins.distribution("rule", "fedavg") is None
    assert plugins.build("rule", "strongest", {"share": 0.5}).weigh
    with pytest.raises(ConfigError, match="no option 'shere'; did you mean 'share'"):
        plugins.check("rule", "strongest", {"shere": 0.5}, ())
    with pytest.raises(ConfigError, match="there is no rule 'stronges'; did you mean 'strongest'"):
        plugins.factory("rule", "stronges")


def test_an_entry_point_is_checked_as_code_that_fedsim_does_not_ship(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed(site, "strong-rules", "strong_rules_2", "fedsim.rules", "strongest")
    installed(site, "strong-selectors", "strong_rules_3", "fedsim.selectors", "strongest")
    with pytest.raises(ConfigError, match=r"expected a function .* returns a Selector"):
        plugins.factory("selector", "strongest")
    monkeypatch.setenv(plugins.ONLY_SHIPPED, "1")
    with pytest.raises(ConfigError, match="refuses it"):
        plugins.factory("rule", "strongest")


@pytest.mark.parametrize("name", ["strongest", "strong_rules_9:strongest"])
def test_an_edited_plug_in_of_a_package_is_told(site: Path, name: str) -> None:
    installed(site, "strong-rules", "strong_rules_9", "fedsim.rules", "strongest")
    wrap = [{"name": "server_opt"}]
    config = {"name": "strongest", "algorithm": {"name": name, "wrap": wrap}, "task": {"name": "digits"}}
    before = {"code": environment.code(config)}
    assert list(before["code"]) == [name]
    assert environment.changed(before, config) == []
    with (site / "strong_rules_9.py").open("a") as file:
        file.write("# edited\n")
    assert environment.changed(before, config) == [f"{name} edited"]
    assert "strong_rules_9" not in sys.modules, "to look for the file is not to run it"


def test_a_plug_in_in_a_package_within_a_package_is_found(site: Path) -> None:
    inner = site / "outer_9" / "inner"
    inner.mkdir(parents=True)
    for file in (site / "outer_9" / "__init__.py", inner / "__init__.py", inner / "rules.py"):
        file.write_text("raise ImportError\n")
    assert plugins.installed_file("outer_9.inner.rules:best") == inner / "rules.py"
    assert plugins.installed_file("outer_9.inner:best") == inner / "__init__.py"
    assert plugins.installed_file("outer_9.other:best") is None
    assert plugins.installed_file("no_such_package_9.other:best") is None
    assert plugins.installed_file("fedavg") is None


def test_a_broken_package_is_listed_among_the_others(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    installed(site, "strong-selectors", "strong_rules_7", "fedsim.selectors", "strongest")
    with pytest.raises(SystemExit) as ended:
        main(["list", "selectors"])
    printed = " ".join(capsys.readouterr().out.split())
    assert ended.value.code == 0
    assert (
        "strongest (strong-selectors) cannot be used: selector 'strong_rules_7:strongest': expected"
        in printed
    )
    assert "uniform Choose" in printed


def test_a_package_with_a_shipped_name_is_listed_with_the_name_that_it_can_be_used_by(
    site: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    installed(site, "another-average", "strong_rules_8", "fedsim.rules", "fedavg")
    with pytest.raises(SystemExit):
        main(["list", "rules"])
    printed = " ".join(capsys.readouterr().out.split())
    assert (
        "fedavg (another-average) cannot be used by its name, which fedsim itself has: write "
        "'strong_rules_8:strongest'" in printed
    )
    assert plugins.factory("rule", "strong_rules_8:strongest")


def test_a_name_of_two_packages_is_refused_and_a_shipped_plug_in_comes_first(site: Path) -> None:
    installed(site, "strong-rules", "strong_rules_4", "fedsim.rules", "strongest")
    installed(site, "stronger-rules", "strong_rules_5", "fedsim.rules", "strongest")
    installed(site, "another-average", "strong_rules_6", "fedsim.rules", "fedavg")
    with pytest.raises(ConfigError, match=r"more than one rule 'strongest', of .*strong_rules_4:strongest'"):
        plugins.factory("rule", "strongest")
    assert plugins.factory("rule", "fedavg").__module__ == "fedsim.algorithms.fedavg"
    assert plugins.distribution("rule", "fedavg") is None
