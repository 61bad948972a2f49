"""`fedsim trace import`."""

import gzip
import json

import pytest
from typer.testing import CliRunner

from fedsim.cli.main import _code
from fedsim.cli.trace.app import trace_app
from fedsim.common.errors import ConfigError, TraceError
from fedsim.worlds.trace import read_trace

TABLE = "client,start_s,end_s\nb,0,10\na,2.5,4\n"


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text(TABLE)
    return path


def run(*arguments):
    return CliRunner().invoke(trace_app, ["import", *map(str, arguments)])


def failed(error, *arguments):
    result = run(*arguments)
    assert isinstance(result.exception, error), result.output
    return str(result.exception)


@pytest.mark.parametrize("form", [(), ("csv",)])
def test_a_compressed_file_is_said_to_be_one(table, tmp_path, form):
    packed = tmp_path / "table.csv.gz"
    packed.write_bytes(gzip.compress(table.read_bytes()))
    message = failed(TraceError, *form, packed, "-o", tmp_path / "w.parquet")
    assert "table.csv.gz: it is compressed (gzip): unpack it first" in message


def test_a_file_becomes_a_world_and_what_was_found_is_told(table, tmp_path):
    out = tmp_path / "worlds" / "w.parquet"
    result = run(table, "-o", out)
    assert result.exit_code == 0, result.output
    trace = read_trace(out)
    assert trace.clients == 2
    assert json.loads(trace.source)["importer"] == "csv"
    for line in (
        "format     csv: 1 file",
        "clients    2",
        "intervals  2 online",
        "rows: 2",
        trace.digest()[:16],
    ):
        assert line in result.output


def test_a_format_can_be_named_and_has_options(table, tmp_path):
    out = tmp_path / "w.parquet"
    assert run("csv", table, "-o", out, "--option", "horizon=1h", "--option", "after_end=stop").exit_code == 0
    assert (read_trace(out).horizon_us, read_trace(out).after_end) == (3600 * 10**6, "stop")


@pytest.mark.parametrize(("first", "warned"), [(0, False), (30_000_000, False), (1_704_067_200, True)])
def test_times_that_do_not_count_from_0_are_said_to(tmp_path, first, warned):
    """1,704,067,200 s after 1970 is January 1, 2024, which is 19,723 days."""
    path = tmp_path / "unix.csv"
    path.write_text(f"client,start_s,end_s\na,{first},{first + 60}\nb,{first + 30},{first + 90}\n")
    world = tmp_path / "w.parquet"
    output = run(path, "-o", world).output
    advice = (
        "the first client is online after 19723d 00:00:00: times count from 0; subtract the midnight before the first "
        "from Unix times, or write dates"
    )
    assert (advice in output) == warned
    for command in ("check", "show"):
        result = CliRunner().invoke(trace_app, [command, str(world)])
        assert result.exit_code == 0
        assert (f"warning: {advice}" in result.output) == warned


@pytest.mark.parametrize(
    ("end_h", "option", "warned"),
    [
        (30, (), True),
        (30, ("horizon=2d",), False),
        (48, (), False),
        (20, (), False),
        (30, ("after_end=stop",), False),
    ],
)
def test_laps_that_move_the_hours_of_the_day_are_told(tmp_path, end_h, option, warned):
    (tmp_path / "mine.csv").write_text(f"client,start_h,end_h\na,0,8\nb,2,{end_h}\n")
    options = [word for each in option for word in ("--option", each)]
    output = run("csv", tmp_path / "mine.csv", "-o", tmp_path / "w.parquet", *options).output
    assert ("cut it with fedsim trace edit --crop :1d, or import" in " ".join(output.split())) == warned


def test_folders_are_walked(table, tmp_path):
    folder = tmp_path / "folder" / "inner"
    folder.mkdir(parents=True)
    (folder / "x.csv").write_text(TABLE)
    (folder.parent / "y.csv").write_text("client,start_s,end_s\nc,0,1\n")
    out = tmp_path / "w.parquet"
    assert run(tmp_path / "folder", "-o", out).exit_code == 0
    assert read_trace(out).clients == 3


def test_a_file_of_a_format_s_name_is_a_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "csv").write_text(TABLE)
    assert run("csv", "-o", "w.parquet").exit_code == 0


def test_files_are_overwritten_only_with_force_and_never_read_and_written_at_once(table, tmp_path):
    out = tmp_path / "w.parquet"
    assert run(table, "-o", out).exit_code == 0
    before = out.read_bytes()
    assert "use --force" in failed(ConfigError, table, "-o", out)
    assert out.read_bytes() == before
    assert run(table, "-o", out, "--force").exit_code == 0
    assert "one of the files to read" in failed(ConfigError, out, "-o", out, "--force")


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (["cvs", "{table}"], ConfigError, "cvs: neither a format nor a file; did you mean 'csv'?"),
        (["csv"], ConfigError, "expected files to read after the format 'csv'"),
        (["csv", "gone.csv"], TraceError, "gone.csv: there is no such file"),
        (["csv", "{table}", "--option", "unit"], ConfigError, "expected KEY=VALUE"),
        (
            ["csv", "{table}", "--option", "=1"],
            ConfigError,
            "--option =1: expected KEY=VALUE, such as training",
        ),
        (["csv", "{table}", "--option", "..=1"], ConfigError, "--option ..=1: expected KEY=VALUE"),
        (["csv", "{table}", "--option", "unt=s"], ConfigError, "has no option 'unt'; did you mean 'unit'?"),
        (["csv", "{table}", "--option", "unit=days"], ConfigError, "option 'unit'"),
        (["fedscale_capacity", "{table}"], TraceError, "table.csv, byte"),
    ],
)
def test_wrong_arguments_are_refused(table, tmp_path, arguments, error, message):
    given = [text.format(table=table) for text in arguments]
    assert message in failed(error, *given, "-o", tmp_path / "w.parquet")
    assert not (tmp_path / "w.parquet").exists()


def test_a_file_that_nobody_knows_exits_with_2_and_says_why(tmp_path, capsys):
    (tmp_path / "notes.txt").write_text("nothing to see")
    assert _code(["trace", "import", str(tmp_path / "notes.txt"), "-o", str(tmp_path / "w.parquet")]) == 2
    assert "notes.txt: no importer recognises it; name one of bamboo, csv" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("header", "complaint"),
    [
        ("user,start,end", "expected a column 'client', found ['user', 'start', 'end']"),
        (
            "client,timestamp,online",
            "expected one column of start, start_us, start_ms, start_s, start_min, start_h",
        ),
        ("client;start;end", "expected columns separated by ',', found 'client;start;end'"),
    ],
)
def test_a_csv_file_that_nobody_knows_is_told_the_columns_of_a_table(tmp_path, header, complaint):
    path = tmp_path / "mine.csv"
    path.write_text(f"{header}\na,0,1\n")
    message = failed(TraceError, path, "-o", tmp_path / "w.parquet")
    assert f"mine.csv: no importer recognises it; csv: {complaint}" in message


def test_files_of_several_formats_are_told_apart(table, tmp_path):
    ride = tmp_path / "ride"
    ride.write_text("0\t1\n5\t2\n")
    message = failed(TraceError, table, ride, "-o", tmp_path / "w.parquet")
    assert (
        f"expected one format, found 1 of csv ({table.parent.name}/{table.name}), 1 of fcc ({tmp_path.name}/ride); "
        "import the files of each apart" in message
    )
