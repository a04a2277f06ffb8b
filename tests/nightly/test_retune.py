"""Re-tuning: what is written, what is held, and what is left alone."""

from __future__ import annotations

import dataclasses
import json
from datetime import timedelta
from typing import Any

import pytest

from autotune import Settings
from autotune.api.request import request_of
from autotune.config import Speedup
from autotune.errors import BusyError
from autotune.nightly.journal import CHANGES, METRICS, note
from autotune.nightly.retune import Rules, retune
from autotune.nightly.retuned import Retuned
from autotune.profiles import Key, Profiles

BASELINE = Settings(batch_size=32)
STORED = Settings(batch_size=32, channels_last=True)
BETTER = Settings(batch_size=16, gradient_accumulation_steps=2, channels_last=True)


def put(store: Profiles, world: Any, settings: Settings = STORED, **evidence: Any) -> None:
    """What an earlier night left."""
    store.put(world.key, world.config(settings, **evidence).to_json(), why="earlier")


def go(world: Any, store: Profiles, **rules: Any) -> Retuned:
    """One re-tune."""
    return retune(world.task, store, name="toy", rules=Rules(**rules), seams=world.seams)


def in_force(store: Profiles, world: Any) -> dict[str, Any]:
    """The stored document."""
    entry = store.entry(world.key)
    assert entry is not None
    return entry.document


def test_nothing_is_rewritten_where_nothing_changed(world: Any, store: Profiles) -> None:
    """The check holds, no study is run, the files stay byte for byte."""
    put(store, world)
    before = {path: path.read_bytes() for path in store.path.glob("*.json")}
    ended = go(world, store)
    assert (ended.outcome, ended.verdict) == ("unchanged", "valid")
    assert world.tuned == []
    assert {path: path.read_bytes() for path in store.path.glob("*.json")} == before


def test_an_undecided_check_rewrites_nothing(world: Any, store: Profiles) -> None:
    """Noise is no drift."""
    put(store, world)
    world.noise = 0.4
    assert go(world, store).outcome == "unchanged"
    assert world.tuned == []


def test_drift_leads_to_a_study_from_the_stored_result(world: Any, store: Profiles) -> None:
    """Effective batch and learning rate as stored; what won by 3 % is written, the old result kept behind it."""
    put(store, world)
    world.rates |= {STORED: 120.0, BETTER: 130.0}
    world.answer = BETTER
    ended = go(world, store, storage="s.log")
    assert (ended.outcome, ended.verdict) == ("rewritten", "drifted")
    (options,) = world.tuned
    assert (options["earlier"], options["effective_batch_size"]) == (STORED, 32)
    assert (options["storage"], options["study_name"]) == ("s.log", "toy")
    document = in_force(store, world)
    assert document["settings"] == BETTER.to_json()
    assert document["baseline"] == BASELINE.to_json()
    assert document["evidence"]["speedup"]["median"] == pytest.approx(1.3, abs=0.05)
    entry = store.entry(world.key)
    assert entry is not None
    assert entry.results[1]["document"]["settings"] == STORED.to_json()


def test_the_learning_rate_is_as_stored(world: Any, store: Profiles) -> None:
    """Whatever the study would have made of it."""
    config = world.config(STORED)
    plan = dataclasses.replace(config.learning_rate, factor=3.0, notes=("as stored",))
    store.put(world.key, dataclasses.replace(config, learning_rate=plan).to_json())
    world.rates |= {STORED: 120.0, BETTER: 130.0}
    world.answer = BETTER
    assert go(world, store).outcome == "rewritten"
    assert in_force(store, world)["learning_rate"]["factor"] == 3.0


@pytest.mark.parametrize("rate", [122.0, 118.0])
def test_less_than_three_percent_is_not_written(world: Any, store: Profiles, rate: float) -> None:
    """A gain within the margin, or none, leaves the stored settings in force."""
    put(store, world)
    world.rates |= {STORED: 120.0, BETTER: rate}
    world.answer = BETTER
    ended = go(world, store)
    assert ended.outcome == "kept"
    assert "needed: above 1.03x" in ended.reason
    assert in_force(store, world)["settings"] == STORED.to_json()


def test_the_same_answer_again_is_kept(world: Any, store: Profiles) -> None:
    """There is nothing to race it against."""
    put(store, world)
    world.rates[STORED] = 120.0
    assert go(world, store).outcome == "kept"


def test_what_does_not_run_any_more_is_replaced_without_a_race_against_it(world: Any, store: Profiles) -> None:
    """It cannot be raced; the new settings still have to beat the baseline."""
    put(store, world)
    world.out_of_memory |= {("compute", STORED), ("lap", STORED)}
    world.rates[BETTER] = 130.0
    world.answer = BETTER
    ended = go(world, store)
    assert (ended.outcome, ended.verdict) == ("rewritten", "unsafe")
    assert ended.gain is None


def test_settings_slower_than_the_baseline_give_way_to_it(world: Any, store: Profiles) -> None:
    """The study keeps the baseline, and the race against the stored settings proves it faster."""
    put(store, world)
    world.rates[STORED] = 80.0
    world.answer = BASELINE
    assert go(world, store).outcome == "rewritten"
    document = in_force(store, world)
    assert document["settings"] == BASELINE.to_json()
    assert document["evidence"]["kept_baseline"]


def test_a_changed_batch_has_to_be_allowed(world: Any, store: Profiles) -> None:
    """Then the study is free, and its own learning rate is stored."""
    put(store, world)
    larger = Settings(batch_size=128, channels_last=True)
    world.rates |= {STORED: 120.0, larger: 200.0}
    world.answer = larger
    assert go(world, store, allow_batch_change=True).outcome == "rewritten"
    assert "effective_batch_size" not in world.tuned[0]
    assert in_force(store, world)["effective_batch_size"] == 128


def test_a_machine_without_an_entry_gets_its_own(world: Any, store: Profiles, other_machine: Any) -> None:
    """Warm-started from the other machine's, whose entry stays."""
    put(store, world)
    there = other_machine(world)
    there.rates = {**world.rates, BETTER: 180.0}
    there.answer = BETTER
    ended = go(there, store)
    assert (ended.outcome, ended.verdict) == ("new", None)
    assert there.tuned[0]["earlier"] == STORED
    assert in_force(store, there)["settings"] == BETTER.to_json()
    assert in_force(store, world)["settings"] == STORED.to_json()


def test_a_first_answer_must_be_proven(world: Any, store: Profiles) -> None:
    """A kept baseline is not written where nothing was stored."""
    world.answer = BASELINE
    assert go(world, store).outcome == "nothing proven"
    assert not store.path.exists()
    world.answer = STORED
    assert go(world, store).outcome == "new"
    assert "earlier" not in world.tuned[0]


def test_a_patch_release_is_checked_and_not_tuned(world: Any, store: Profiles) -> None:
    """The near entry holds: nothing is written, neither for it nor beside it."""
    version = world.hardware.torch.split("+")[0].rpartition(".")[0]
    old = dataclasses.replace(world.hardware, torch=f"{version}.99{''.join(world.hardware.torch.partition('+')[1:])}")
    config = dataclasses.replace(world.config(STORED), hardware=old)
    store.put(Key(task="sha256:task", hardware=old.fingerprint), config.to_json())
    ended = go(world, store)
    assert (ended.outcome, ended.verdict) == ("unchanged", "valid")
    assert len(store.read().entries) == 1


def test_a_stored_baseline_is_looked_at_again_after_a_week(world: Any, store: Profiles) -> None:
    """That nothing was faster may have been the machine's noise, or an older release."""
    put(store, world, BASELINE)
    assert go(world, store).outcome == "unchanged"
    world.date += timedelta(days=8)
    assert go(world, store).outcome == "rewritten"


AMONG = Speedup(median=3.0, low=2.9, high=3.1, rounds=6, others_cores=2.0)
"""A stored win that was measured while others used the machine."""


def test_figures_taken_among_others_are_taken_again(world: Any, store: Profiles) -> None:
    """On a quiet machine, without a study: settings stay, figures are new, and the next night finds nothing to do."""
    put(store, world, speedup=AMONG, warnings=("Other processes used up to 2.0 cores during the race: x", "Another."))
    ended = go(world, store)
    assert (ended.outcome, ended.verdict, ended.changed) == ("remeasured", "valid", True)
    assert (ended.moved, world.tuned) == ({}, [])
    assert "remeasured: " in ended.line()
    evidence = in_force(store, world)["evidence"]
    assert evidence["speedup"]["median"] == pytest.approx(1.5, abs=0.05)
    assert not evidence["speedup"]["others_cores"]
    assert evidence["warnings"] == ["Another."]
    assert "measured again on 2026-05-01" in evidence["reason"]
    assert in_force(store, world)["settings"] == STORED.to_json()
    assert go(world, store).outcome == "unchanged"


@pytest.mark.parametrize(("rate", "noise", "verdict"), [(102.0, 0.001, "valid"), (100.5, 0.01, "undecided")])
def test_a_win_among_others_that_is_none_without_them_leads_to_a_study(
    world: Any, store: Profiles, rate: float, noise: float, verdict: str
) -> None:
    """It is faster than the baseline by less than the margin, or not surely faster at all."""
    put(store, world, speedup=AMONG)
    world.noise = noise
    world.rates |= {STORED: rate, BETTER: 130.0}
    world.answer = BETTER
    ended = go(world, store)
    assert (ended.outcome, ended.verdict) == ("rewritten", verdict)


def test_a_study_that_finds_a_doubted_win_again_ends_the_doubt(world: Any, store: Profiles) -> None:
    """Its figures are written, and the next night has nothing to study."""
    put(store, world, speedup=AMONG)
    world.noise = 0.001
    world.rates[STORED] = 102.0
    ended = go(world, store)
    assert (ended.outcome, len(world.tuned)) == ("remeasured", 1)
    assert in_force(store, world)["evidence"]["speedup"]["median"] == pytest.approx(1.02)
    assert go(world, store).outcome == "unchanged"
    assert len(world.tuned) == 1


def test_figures_of_the_same_batch_that_were_not_taken_again_keep_their_doubt(world: Any, store: Profiles) -> None:
    """Only those of the settings themselves are new where these change the batch."""
    larger = STORED.replace(batch_size=64)
    world.rates[larger] = 150.0
    doubt = "Other processes used up to 2.0 cores during the race: x"
    put(store, world, larger, speedup=AMONG, warnings=(doubt,))
    assert go(world, store).outcome == "remeasured"
    assert in_force(store, world)["evidence"]["warnings"] == [doubt]


def test_the_request_stands_beside_the_result(world: Any, store: Profiles) -> None:
    """So that a call which asks the same can take it, and one that asks something else does not; it stays when only
    figures are renewed."""
    assert go(world, store, time_budget_s=200.0).outcome == "new"
    entry = store.entry(world.key)
    assert entry is not None
    free, budget_s = entry.results[0]["request"], entry.results[0]["time_budget_s"]
    assert (free[:7], budget_s) == ("sha256:", 200.0)
    facts, machine = world.config(STORED).facts, world.here
    assert free == request_of(world.task, facts, machine.hardware, machine.limits, {})
    assert free != request_of(world.task, facts, machine.hardware, machine.limits, {"effective_batch_size": 32})
    store.put(world.key, world.config(STORED, speedup=AMONG).to_json(), request=free, time_budget_s=200.0)
    assert go(world, store).outcome == "remeasured"
    entry = store.entry(world.key)
    assert entry is not None
    assert (entry.results[0]["request"], entry.results[0]["time_budget_s"]) == (free, 200.0)


def test_what_is_stored_of_another_task_is_named(world: Any, store: Profiles) -> None:
    """A task of the same name whose batch changed: tuned anew, and the log says what was not the same."""
    document = world.config(STORED).to_json()
    document["task"] |= {"fingerprint": "sha256:before", "name": world.task.name}
    document["facts"]["fingerprint"] = "sha256:before"
    store.put(Key(task="sha256:before", hardware=world.hardware.fingerprint), document)
    world.parts = {"batch": "list(float32[*,9])"}
    ended = go(world, store)
    assert (ended.outcome, ended.key) == ("new", world.key)
    assert "another task (batch: list(float32[*,3,8,8], int64[*]) there, list(float32[*,9]) here)" in ended.reason
    assert "is of another task (batch: " in ended.line()
    assert ended.to_json()["task_differences"][0]["part"] == "batch"


def test_others_at_work_are_an_error_of_its_own(world: Any, store: Profiles) -> None:
    """Nothing is measured against them, and nothing written."""
    put(store, world)
    world.others = "2 other processes are on the device"
    with pytest.raises(BusyError, match="2 other processes are on the device") as caught:
        go(world, store)
    assert caught.value.exit_code == 8
    assert world.tuned == []


@pytest.mark.parametrize("where", ["tune", "race", "put"])
def test_a_crash_in_the_middle_leaves_the_old_config(
    world: Any, store: Profiles, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """Whatever fails, and whenever."""
    put(store, world)
    world.rates |= {STORED: 120.0, BETTER: 130.0}
    world.answer = BETTER
    before = {path: path.read_bytes() for path in store.path.glob("*.json")}
    seams = world.seams

    def crash(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    if where == "put":
        monkeypatch.setattr("os.replace", crash)
    else:
        seams = dataclasses.replace(seams, **{where: crash})
    with pytest.raises(KeyboardInterrupt):
        retune(world.task, store, name="toy", seams=seams)
    assert {path: path.read_bytes() for path in store.path.glob("*.json")} == before
    assert not list(store.path.glob("*.part"))


def test_a_damaged_store_is_no_reason_to_fail(world: Any, store: Profiles) -> None:
    """The entry that cannot be read counts as none, and is kept aside."""
    put(store, world)
    (file,) = store.path.glob("*.json")
    file.write_text("{")
    with pytest.warns(UserWarning, match="is kept as"):
        assert go(world, store).outcome == "new"


def test_each_retune_leaves_one_line_of_metrics_and_changes_leave_a_line_of_the_log(
    world: Any, store: Profiles, tmp_path: Any
) -> None:
    """Old -> new rate and the settings that moved; the plain config follows, and is left alone otherwise."""
    out = tmp_path / "tuned.json"
    put(store, world)
    note(go(world, store), store, out)
    assert json.loads(out.read_text())["settings"] == STORED.to_json()
    stamp = out.stat().st_mtime_ns
    note(go(world, store), store, out)
    assert out.stat().st_mtime_ns == stamp
    world.rates |= {STORED: 120.0, BETTER: 140.0}
    world.answer = BETTER
    note(go(world, store), store, out)
    assert json.loads(out.read_text())["settings"] == BETTER.to_json()
    lines = [json.loads(line) for line in (store.path / METRICS).read_text().splitlines()]
    assert [line["outcome"] for line in lines] == ["unchanged", "unchanged", "rewritten"]
    assert lines[2]["moved"] == {"batch_size": [32, 16], "gradient_accumulation_steps": [1, 2]}
    assert lines[2]["gain"]["low"] > 1.03
    (change,) = (store.path / CHANGES).read_text().splitlines()
    assert "toy" in change
    assert "batch_size 32 -> 16, gradient_accumulation_steps 1 -> 2" in change
    assert "-> 1" in change.partition("samples/s")[0]


def test_the_device_is_held_throughout(world: Any, store: Profiles) -> None:
    """One lock around check, study and races."""
    put(store, world)
    go(world, store)
    assert world.locked == 1
