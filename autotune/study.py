"""The ledger: one Optuna study that holds every trial of a run, whatever became of it.

What is tried next is decided elsewhere; here each outcome becomes one finished Optuna trial:

==================================  ========  ==========================================
outcome                             state     value
==================================  ========  ==========================================
``Measured`` joint, to its end      COMPLETE  samples per second, maximised
``Measured`` otherwise, or cut      PRUNED    none; the rate is the attribute ``samples_per_s``
every failure                       FAIL      none; the attributes ``fate`` and ``message`` say why
==================================  ========  ==========================================

A trial is added in one transaction, already finished, so that a killed run leaves none half done and two runs
that share a storage cannot take each other's trials. All parameters and attributes are text, numbers or booleans.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Any

import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    IntDistribution,
    check_distribution_compatibility,
)
from optuna.storages import BaseStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock
from optuna.trial import FrozenTrial, TrialState, create_trial

from autotune.errors import SettingsError
from autotune.measurement import Crashed, Measured, Outcome, OutOfMemory, Rejected
from autotune.settings import DOMAINS, Domain, Settings

__all__ = ["Study"]

# A writer holds the lock for milliseconds; a lock older than this was left by a killed run.
_LOCK_GRACE_S = 10
# How long SQLite waits for another process's transaction; Optuna tries each write five times.
_SQLITE_WAIT_S = 2.0
# Two runs that make the tables of a new database at once trip over each other; the second look finds them made.
_OPENINGS = 5
_OPENING_PAUSE_S = 0.2
_NONE = "none"


class Study:
    """One Optuna study as the record of one task's trials.

    Args:
        storage: None keeps the study in memory; a text with ``://`` is a database URL (``sqlite:///study.db``);
            any other text or path is an Optuna journal file, the kind that is safe on network disks; or an
            ``optuna.storages.BaseStorage``, which stays the caller's to close.
        study_name: A study of this name in ``storage`` is continued. None: a new study with a name of its own.
        seed: Seeds the sampler of ``optuna_study``, for who asks it for proposals.

    Attributes:
        earlier: The fastest settings that earlier runs of this study saw; None: there are none, or none that this
            release knows.
        outcomes: All outcomes of this run, in order; they stay whatever happens to the storage.
        warnings: What went wrong with the storage on the way, for people.

    Raises:
        SettingsError: The storage cannot be opened, is damaged or locked, or holds another kind of study by that name.
    """

    def __init__(
        self,
        storage: str | os.PathLike[str] | BaseStorage | None = None,
        study_name: str | None = None,
        seed: int = 0,
    ) -> None:
        self.outcomes: list[Outcome] = []
        self.warnings: list[str] = []
        self._own_engine: RDBStorage | None = None
        self._shown = str(storage)
        try:
            with _quiet():
                self.optuna_study = optuna.create_study(
                    storage=self._open(storage),
                    study_name=study_name,
                    sampler=optuna.samplers.TPESampler(seed=seed),
                    direction="maximize",
                    load_if_exists=study_name is not None,
                )
                trials = self.optuna_study.get_trials(deepcopy=False)
                _check_same_kind(self.optuna_study, trials)
                _fail_stale(self.optuna_study, trials)
                self.earlier = _fastest(trials)
        except Exception as error:  # each backend has error classes of its own
            self.close()
            if isinstance(error, SettingsError):
                raise
            raise _unusable(self._shown, error) from error

    @property
    def name(self) -> str:
        """Name of the study within its storage."""
        return self.optuna_study.study_name

    def record(self, outcome: Outcome, *, reason: str = "") -> None:
        """Enter ``outcome`` as one finished trial.

        A storage that stops taking trials ends the writing, not the run: it is said once in ``warnings``.

        Args:
            outcome: What came back from the trial.
            reason: Why it was asked for, in one sentence; stored beside it.
        """
        self.outcomes.append(outcome)
        if self.warnings:
            return
        try:
            with _quiet():
                self.optuna_study.add_trial(_finished_trial(outcome, reason))
        except Exception as error:  # each backend has error classes of its own
            self.warnings.append(
                f"The study stopped being written to {self._shown} after {len(self.outcomes) - 1} trials of this run "
                f"({_first_line(error)}); the result does not depend on it."
            )

    def best(self) -> Measured | None:
        """The fastest joint trial of this run that ran to its end, or None.

        Equal rates go to fewer workers, then the smaller batch, then eager, then fp32.
        """
        finished = [o for o in self.outcomes if isinstance(o, Measured) and o.kind == "joint" and not o.cut]
        return max(finished, key=_preference, default=None)

    def close(self) -> None:
        """Give back the database connections this study opened; records already written stay."""
        if self._own_engine is not None:
            self._own_engine.scoped_session.remove()
            self._own_engine.engine.dispose()

    def __enter__(self) -> Study:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _open(self, storage: str | os.PathLike[str] | BaseStorage | None) -> BaseStorage | None:
        if storage is None or isinstance(storage, BaseStorage):
            return storage
        if isinstance(storage, str) and "://" in storage:
            self._own_engine = _database(storage)
            return self._own_engine
        if not isinstance(storage, str | os.PathLike) or not os.fspath(storage):
            raise SettingsError(
                f"storage={storage!r} is no storage.", "Give a journal file, a URL such as sqlite:///study.db, or None."
            )
        return _journal(Path(storage))


def _database(url: str) -> RDBStorage:
    wait = {"connect_args": {"timeout": _SQLITE_WAIT_S}} if url.startswith("sqlite") else {}
    for _ in range(_OPENINGS - 1):
        try:
            return RDBStorage(url, engine_kwargs=wait)
        except Exception:  # each database has error classes of its own; the last opening raises what it meets
            time.sleep(_OPENING_PAUSE_S)
    return RDBStorage(url, engine_kwargs=wait)


def _journal(path: Path) -> JournalStorage:
    if path.exists() and not path.is_dir():
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - 1))
            cut_short = file.read(1) not in (b"", b"\n")
        # Optuna would read past it in silence, and glue the next record to it.
        if cut_short:
            raise SettingsError(
                f"The journal {path} is damaged: its last line is cut short.",
                "Delete that line to continue the study, or give another storage.",
            )
    # The symlink lock that is Optuna's default spins for ever on a relative path seen from another folder.
    lock = JournalFileOpenLock(str(path), grace_period=_LOCK_GRACE_S)
    return JournalStorage(JournalFileBackend(str(path), lock_obj=lock))


def _check_same_kind(study: optuna.Study, trials: list[FrozenTrial]) -> None:
    if study.directions != [optuna.study.StudyDirection.MAXIMIZE]:
        raise SettingsError(f"The study {study.study_name!r} does not maximise one value.", "Give another study_name.")
    for trial in trials:
        for name in trial.distributions.keys() & _DISTRIBUTIONS.keys():
            try:
                check_distribution_compatibility(trial.distributions[name], _DISTRIBUTIONS[name])
            except ValueError as error:
                raise SettingsError(
                    f"The study {study.study_name!r} holds other values of {name}: {error}", "Give another study_name."
                ) from error


def _fail_stale(study: optuna.Study, trials: list[FrozenTrial]) -> None:
    """Trials asked for and never told: this class leaves none, so whoever asked was killed."""
    for trial in trials:
        if trial.state == TrialState.RUNNING:
            study.tell(trial.number, state=TrialState.FAIL)


def _fastest(trials: list[FrozenTrial]) -> Settings | None:
    ended = [trial for trial in trials if trial.state == TrialState.COMPLETE and trial.value is not None]
    for trial in sorted(ended, key=lambda one: one.value or 0.0, reverse=True):
        try:
            return Settings.from_json(json.loads(trial.user_attrs["outcome"])["settings"])
        except (KeyError, TypeError, ValueError, SettingsError):  # written by others, or by a release with other knobs
            continue
    return None


def _finished_trial(outcome: Outcome, reason: str) -> FrozenTrial:
    complete = isinstance(outcome, Measured) and outcome.kind == "joint" and not outcome.cut
    state = TrialState.PRUNED if isinstance(outcome, Measured) else TrialState.FAIL
    params = _to_params(outcome.settings)
    trial = create_trial(
        state=TrialState.COMPLETE if complete else state,
        value=outcome.samples_per_s if complete and isinstance(outcome, Measured) else None,
        params=params,
        distributions={name: _DISTRIBUTIONS[name] for name in params},
        user_attrs=_attributes(outcome, reason),
    )
    if trial.datetime_complete is not None:
        trial.datetime_start = trial.datetime_complete - timedelta(seconds=outcome.cost_s)
    return trial


def _attributes(outcome: Outcome, reason: str) -> dict[str, str | float]:
    attributes: dict[str, str | float] = {"fate": outcome.fate, "kind": outcome.kind, "cost_s": outcome.cost_s}
    if isinstance(outcome, Measured):
        attributes["samples_per_s"] = outcome.samples_per_s
    else:
        attributes["message"] = _message(outcome)
    if reason:
        attributes["reason"] = reason
    attributes["outcome"] = json.dumps(_finite(outcome.to_json()), allow_nan=False)
    return attributes


def _message(outcome: Outcome) -> str:
    if isinstance(outcome, OutOfMemory):
        return f"{outcome.where}: {outcome.message}"
    if isinstance(outcome, Rejected):
        return f"{outcome.phase}: {outcome.reason}"
    if isinstance(outcome, Crashed):
        return f"ended with exit code {outcome.exit_code}"
    return outcome.fate


def _finite(value: Any) -> Any:
    """``value`` with non-finite numbers as text, for which JSON has no number."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


def _preference(outcome: Measured) -> tuple[float, int, int, bool, bool]:
    settings = outcome.settings
    eager, fp32 = settings.compile_mode is None, settings.precision == "fp32"
    return outcome.samples_per_s, -settings.num_workers, -(settings.batch_size or 0), eager, fp32


def _to_params(settings: Settings) -> dict[str, str | bool | int]:
    """Parameters of ``settings``: None is "none" among choices and 0 among integers.

    A log scale has no 0, so None on one (``batch_size``) leaves the parameter out.
    """
    params: dict[str, str | bool | int] = {}
    for name, domain in DOMAINS.items():
        value = getattr(settings, name)
        if value is None and domain.log:
            continue
        params[name] = value if value is not None else (_NONE if domain.choices else 0)
    return params


def _distribution(domain: Domain) -> BaseDistribution:
    if domain.choices:
        return CategoricalDistribution([*domain.choices, _NONE] if domain.optional else domain.choices)
    low = 0 if domain.optional and not domain.log else domain.low
    return IntDistribution(low, domain.high, log=domain.log)


_DISTRIBUTIONS: Mapping[str, BaseDistribution] = {name: _distribution(domain) for name, domain in DOMAINS.items()}


def _unusable(storage: str, error: Exception) -> SettingsError:
    text = f"{error} {error.__cause__ or ''}"
    if "locked" in text:
        remedy = "Another process is holding it: wait for that one, or give each run a storage of its own."
    elif isinstance(error, ImportError):
        remedy = "Install the driver of that database, or use a journal file."
    else:
        remedy = "Check that the file is an Optuna storage and can be written, or give another storage."
    return SettingsError(f"The storage {storage} cannot be used: {_first_line(error)}.", remedy)


def _first_line(error: BaseException) -> str:
    shown = error.__cause__ or error
    return f"{type(shown).__name__}: {str(shown).splitlines()[0] if str(shown) else 'no message'}".rstrip(".")


@contextmanager
def _quiet() -> Iterator[None]:
    """Optuna's messages about studies and trials are ours to show or not; the caller's level comes back."""
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        yield
    finally:
        optuna.logging.set_verbosity(before)
