"""What is asked of a trial and what comes back: plain frozen data that crosses the process border as JSON.

``Probe`` goes in; one ``Outcome`` comes out, an expected failure being a value like any other:
``Measured | OutOfMemory | Rejected | Crashed | TimedOut``. Raw samples are kept; statistics are derived.
"""

from autotune.measurement.intervals import Interval, mean_interval, student_t_95
from autotune.measurement.outcomes import (
    COMPARED_ROWS,
    STARVED_SHARE,
    Chunk,
    Crashed,
    DataCosts,
    Measured,
    Outcome,
    OutOfMemory,
    Probe,
    ProbeKind,
    Rejected,
    TimedOut,
    outcome_from_json,
)

__all__ = [
    "COMPARED_ROWS",
    "STARVED_SHARE",
    "Chunk",
    "Crashed",
    "DataCosts",
    "Interval",
    "Measured",
    "OutOfMemory",
    "Outcome",
    "Probe",
    "ProbeKind",
    "Rejected",
    "TimedOut",
    "mean_interval",
    "outcome_from_json",
    "student_t_95",
]
