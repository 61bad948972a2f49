"""Calling `fedsim trace` in the process of the test, and a small trace by hand for it."""

from pathlib import Path

from click.testing import Result
from typer.testing import CliRunner

from fedsim.cli.trace.app import trace_app
from fedsim.worlds.trace import Trace


def run(*arguments: object) -> Result:
    """Run `fedsim trace` with these arguments."""
    return CliRunner().invoke(trace_app, [str(a) for a in arguments])


def failed(error: type[Exception], *arguments: object) -> str:
    """Run `fedsim trace`, which must raise this error, and return the message."""
    result = run(*arguments)
    assert isinstance(result.exception, error), result.output
    return str(result.exception)


def small_trace(path: Path) -> Path:
    """Write a trace of three clients and 100 us, of which one is never online."""
    rows = [
        (0, 0, 60, "online", 1.0),
        (0, 80, 100, "online", 1.0),
        (1, 0, 40, "online", 1.0),
        (0, 0, 100, "compute", 0.01),
        (1, 0, 100, "compute", 0.03),
        (1, 50, 60, "fault", 1.0),
    ]
    columns = list(zip(*rows, strict=True))
    Trace.of(*columns, clients=3, horizon_us=100, source="by hand", origin="2024-05-01T00:00").write(path)
    return path
