"""The ledger keeps every outcome, survives bad storages, and says what it could not keep."""

from __future__ import annotations

import dataclasses
import json
import math
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import optuna
import pytest
from hypothesis import given
from hypothesis import strategies as st

import autotune.study
from autotune.errors import SettingsError
from autotune.measurement import (
    Chunk,
    Crashed,
    Measured,
    Outcome,
    OutOfMemory,
    Rejected,
    TimedOut,
    outcome_from_json,
)
from autotune.settings import DOMAINS, Settings
from autotune.study import Study

FAILURES: list[Outcome] = [
    OutOfMemory(kind="joint", settings=Settings(), where="allocator", message="std::bad_alloc", cost_s=1.0),
    Rejected(kind="joint", settings=Settings(), phase="step", reason="loss is nan", cost_s=1.0),
    Crashed(kind="compute", settings=Settings(), exit_code=-11, cost_s=1.0),
    TimedOut(kind="lap", settings=Settings(), deadline_s=3.0, cost_s=1.0),
]


def measured(rate: float = 100.0, **changes: object) -> Measured:
    """A joint trial of the default settings that saw ``rate`` samples per second."""
    known = {"kind": "joint", "settings": Settings(), "chunks": (Chunk(100, 100 / rate),), "cost_s": 2.0}
    return Measured(**{**known, **changes})  # type: ignore[arg-type]


def stored(storage: optuna.storages.BaseStorage, name: str) -> list[optuna.trial.FrozenTrial]:
    """The trials another reader of the storage sees."""
    return optuna.load_study(study_name=name, storage=storage).trials


def test_a_joint_trial_is_complete_with_its_rate() -> None:
    """What Optuna maximises is the samples per second of whole joint trials."""
    storage = optuna.storages.InMemoryStorage()
    study = Study(storage, "s")
    study.record(measured(250.0), reason="a guess")
    (trial,) = stored(storage, "s")
    assert trial.state == optuna.trial.TrialState.COMPLETE
    assert trial.value == pytest.approx(250.0)
    assert trial.user_attrs["reason"] == "a guess"
    assert trial.duration is not None
    assert trial.duration.total_seconds() == pytest.approx(2.0)


@pytest.mark.parametrize("changes", [{"kind": "compute"}, {"kind": "lap"}, {"kind": "numerics"}, {"cut": True}])
def test_other_measurements_are_pruned_with_kind_rate_and_cost(changes: dict[str, object]) -> None:
    """A probe, a race lap or a trial cut short never competes with whole joint trials."""
    storage = optuna.storages.InMemoryStorage()
    Study(storage, "s").record(measured(**changes))
    (trial,) = stored(storage, "s")
    assert trial.state == optuna.trial.TrialState.PRUNED
    assert trial.user_attrs["kind"] == changes.get("kind", "joint")
    assert trial.user_attrs["samples_per_s"] == pytest.approx(100.0)
    assert trial.user_attrs["cost_s"] == 2.0


@pytest.mark.parametrize("outcome", FAILURES, ids=lambda outcome: outcome.fate)
def test_failures_are_failed_trials_with_their_fate(outcome: Outcome) -> None:
    """Each way to fail is told apart in the ledger, with a message for people."""
    storage = optuna.storages.InMemoryStorage()
    Study(storage, "s").record(outcome)
    (trial,) = stored(storage, "s")
    assert trial.state == optuna.trial.TrialState.FAIL
    assert trial.user_attrs["fate"] == outcome.fate
    assert trial.user_attrs["message"]


@pytest.mark.parametrize("outcome", [*FAILURES, measured()], ids=lambda outcome: outcome.fate)
def test_an_outcome_can_be_read_back_from_its_trial(outcome: Outcome) -> None:
    """The whole outcome travels as JSON text, also through a database."""
    storage = optuna.storages.RDBStorage("sqlite:///:memory:")
    Study(storage, "s").record(outcome)
    (trial,) = stored(storage, "s")
    assert outcome_from_json(json.loads(trial.user_attrs["outcome"])) == outcome
    storage.engine.dispose()


def test_numbers_that_are_not_finite_are_stored_as_text() -> None:
    """A diverged loss does not make invalid JSON (huggingface/transformers#16054)."""
    storage = optuna.storages.InMemoryStorage()
    Study(storage, "s").record(measured(last_loss=math.nan, first_loss=math.inf))
    outcome = json.loads(stored(storage, "s")[0].user_attrs["outcome"])
    assert (outcome["last_loss"], outcome["first_loss"]) == ("nan", "inf")


def test_best_is_none_while_nothing_finished() -> None:
    """Failures, probes and cut trials alone have no best, and asking is no error."""
    with Study() as study:
        for outcome in [*FAILURES, measured(9e9, kind="compute"), measured(9e9, cut=True)]:
            study.record(outcome)
        assert study.best() is None
        assert len(study.outcomes) == 6


def test_best_is_the_fastest_joint_trial_and_ties_go_to_the_simpler() -> None:
    """Equal rates go to fewer workers, smaller batch, eager, fp32."""
    plain = Settings()
    study = Study()
    for settings in [
        plain.replace(num_workers=2),
        plain.replace(batch_size=64),
        plain.replace(compile_mode="default"),
        plain.replace(precision="tf32"),
        plain,
    ]:
        study.record(measured(settings=settings))
    study.record(measured(50.0))
    best = study.best()
    assert best is not None
    assert best.settings == plain
    faster = measured(101.0, settings=plain.replace(num_workers=4))
    study.record(faster)
    assert study.best() == faster


knobs = st.fixed_dictionaries(
    {
        name: st.one_of(
            *([st.none()] if domain.optional else []),
            st.sampled_from(domain.choices) if domain.choices else st.integers(domain.low, domain.high),
        )
        for name, domain in DOMAINS.items()
        if name not in ("num_workers", "prefetch_factor", "persistent_workers")
    }
)


@given(changes=knobs, workers=st.integers(0, 1024), prefetch=st.integers(1, 1024))
def test_every_possible_setting_can_be_recorded(changes: dict[str, object], workers: int, prefetch: int) -> None:
    """No value of any knob is refused by Optuna, None and the ends of the domains included."""
    prefetch_factor = prefetch if workers else None
    settings = Settings(**changes, num_workers=workers, prefetch_factor=prefetch_factor)  # type: ignore[arg-type]
    study = Study()
    study.record(measured(settings=settings))
    assert not study.warnings
    (trial,) = study.optuna_study.trials
    assert all(isinstance(value, str | bool | int) for value in trial.params.values())


def test_different_settings_have_different_parameters() -> None:
    """None stands apart from every value of its knob."""
    study = Study()
    variants = [Settings(num_threads=threads) for threads in (None, 1)]
    variants += [Settings(batch_size=None), Settings(batch_size=1)]
    variants += [Settings(compile_mode=mode) for mode in (None, "default")]
    for settings in variants:
        study.record(measured(settings=settings))
    seen = [tuple(sorted(trial.params.items())) for trial in study.optuna_study.trials]
    # Settings() itself comes twice: the default batch with num_threads=None and with compile_mode=None.
    assert len(set(seen)) == len(set(variants))


@pytest.mark.parametrize("kind", ["sqlite", "journal"])
def test_a_study_of_the_same_name_is_continued(kind: str, tmp_path: Path) -> None:
    """A second run adds to the first one's trials, and knows only its own outcomes."""
    storage = f"sqlite:///{tmp_path}/s.db" if kind == "sqlite" else tmp_path / "s.journal"
    for _ in range(2):
        with Study(storage, "s") as study:
            study.record(measured())
            assert len(study.outcomes) == 1
            total = len(study.optuna_study.trials)
    assert total == 2


def test_what_earlier_runs_found_fastest_is_known_to_the_next(tmp_path: Path) -> None:
    """Only joint trials that ended count; a trial of a release with other knobs is passed over."""
    fast, slow = Settings(batch_size=128), Settings(batch_size=64)
    path = tmp_path / "s.journal"
    with Study(path, "s") as study:
        assert study.earlier is None
        study.record(measured(100.0, settings=slow))
        study.record(measured(200.0, settings=fast))
        study.record(measured(900.0, settings=Settings(batch_size=256), kind="compute"))
        strange = study.optuna_study.trials[1]
        changed = strange.user_attrs["outcome"].replace("channels_last", "channels_of_tomorrow")
        study.optuna_study.add_trial(
            optuna.trial.create_trial(value=9e9, user_attrs={**strange.user_attrs, "outcome": changed})
        )
        assert study.earlier is None
    assert Study(path, "s").earlier == fast
    assert Study(path).earlier is None


def test_a_study_without_a_name_is_a_new_one(tmp_path: Path) -> None:
    """Runs that named no study never mix in one storage."""
    path = tmp_path / "s.journal"
    assert Study(path).name != Study(path).name


def test_no_storage_writes_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The default study lives in memory alone (optuna/optuna#815)."""
    monkeypatch.chdir(tmp_path)
    Study().record(measured())
    assert list(tmp_path.iterdir()) == []


def test_trials_left_running_by_a_killed_run_are_failed(tmp_path: Path) -> None:
    """A run killed between ask and tell leaves a trial that no later run counts as alive (optuna/optuna#3215)."""
    script = (
        "import os, signal, sys; from autotune.study import Study\n"
        "Study(sys.argv[1], 's').optuna_study.ask(); os.kill(os.getpid(), signal.SIGKILL)"
    )
    path = tmp_path / "s.journal"
    ended = subprocess.run([sys.executable, "-c", script, str(path)], check=False, timeout=100)
    assert ended.returncode == -signal.SIGKILL
    study = Study(path, "s")
    study.record(measured())
    states = [trial.state.name for trial in study.optuna_study.trials]
    assert states == ["FAIL", "COMPLETE"]


def test_a_damaged_database_is_one_clear_error(tmp_path: Path) -> None:
    """A file that is no database is named, with what to do."""
    (tmp_path / "s.db").write_text("no database " * 100)
    with pytest.raises(SettingsError, match=r"s\.db cannot be used.*not a database") as caught:
        Study(f"sqlite:///{tmp_path}/s.db", "s")
    assert caught.value.remedy


def test_a_locked_database_is_one_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A database that another process will not let go of is named, after a bounded wait."""
    monkeypatch.setattr(autotune.study, "_SQLITE_WAIT_S", 0.1)
    monkeypatch.setattr(autotune.study, "_OPENING_PAUSE_S", 0.01)
    path = tmp_path / "s.db"
    Study(f"sqlite:///{path}", "s").close()
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    with pytest.raises(SettingsError, match=r"locked.*Another process"):
        Study(f"sqlite:///{path}", "s")
    other.close()


def test_a_storage_that_fails_later_is_said_once_and_the_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Losing the ledger does not lose the tuning."""
    monkeypatch.setattr(autotune.study, "_SQLITE_WAIT_S", 0.1)
    monkeypatch.setattr("time.sleep", lambda _: None)  # Optuna's pauses between its own attempts
    path = tmp_path / "s.db"
    with Study(f"sqlite:///{path}", "s") as study:
        study.record(measured(1.0))
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN EXCLUSIVE")
        study.record(measured(2.0))
        study.record(measured(3.0))
        other.close()
        assert len(study.warnings) == 1
        assert "after 1 trials" in study.warnings[0]
        best = study.best()
    assert best is not None
    assert best.samples_per_s == pytest.approx(3.0)


@pytest.mark.parametrize(
    ("storage", "said"),
    [
        ("nosuch://host/db", "nosuch"),
        ("sqlite:////nonexistent/folder/s.db", "unable to open"),
        ("/nonexistent/folder/s.journal", "FileNotFoundError"),
        ("", "is no storage"),
        (17, "is no storage"),
    ],
)
def test_a_storage_that_cannot_be_opened_is_named(storage: object, said: str) -> None:
    """Unknown databases, missing folders and wrong types each give one error with a remedy."""
    with pytest.raises(SettingsError, match=said) as caught:
        Study(storage, "s")  # type: ignore[arg-type]
    assert caught.value.remedy


def test_a_journal_cut_short_is_one_clear_error(tmp_path: Path) -> None:
    """A killed writer's half line is reported, not read past in silence (optuna/optuna#5138)."""
    path = tmp_path / "s.journal"
    Study(path, "s").record(measured())
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(SettingsError, match="cut short"):
        Study(path, "s")


def test_a_journal_damaged_in_the_middle_is_one_clear_error(tmp_path: Path) -> None:
    """No traceback of a JSON parser reaches the user."""
    path = tmp_path / "s.journal"
    Study(path, "s").record(measured())
    path.write_bytes(b"{broken\n" + path.read_bytes())
    with pytest.raises(SettingsError, match="cannot be used"):
        Study(path, "s")


def test_a_lock_left_by_a_killed_run_does_not_block_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The journal's stale lock is taken over after its grace (optuna/optuna#5921)."""
    monkeypatch.setattr(autotune.study, "_LOCK_GRACE_S", 3)
    path = tmp_path / "s.journal"
    Study(path, "s").record(measured())
    Path(f"{path}.lock").touch()
    study = Study(path, "s")
    study.record(measured())
    assert not study.warnings
    assert len(study.optuna_study.trials) == 2
    assert not Path(f"{path}.lock").exists()


@pytest.mark.parametrize(
    ("direction", "distribution"),
    [
        ("minimize", optuna.distributions.FloatDistribution(0.0, 1.0)),
        ("maximize", optuna.distributions.CategoricalDistribution(["fp32", "fp8"])),
    ],
)
def test_another_kind_of_study_by_that_name_is_refused(
    direction: str, distribution: optuna.distributions.BaseDistribution
) -> None:
    """A study that minimises, or whose choices differ, is not mixed with ours."""
    storage = optuna.storages.InMemoryStorage()
    theirs = optuna.create_study(storage=storage, study_name="s", direction=direction)
    theirs.add_trial(
        optuna.trial.create_trial(
            params={"precision": distribution.to_external_repr(0.0)},
            distributions={"precision": distribution},
            value=1.0,
        )
    )
    with pytest.raises(SettingsError, match="'s'"):
        Study(storage, "s")


@pytest.mark.slow
def test_two_runs_can_share_one_sqlite_file(tmp_path: Path) -> None:
    """Started together on a file that does not exist yet, both end and keep all their trials.

    Reports: optuna/optuna#820 and #4994.
    """
    script = (
        "import sys; from autotune.study import Study; from autotune.measurement import *\n"
        "from autotune.settings import Settings\n"
        "input()\n"
        "with Study(sys.argv[1], 's') as study:\n"
        "    for _ in range(20):\n"
        "        study.record(Measured(kind='joint', settings=Settings(), chunks=(Chunk(1, 1.0),)))\n"
        "    sys.exit(str(study.warnings) if study.warnings else 0)\n"
    )
    url = f"sqlite:///{tmp_path}/s.db"
    command = [sys.executable, "-c", script, url]
    runs = [subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    for run in runs:
        assert run.stdin is not None
        run.stdin.write("\n")
        run.stdin.flush()
    errors = [run.communicate(timeout=100)[1] for run in runs]
    assert [run.returncode for run in runs] == [0, 0], errors
    with Study(url, "s") as study:
        assert len(study.optuna_study.trials) == 40


def test_optunas_verbosity_is_as_before_and_nothing_is_printed(capfd: pytest.CaptureFixture[str]) -> None:
    """The study is quiet without silencing the caller's own studies."""
    optuna.logging.set_verbosity(optuna.logging.DEBUG)
    try:
        Study().record(measured())
        assert optuna.logging.get_verbosity() == optuna.logging.DEBUG
    finally:
        optuna.logging.set_verbosity(optuna.logging.INFO)
    assert capfd.readouterr() == ("", "")


def test_the_domains_are_those_of_every_study_ever_written() -> None:
    """A changed choice or scale would make stored studies unreadable, so the domains are pinned."""
    pinned = {
        "batch_size": (1, 2**24, True),
        "gradient_accumulation_steps": (1, 2**20, True),
        "num_workers": (0, 1024, False),
        "prefetch_factor": (0, 1024, False),
        "num_threads": (0, 1024, False),
        "persistent_workers": (False, True),
        "pin_memory": (False, True),
        "activation_checkpointing": (False, True),
        "length_grouped": (False, True),
        "channels_last": (False, True),
        "cudnn_benchmark": (False, True),
        "multiprocessing_context": ("fork", "spawn", "forkserver", "none"),
        "precision": ("fp32", "tf32", "bf16-mixed", "fp16-mixed"),
        "compile_mode": ("default", "reduce-overhead", "max-autotune-no-cudagraphs", "none"),
        "compile_scope": ("model", "blocks"),
        "optimizer_implementation": ("for-loop", "foreach", "fused", "none"),
    }
    study = Study()
    study.record(measured())
    (trial,) = study.optuna_study.trials
    seen = {
        name: d.choices if isinstance(d, optuna.distributions.CategoricalDistribution) else (d.low, d.high, d.log)
        for name, d in trial.distributions.items()
        if isinstance(d, optuna.distributions.CategoricalDistribution | optuna.distributions.IntDistribution)
    }
    assert seen == pinned


def test_outcomes_keep_their_order() -> None:
    """The list of a run reads as it happened."""
    study = Study()
    outcomes = [measured(), *FAILURES, dataclasses.replace(measured(), cut=True)]
    for outcome in outcomes:
        study.record(outcome)
    assert study.outcomes == outcomes


def test_importances_can_be_computed_over_a_continued_study(tmp_path: Path) -> None:
    """Two runs with other cores and knobs share one study, and optuna ranks what mattered in all of it."""
    storage = f"sqlite:///{tmp_path / 'study.db'}"
    for cores in (2, 8):
        with Study(storage, "mine") as study:
            for number in range(1, 7):
                settings = Settings(batch_size=8 * number).replace(num_workers=number % cores)
                study.record(Measured(kind="joint", settings=settings, chunks=(Chunk(settings.batch_size or 1, 1.0),)))
    with Study(storage, "mine") as study:
        evaluator = optuna.importance.PedAnovaImportanceEvaluator()
        found = optuna.importance.get_param_importances(study.optuna_study, evaluator=evaluator)
    assert found["batch_size"] > 0
