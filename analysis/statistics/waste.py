"""Time, computation and traffic that clients spent, used and wasted, by the status of jobs."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from rich.table import Table

from fedsim.analysis.opening.run import Run
from fedsim.common import arguments
from fedsim.common.terminal import ruled_table
from fedsim.common.units import US, show_bytes, show_us
from fedsim.engine.record_words import STATUSES

if TYPE_CHECKING:
    import pandas as pd

USED = ("aggregated", "remembered")
OPEN = ("unfinished",)
WASTED = tuple(status for status in STATUSES if status not in (*USED, *OPEN))
FATES = ("used", "wasted", "unfinished")
MEASURES = ("jobs", "device_s", "computing_s", "bytes")
HEADINGS = ("", *FATES, "wasted %")


@arguments.checked
def waste(run: Run) -> pd.DataFrame:
    """Return what each client spent, one row per client that had a job.

    Columns `<measure>_<fate>`, such as `device_s_wasted`. Measures: `jobs`; `device_s`, seconds from dispatch to end;
    `computing_s`, seconds of computing; `bytes`, downloaded and uploaded. Fates: `used` (aggregated or remembered),
    `wasted` (lost, late, stale, void, nonfinite), `unfinished` (in flight when the run ended). `wasted_share` is the
    wasted share of used and wasted device seconds; NaN if there are none.
    """
    import pandas as pd  # imported here: opening a run does not need it

    each = _spent(run)
    columns = {
        f"{measure}_{fate}": each[measure].where(each["status"].isin(group), 0).groupby(each["client"]).sum()
        for measure in MEASURES
        for fate, group in _groups().items()
    }
    table = pd.DataFrame(columns).rename_axis(index="client")
    decided = table["device_s_used"] + table["device_s_wasted"]
    return table.assign(wasted_share=(table["device_s_wasted"] / decided).where(decided > 0))


@arguments.checked
def waste_by_status(run: Run) -> pd.DataFrame:
    """Return the total `jobs`, `device_s`, `computing_s` and `bytes` by status of jobs.

    Statuses without a job are left out; the others come in the order of `fedsim.engine.record_words.STATUSES`.
    """
    each = _spent(run)
    summed = each.drop(columns="client").groupby("status").sum()[list(MEASURES)]
    return summed.reindex([status for status in STATUSES if status in summed.index])


@arguments.checked
def waste_table(run: Run) -> Table:
    """Return a table for the terminal: each measure used, wasted and unfinished, and the wasted share."""
    table = ruled_table(f"what {run.label} spent", padding=1)
    for heading in HEADINGS:
        table.add_column(heading, justify="right" if heading else "left")
    names = dict(zip(MEASURES, ("jobs", "device time", "computing time", "traffic"), strict=True))
    for measure, (*totals, wasted_percent) in total_waste(run).items():
        share = "–" if math.isnan(wasted_percent) else f"{wasted_percent:.1f}"
        table.add_row(names[measure], *(_shown(measure, total) for total in totals), share)
    return table


def total_waste(run: Run) -> dict[str, tuple[float, float, float, float]]:
    """Return by measure: used, wasted, unfinished, and the wasted share of used and wasted in percent, or NaN."""
    by_status, of_run = waste_by_status(run), {}
    for measure in MEASURES:
        used, wasted, open_ = (float(by_status[measure].reindex(group).sum()) for group in _groups().values())
        decided = used + wasted
        of_run[measure] = used, wasted, open_, 100 * wasted / decided if decided else math.nan
    return of_run


def _groups() -> dict[str, tuple[str, ...]]:
    return dict(zip(FATES, (USED, WASTED, OPEN), strict=True))


def _spent(run: Run) -> pd.DataFrame:
    """Return one row per job: client, status, and the measures."""
    jobs = run.frame("jobs")
    return jobs.assign(
        status=jobs.status.astype(str),
        jobs=1,
        device_s=(jobs.end_us - jobs.dispatch_us) / US,
        computing_s=jobs.computing_us / US,
        bytes=jobs.download_bytes + jobs.upload_bytes,
    )[["client", "status", *MEASURES]]


def _shown(measure: str, total: float) -> str:
    if measure == "jobs":
        return f"{total:,.0f}"
    return show_bytes(total) if measure == "bytes" else show_us(round(total * US))
