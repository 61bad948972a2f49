"""The schemas of the tables that a run writes; `docs/records.md` defines each column.

Times are virtual, in integer microseconds from the start of the world. No table has a wall-clock value, so equal runs
write equal tables. Rows are in order of virtual time. There are no nulls: -1 and NaN mean "none".
"""

from __future__ import annotations

import pyarrow as pa

_WORD = pa.dictionary(pa.int8(), pa.string())

JOBS = pa.schema(
    [
        ("job", pa.int64()),
        ("client", pa.int32()),
        ("version", pa.int32()),  # server steps before the dispatch
        ("status", _WORD),  # one of STATUSES
        ("phase", _WORD),  # phase in which a job was lost: download, compute, upload; else ""
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
        ("computing_us", pa.int64()),  # time in the computation until the end of the job
        ("share", pa.float64()),  # of the configured local steps
        ("attempt", pa.int32()),  # number of earlier losses of the same work on the client
        ("inclusion", pa.float64()),  # probability that the selector included the client; NaN if unknown
    ]
)
STEPS = pa.schema(
    [
        ("step", pa.int32()),
        ("time_us", pa.int64()),
        ("status", _WORD),  # one of STEP_STATUSES
        ("cause", _WORD),  # full (buffer), deadline, drained (nothing left in flight)
        ("updates", pa.int32()),  # present updates
        ("remembered", pa.int32()),  # updates of absent clients with weight
        ("evicted", pa.int32()),  # remembered updates dropped at the step because the history was full
        ("lost", pa.int32()),  # jobs lost since the previous step
        ("late", pa.int32()),
        ("nonfinite", pa.int32()),
        ("waits", pa.int32()),  # times that no client could be selected and the clock jumped ahead
        ("online", pa.int32()),  # clients online at the step
        ("in_flight", pa.int32()),  # jobs still running after the step
        ("mean_staleness", pa.float64()),
        ("mean_norm", pa.float64()),  # norm of the mean of the present updates; NaN without a Gram matrix
        ("direction_norm", pa.float64()),  # length of the step
        ("step_length", pa.float64()),  # factor of the line search; 1 without one, NaN if empty
        ("conflicts", pa.int32()),  # pairs of present updates with a negative product; -1: no Gram matrix
        ("model_conflicts", pa.int32()),  # present updates against the direction; -1: no Gram matrix
        ("block_conflicts_mean", pa.float64()),  # mean over blocks of LC_l; NaN without a Gram matrix
        ("absent_conflicts", pa.int32()),  # remembered updates against the direction; -1: no Gram matrix
        ("smallest_cosine", pa.float64()),  # between a present update and the direction
        ("smallest_absent_cosine", pa.float64()),  # between a remembered update and the direction
        ("projection_removed", pa.float64()),  # share of the norm that projection removed; NaN if unknown
        ("max_weight", pa.float64()),
        ("kkt_residual", pa.float64()),  # worst of the step's quadratic programs; NaN without one
        ("blocks", pa.int32()),  # blocks of the direction, after merging
    ]
)

EVALS = pa.schema(
    [
        ("step", pa.int32()),  # server steps before the evaluation; 0 is the initial model
        ("time_us", pa.int64()),
        ("client", pa.int32()),
        ("split", _WORD),  # train, valid or test, followed by `_personal` for personal models
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
        ("age", pa.int32()),  # steps since the update was received, 0 if present
        ("weight", pa.float64()),
        ("cosine", pa.float64()),  # between update and direction, in the block; NaN if one is zero
        ("norm", pa.float64()),  # of the update, in the block
    ]
)
"""Written only if `record.conflicts` asks for it."""

AUDIT = pa.schema(
    [
        ("step", pa.int32()),
        ("time_us", pa.int64()),
        ("client", pa.int32()),
        ("present", pa.bool_()),  # whether an update of the client counts in the step
        ("age", pa.int32()),  # steps since the update was received, 0 if present, -1 without one
        ("staleness", pa.int32()),  # of the update when it was received; -1 without one
        ("age_us", pa.int64()),  # virtual time since it was received; -1 without one
        ("weight", pa.float64()),  # of the update in the step, the largest of all blocks; NaN without one
        ("cosine", pa.float64()),  # between the update and the true one that the client would send now
        ("norm_ratio", pa.float64()),  # norm of the update / norm of the true one
        ("true_norm", pa.float64()),
        ("remembered_with_mean", pa.float64()),  # cosine between the update and the mean of present ones
        ("true_with_mean", pa.float64()),
        ("remembered_with_step", pa.float64()),  # cosine between the update and the step
        ("true_with_step", pa.float64()),
        ("loss_before", pa.float64()),  # mean training loss of the client before the step
        ("loss_after", pa.float64()),
    ]
)
"""Written only if `[audit]` asks for it."""

CLIENT_FACTS = pa.schema([("client", pa.int32()), ("n_samples", pa.int32())])  # training samples
"""`clients.parquet`: one row per client, written before the run starts, also for those that never get a job."""
LABEL_COUNTS = pa.field("label_counts", pa.list_(pa.int32()))
"""A further column of `clients.parquet`: the client's training samples of each label of the task."""
CLIENT_NAME = pa.field("name", pa.string())
"""The last column of `clients.parquet`, if the clients have names in the task."""

TABLES = {"jobs": JOBS, "steps": STEPS, "evals": EVALS, "conflicts": CONFLICTS, "audit": AUDIT}
OPTIONAL = ("conflicts", "audit")
"""Tables that are written only if the configuration asks for them."""
