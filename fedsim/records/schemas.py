"""The schemas of the three tables that a run writes; `docs/records.md` defines each column.

Times are virtual, in integer microseconds from the start of the world. No table holds a wall-clock value, so equal
runs write equal tables. Rows are in order of virtual time. There are no nulls: -1 and NaN say "none".
"""

from __future__ import annotations

import pyarrow as pa

_WORD = pa.dictionary(pa.int8(), pa.string())

JOBS = pa.schema(
    [
        ("job", pa.int64()),
        ("client", pa.int32()),
        ("version", pa.int32()),  # server step whose model the job started from
        ("status", _WORD),  # one of STATUSES
        ("phase", _WORD),  # where a lost job was: download, compute, upload; "" otherwise
        ("step", pa.int32()),  # server step that used the update, -1 if none did
        ("staleness", pa.int32()),  # step - version, -1 if unused
        ("dispatch_us", pa.int64()),
        ("download_us", pa.int64()),  # end of the download, -1 if not reached
        ("compute_us", pa.int64()),  # end of the computation, -1 if not reached
        ("end_us", pa.int64()),  # arrival, loss or cancellation
        ("n_samples", pa.int32()),  # training samples of the client
        ("loss_before", pa.float64()),  # mean training loss at the received model; NaN if the rule needs none
        ("loss_train", pa.float64()),  # mean loss over the minibatches; NaN if the job was not trained
        ("download_bytes", pa.int64()),  # bytes moved until the end of the job
        ("upload_bytes", pa.int64()),
        ("computing_us", pa.int64()),  # time in the phase of computation until the end of the job
        ("share", pa.float64()),  # of the configured local steps
        ("attempt", pa.int32()),  # how often the same work had been lost on the client before
    ]
)
STEPS = pa.schema(
    [
        ("step", pa.int32()),
        ("time_us", pa.int64()),
        ("status", _WORD),  # one of STEP_STATUSES
        ("cause", _WORD),  # full (buffer), deadline, drained (nothing left in flight)
        ("updates", pa.int32()),  # rows present
        ("remembered", pa.int32()),  # rows of absent clients that carried weight
        ("evicted", pa.int32()),  # remembered rows given up at the step because the history was full
        ("lost", pa.int32()),  # jobs lost since the step before
        ("late", pa.int32()),
        ("nonfinite", pa.int32()),
        ("waits", pa.int32()),  # times that nobody could be chosen and the clock jumped ahead
        ("online", pa.int32()),  # clients online at the step
        ("in_flight", pa.int32()),  # jobs still running after the step
        ("mean_staleness", pa.float64()),
        (
            "mean_norm",
            pa.float64(),
        ),  # norm of the plain mean of the present updates; NaN without a Gram matrix
        ("direction_norm", pa.float64()),  # length of the step
        ("step_length", pa.float64()),  # factor that a line search found; 1 without one, NaN if empty
        ("conflicts", pa.int32()),  # pairs of present rows with a negative inner product; -1: no Gram matrix
        (
            "model_conflicts",
            pa.int32(),
        ),  # present rows against the direction, MC of FedLF; -1: no Gram matrix
        ("block_conflicts_mean", pa.float64()),  # mean over blocks of LC_l; NaN without a Gram matrix
        ("absent_conflicts", pa.int32()),  # remembered rows against the direction; -1 without a Gram matrix
        ("smallest_cosine", pa.float64()),  # between a present row and the direction
        ("smallest_absent_cosine", pa.float64()),  # between a remembered row and the direction
        (
            "projection_removed",
            pa.float64(),
        ),  # share of norm that projecting took away; NaN if the rule does not say
        ("max_weight", pa.float64()),
        ("kkt_residual", pa.float64()),  # worst of the step's quadratic programs; NaN if there was none
        ("blocks", pa.int32()),  # blocks that the direction was computed on, after merging
    ]
)

EVALS = pa.schema(
    [
        (
            "step",
            pa.int32(),
        ),  # number of server steps taken when the model was evaluated; 0 is the initial model
        ("time_us", pa.int64()),
        ("client", pa.int32()),
        ("split", _WORD),  # train, valid or test; with `_personal` behind it for the clients' own models
        ("n", pa.int32()),  # samples
        ("correct", pa.int32()),
        ("accuracy", pa.float64()),  # correct / n, a fraction
        ("loss", pa.float64()),
    ]
)

CONFLICTS = pa.schema(
    [
        ("step", pa.int32()),
        ("block", pa.int32()),  # position of the layer, -1 for the whole model
        ("client", pa.int32()),
        ("age", pa.int32()),  # steps since the row was received, 0 if present
        ("weight", pa.float64()),
        (
            "cosine",
            pa.float64(),
        ),  # between the row and the direction, in the block; NaN if one of them is zero
        ("norm", pa.float64()),  # of the row, in the block
    ]
)
"""Only written if `record.conflicts` asks for it."""

AUDIT = pa.schema(
    [
        ("step", pa.int32()),
        ("time_us", pa.int64()),
        ("client", pa.int32()),
        ("present", pa.bool_()),  # whether an update of the client counts in the step
        ("age", pa.int32()),  # steps since the row was received, 0 if present, -1 if the server has none
        ("staleness", pa.int32()),  # of the row when it was received; -1 without one
        ("age_us", pa.int64()),  # virtual time since it was received; -1 without one
        (
            "weight",
            pa.float64(),
        ),  # of the row in the step, that of the block where it is largest; NaN without one
        ("cosine", pa.float64()),  # between the row and the true one: what the client would send now
        ("norm_ratio", pa.float64()),  # norm of the row / norm of the true one
        ("true_norm", pa.float64()),
        (
            "remembered_with_mean",
            pa.float64(),
        ),  # cosine between the row and the plain mean of the present rows
        ("true_with_mean", pa.float64()),
        ("remembered_with_step", pa.float64()),  # cosine between the row and the step that is taken
        ("true_with_step", pa.float64()),
        ("loss_before", pa.float64()),  # mean training loss of the client before the step
        ("loss_after", pa.float64()),
    ]
)
"""Only written if `[audit]` asks for it."""


TABLES = {"jobs": JOBS, "steps": STEPS, "evals": EVALS, "conflicts": CONFLICTS, "audit": AUDIT}
OPTIONAL = ("conflicts", "audit")
"""Tables that are written only if they are asked for."""

PARTS = "parts"
"""The folder in a run folder that holds the tables in numbered parts while the run goes on."""


def part_name(table: str, number: int) -> str:
    """Return the file name of a part of a table."""
    return f"{table}-{number:05d}.parquet"
