"""Peers side by side: what they answer, how their answers race, what is printed of them."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from autotune.measurement import Chunk, Measured, Outcome, OutOfMemory, Probe, Rejected
from autotune.settings import Settings
from benchmarks.peers import against_best, earlier_answers, interpreter, judged
from benchmarks.probing import Bench
from benchmarks.side_by_side import report
from benchmarks.side_by_side.answers import PEERS, Answer, Request, ask
from benchmarks.side_by_side.laps import Driven, Laps, Standing, paired
from benchmarks.side_by_side.own import advised, cap_of, fitted, training_steps
from benchmarks.side_by_side.plain_tpe import search, without
from benchmarks.side_by_side.rivals import batch_answer, knobs_of_loadtune, knobs_of_trial
from tests.planner.fake_machine import FakeMachine, candidates, hardware

DEFAULTS = Settings(batch_size=32, num_threads=2)
WIDE = DEFAULTS.replace(batch_size=64)
WORKERS = DEFAULTS.replace(num_workers=2)
REQUEST = Request(workload="w1", budget_s=60.0, base=32, cap=256)
KNOBS: dict[str, Any] = {
    "num_workers": 0,
    "prefetch_factor": None,
    "persistent_workers": False,
    "pin_memory": False,
    "batch_size": None,
    "num_threads": None,
    "compile": False,
    "amp": False,
    "non_blocking": False,
}
TRIAL = {"precision": "fp32_default", "compile": "off", "channels_last": False, "fused_opt": False}


def measured(settings: Settings, rate: float, *, kind: Any = "lap", **more: Any) -> Measured:
    return Measured(kind=kind, settings=settings, chunks=(Chunk(32, 32 / rate),) * 2, **more)


class Track:
    """Answers laps; ``answer`` says how, from the settings and the number of the lap."""

    def __init__(self, answer: Callable[[Settings, int], Outcome]) -> None:
        self.answer = answer
        self.probes: list[Probe] = []

    def __call__(self, probe: Probe) -> Outcome:
        self.probes.append(probe)
        return self.answer(probe.settings, len(self.probes))


def raced(answer: Callable[[Settings, int], Outcome], rounds: int = 4) -> tuple[Laps, Track]:
    track = Track(answer)
    laps = Laps(DEFAULTS, {"wide": WIDE, "workers": WORKERS}, run=track, lap_s=1.5)
    laps.go(rounds)
    return laps, track


def test_a_drifting_machine_does_not_change_the_ratios() -> None:
    """Rates that fall by 5 % a lap leave the true 2.0 and 1.5 to the laps of the defaults around."""
    speed = {DEFAULTS: 100.0, WIDE: 200.0, WORKERS: 150.0}
    laps, _ = raced(lambda settings, lap: measured(settings, speed[settings] * 0.95**lap))
    assert laps.standings["wide"].ratios == pytest.approx([2.0] * 4)
    assert laps.standings["workers"].ratios == pytest.approx([1.5] * 4)


def test_every_lap_has_the_defaults_on_both_sides_and_rounds_turn_round() -> None:
    """One of each that counts for nothing; A X A Y A, then A Y A X A, the lap between them shared, no seed twice."""
    _, track = raced(lambda settings, _: measured(settings, 100.0), rounds=2)
    names = {DEFAULTS: "A", WIDE: "X", WORKERS: "Y"}
    assert "".join(names[probe.settings] for probe in track.probes) == "AXY" + "AXAYA" + "YAXA"
    assert len({probe.seed for probe in track.probes}) == len(track.probes)
    assert {probe.kind for probe in track.probes} == {"lap"}


def test_what_fails_leaves_with_its_reason_and_the_others_race_on() -> None:
    """One that runs out of memory in its second round keeps its first."""

    def answer(settings: Settings, lap: int) -> Outcome:
        if settings == WIDE and lap > 7:
            return OutOfMemory(kind="lap", settings=settings, where="allocator", message="no room")
        return measured(settings, 100.0)

    laps, _ = raced(answer)
    assert laps.standings["wide"].left == "out of memory (no room) in round 2"
    assert len(laps.standings["wide"].ratios) == 1
    assert len(laps.standings["workers"].ratios) == 4


def test_what_is_far_slower_is_out_after_two_rounds() -> None:
    """Its place is known; its ratios stay."""
    laps, _ = raced(lambda settings, _: measured(settings, 20.0 if settings == WIDE else 100.0))
    assert laps.standings["wide"].ratios == pytest.approx([0.2, 0.2])
    assert "0.5" in str(laps.standings["wide"].left)


def test_a_lap_that_others_disturbed_is_run_once_more() -> None:
    """Whatever its rate was; the second one counts, however disturbed."""
    seen: list[float] = []

    def answer(settings: Settings, _: int) -> Outcome:
        if settings != WIDE:
            return measured(settings, 100.0)
        seen.append(300.0 if len(seen) % 2 == 0 else 200.0)
        return measured(settings, seen[-1], others_cores=0.9)

    laps, _ = raced(answer, rounds=2)
    assert laps.standings["wide"].ratios == pytest.approx([2.0, 2.0])
    assert len(seen) == 6


def test_rounds_that_stay_disturbed_are_left_out_if_enough_others_are_there() -> None:
    """Whatever their ratios are; where most are disturbed, all count."""
    quiet, disturbed = Driven(0, 2.0, 200.0), Driven(1, 9.0, 900.0, disturbed=True)
    standing = Standing(driven=[quiet, disturbed])
    assert (standing.median, standing.samples_per_s) == (2.0, 200.0)
    standing.driven.append(disturbed)
    assert standing.median == 9.0


def test_a_disturbed_lap_of_the_defaults_disturbs_both_its_neighbours() -> None:
    """Lap 6 is the defaults’ between the two entries, lap 7 its repetition; the second round is quiet."""

    def answer(settings: Settings, lap: int) -> Outcome:
        return measured(settings, 100.0, others_cores=0.5 if lap in (6, 7) else 0.0)

    laps, _ = raced(answer, rounds=2)
    assert [one.disturbed for one in laps.standings["wide"].driven] == [True, False]
    assert [one.disturbed for one in laps.standings["workers"].driven] == [True, False]


def test_what_never_runs_has_no_round() -> None:
    """It leaves before the first, with its reason."""

    def answer(settings: Settings, _: int) -> Outcome:
        if settings == WIDE:
            return Rejected(kind="lap", settings=settings, phase="compile", reason="no compiler")
        return measured(settings, 100.0)

    laps, track = raced(answer)
    assert laps.standings["wide"].left == "rejected (no compiler) before the first round"
    assert [probe.settings for probe in track.probes].count(WIDE) == 1


def test_laps_are_long_enough_to_read_the_stock_of_the_workers_several_times() -> None:
    """Two workers with two batches of 32 each, three times at 100 samples/s: 3.84 s; without workers 1.5 s."""
    laps, track = raced(lambda settings, _: measured(settings, 100.0), rounds=1)
    windows = {probe.settings: probe.window_s for probe in track.probes}
    assert windows == {DEFAULTS: 1.5, WIDE: 1.5, WORKERS: pytest.approx(3.84)}
    assert laps.window_s("workers") == pytest.approx(3.84)
    slow, _ = raced(lambda settings, _: measured(settings, 1.0), rounds=1)
    assert slow.window_s("workers") == 12.0


def test_defaults_that_do_not_run_end_the_race() -> None:
    """With what happened."""
    broken = Rejected(kind="lap", settings=DEFAULTS, phase="step", reason="shapes differ")
    with pytest.raises(RuntimeError, match="shapes differ"):
        raced(lambda settings, _: broken)


def test_two_entries_are_paired_over_the_rounds_both_drove() -> None:
    """A round that only one has is left out; the interval is of the mean log ratio."""
    one = Standing(driven=[Driven(0, 2.0, 9.0), Driven(1, 2.2, 9.0), Driven(2, 1.0, 9.0)])
    other = Standing(driven=[Driven(0, 1.0, 9.0), Driven(1, 1.1, 9.0), Driven(3, 9.0, 9.0)])
    found = paired(one, other)
    assert found is not None
    assert (found.median, found.low, found.rounds) == (pytest.approx(2.0), pytest.approx(2.0), 2)
    assert paired(one, Standing()) is None


def field(**settings: Settings) -> report.Field:
    """A race of peers that answered, and of one that is not installed."""
    answers = {peer: Answer(peer=peer, fate="answered", tuning_s=3.0, steps=7) for peer in settings}
    answers["loadtune"] = Answer(peer="loadtune", fate="not installed", error="cannot import loadtune")
    answers["tpe"] = Answer(peer="tpe", fate="crashed", error="exit code 1: KeyError", process_s=12.0)
    return report.field_of(DEFAULTS, answers, settings)


def printed(shown: report.Field, speed: dict[Settings, float]) -> tuple[str, Laps]:
    laps = Laps(DEFAULTS, shown.entries, run=lambda probe: measured(probe.settings, speed[probe.settings]), lap_s=1.5)
    laps.go(2)
    return "\n".join(report.lines(shown, laps)), laps


def test_the_same_settings_race_once_and_nobody_is_hidden() -> None:
    """Sharing is said; who crashed or is not there has a row with the reason."""
    shown = field(defaults=DEFAULTS, lightning=WIDE, accelerate=WIDE, ours=WORKERS)
    assert list(shown.entries) == ["lightning", "ours"]
    text, _ = printed(shown, {DEFAULTS: 100.0, WIDE: 110.0, WORKERS: 150.0})
    rows = {line.split(" | ")[0].strip("| "): line for line in text.splitlines() if line.startswith("| ")}
    assert "1.10 (1.10–1.10), 2" in rows["accelerate finder"]
    assert "1.10 (1.10–1.10), 2" in rows["Lightning Tuner, power"]
    assert "same settings as Lightning Tuner, power" in text
    assert "cannot import loadtune" in rows["loadtune"]
    assert "crashed" in rows["Optuna TPE"]
    assert "12 s, in vain" in rows["Optuna TPE"]


def test_the_best_of_the_others_is_never_ours() -> None:
    """The defaults count as 1; the ratio by rounds is ours over theirs."""
    shown = field(defaults=DEFAULTS, lightning=WIDE, ours=WORKERS)
    _, laps = printed(shown, {DEFAULTS: 100.0, WIDE: 125.0, WORKERS: 150.0})
    assert report.best_other(shown, laps.standings) == "lightning"
    assert report.in_race(shown, laps, "lightning").startswith("1.20")
    _, laps = printed(shown, {DEFAULTS: 100.0, WIDE: 80.0, WORKERS: 150.0})
    assert report.best_other(shown, laps.standings) == "defaults"
    assert report.in_race(shown, laps, "defaults").startswith("1.50")


def test_ours_meets_the_best_of_the_others_alone(capsys: pytest.CaptureFixture[str]) -> None:
    """Ours over theirs, not the other way round, in laps that are not those of the race of all."""
    shown = field(defaults=DEFAULTS, lightning=WIDE, ours=WORKERS)
    speed = {DEFAULTS: 100.0, WIDE: 125.0, WORKERS: 150.0}
    _, laps = printed(shown, speed)
    track = Track(lambda settings, _: measured(settings, 2 * speed[settings]))
    verdict = against_best(shown, laps, track)
    assert verdict["other"] == "lightning"
    assert verdict["alone"].startswith("1.20 (")
    assert {probe.settings for probe in track.probes} == {WIDE, WORKERS}
    assert {probe.window_s for probe in track.probes} == {laps.window_s("ours")}
    assert "Lightning Tuner, power): 1.20" in capsys.readouterr().out


def test_the_same_settings_tie_by_identity() -> None:
    """Noise between two names of one thing is no result; nothing is driven for it."""
    shown = field(defaults=DEFAULTS, lightning=WIDE, ours=WIDE)
    _, laps = printed(shown, {DEFAULTS: 100.0, WIDE: 125.0})
    track = Track(lambda settings, _: measured(settings, 100.0))
    verdict = against_best(shown, laps, track)
    assert verdict["alone"] == verdict["in_race"] == report.IDENTITY
    assert not track.probes


def test_a_meeting_that_fails_is_said() -> None:
    """The figures of the race of all stay."""
    shown = field(defaults=DEFAULTS, lightning=WIDE, ours=WORKERS)
    _, laps = printed(shown, {DEFAULTS: 100.0, WIDE: 125.0, WORKERS: 150.0})
    broken = Rejected(kind="lap", settings=WORKERS, phase="step", reason="a passing fault")
    verdict = against_best(shown, laps, lambda _: broken)
    assert "a passing fault" in verdict["alone"]
    assert verdict["in_race"].startswith("1.20")


@pytest.mark.parametrize(
    ("knobs", "cuda", "changes"),
    [
        ({}, False, {}),
        ({"num_workers": 2, "persistent_workers": True}, False, {"num_workers": 2, "prefetch_factor": 2,
                                                               "persistent_workers": True}),
        ({"pin_memory": True, "num_threads": 1}, False, {"pin_memory": False, "num_threads": 1}),
        ({"amp": True, "compile": True}, False, {"precision": "bf16-mixed", "compile_mode": "default"}),
        ({"amp": True, "batch_size": 64}, True, {"precision": "fp16-mixed", "batch_size": 64}),
    ],
)  # fmt: skip
def test_knobs_of_loadtune_become_settings(knobs: dict[str, Any], cuda: bool, changes: dict[str, Any]) -> None:
    """Each as it would have run there."""
    found, _ = knobs_of_loadtune({**KNOBS, **knobs}, cuda=cuda)
    assert found == changes
    DEFAULTS.replace(**found)


@pytest.mark.parametrize(
    ("config", "cuda", "changes", "said"),
    [
        ({}, False, {}, ""),
        ({"precision": "tf32", "channels_last": True}, False, {"channels_last": True}, "without CUDA"),
        ({"precision": "tf32"}, True, {"precision": "tf32", "cudnn_benchmark": True}, ""),
        ({"precision": "amp_fp16"}, False, {"precision": "fp16-mixed"}, ""),
        ({"compile": "max-autotune"}, False, {"compile_mode": "max-autotune-no-cudagraphs"}, "CUDA graphs"),
        ({"compile": "reduce-overhead"}, False, {"compile_mode": "reduce-overhead"}, ""),
    ],
)
def test_a_trial_of_pytorch_autotune_becomes_settings(
    config: dict[str, Any], cuda: bool, changes: dict[str, Any], said: str
) -> None:
    """What has no equal is said."""
    found, notes = knobs_of_trial({**TRIAL, **config}, cuda=cuda)
    assert found == changes
    assert said in " ".join(notes)
    DEFAULTS.replace(**found)


def test_a_size_that_was_never_run_is_said_and_no_size_is_a_crash() -> None:
    """Lightning returns its cap without running it."""
    found = {"batch_size": 256, "probes": 2, "tried": [[64, "measured"], [128, "measured"]]}
    assert "never ran" in batch_answer("lightning", found, "call", 1.0, 6).notes[0]
    found["tried"] = [[256, "out of memory"], [128, "measured"]]
    assert "never ran" in batch_answer("lightning", found, "call", 1.0, 6).notes[0]
    found.update(batch_size=128)
    assert batch_answer("lightning", found, "call", 1.0, 6).notes == ()
    with pytest.raises(RuntimeError, match="no size after 2 probes: out of time"):
        batch_answer("lightning", {**found, "batch_size": None, "crash": "out of time"}, "call", 1.0, 6)


def test_an_answer_that_is_no_settings_counts_as_a_crash() -> None:
    """It is listed with the reason, not raced."""
    answer, settings = judged(Answer(peer="tpe", fate="answered", changes={"batch_size": 0}), DEFAULTS, 256)
    assert (answer.fate, settings) == ("crashed", None)
    assert "batch_size" in str(answer.error)
    answer, settings = judged(Answer(peer="tpe", fate="answered", changes=WORKERS.to_json()), DEFAULTS, 256)
    assert settings == WORKERS


def test_a_batch_above_the_cap_is_raced_at_the_cap() -> None:
    """Lightning doubles past its max_val where that is no power of two; it is said."""
    answer, settings = judged(Answer(peer="lightning", fate="answered", changes={"batch_size": 128}), DEFAULTS, 70)
    assert settings == DEFAULTS.replace(batch_size=70)
    assert "128 is above the cap" in answer.notes[0]


def bench(machine: FakeMachine, **more: Any) -> Bench:
    facts = SimpleNamespace(**{**vars(candidates().facts), "has_conv_4d": True})
    return Bench(run=machine.run, candidates=candidates(facts=facts, **more), hardware=hardware(), start_s=0.0)


def test_the_articles_take_the_largest_batch_that_runs() -> None:
    """From the cap down by halves, never below the base; pinning is left out without an accelerator, and said."""

    def fate(probe: Probe) -> Outcome | None:
        if (probe.settings.batch_size or 0) <= 64:
            return None
        return OutOfMemory(kind="joint", settings=probe.settings, where="allocator", message="no room")

    shown = bench(FakeMachine(lambda _: 100.0, fate=fate))
    assert cap_of(shown) == 256
    settings, notes = advised(shown, REQUEST)
    assert (settings.batch_size, settings.num_workers, settings.precision) == (256, 4, "bf16-mixed")
    assert settings.channels_last
    assert not settings.pin_memory
    assert any("pinned" in note for note in notes)
    settings, tried = fitted(shown, settings, REQUEST)
    assert settings.batch_size == 64
    assert [one.settings.batch_size for one in tried] == [256, 128, 64]


def test_a_locked_batch_stays_in_the_advice() -> None:
    """And what changes nothing but the batch is left out, with a word."""
    locked = dataclasses.replace(REQUEST, locked=True, cap=32)
    settings, notes = advised(bench(FakeMachine(lambda _: 100.0)), locked)
    assert settings.batch_size == 32
    assert any("locked" in note for note in notes)
    answer = ask("lightning", locked, python="no-such-python", script=["-c", ""])
    assert answer.fate == "left out"
    assert "32" in str(answer.error)


def searched(machine: FakeMachine, *, budget_s: float, **more: Any) -> Any:
    return search(
        candidates(**more),
        cores=2,
        cap=256,
        run=machine.run,
        budget_s=budget_s,
        window_s=1.5,
        least_trials=25,
        seed=0,
        started_s=0.0,
        clock=machine.clock,
    )


@pytest.mark.parametrize(("budget_s", "trials"), [(60.0, 30), (30.0, 25), (8.0, 12)])
def test_plain_tpe_makes_25_trials_and_on_until_the_budget_is_over(budget_s: float, trials: int) -> None:
    """Trials of 2 s: 30 in 60 s, still 25 in 30 s, but never beyond three budgets."""
    machine = FakeMachine(lambda settings: float(settings.batch_size or 1), trial_s=2.0)
    found = searched(machine, budget_s=budget_s)
    assert (len(found.outcomes), found.refused) == (trials, 0)
    assert machine.now == 2.0 * trials
    assert found.best.samples_per_s == max(one.samples_per_s for one in found.outcomes)
    assert max(one.settings.batch_size for one in found.outcomes) <= 256


def test_plain_tpe_learns_from_failures_and_keeps_a_locked_batch() -> None:
    """A trial that failed is never the best; a locked batch is not varied."""

    def fate(probe: Probe) -> Outcome | None:
        if not probe.settings.num_workers:
            return None
        return Rejected(kind="joint", settings=probe.settings, phase="loader", reason="no workers here")

    found = searched(FakeMachine(lambda _: 100.0, fate=fate), budget_s=10.0, locked=True, max_effective_batch_size=32)
    assert found.best.settings.num_workers == 0
    assert {one.settings.batch_size for one in found.outcomes} == {32}
    assert any(isinstance(one, Rejected) for one in found.outcomes)


def test_a_knob_can_be_left_out_of_the_search() -> None:
    """The eager search never compiles."""
    space = candidates(values={"compile_mode": ("default",), "channels_last": (True,)})
    machine = FakeMachine(lambda _: 100.0)
    for left_out, expected in (((), {None, "default"}), (("compile_mode",), {None})):
        limited = without(space, left_out)
        found = searched(machine, budget_s=machine.now + 30.0, values=limited.values, dropped=limited.dropped)
        assert {one.settings.compile_mode for one in found.outcomes} == expected


def test_steps_of_laps_that_go_on_are_counted_once() -> None:
    """A lap whose objects are still there says how many steps they took in all."""
    steps = [measured(WIDE, 100.0, steps=number) for number in (5, 9, 12, 4)]
    joint = measured(WIDE, 100.0, kind="joint", steps=7)
    failed = Rejected(kind="lap", settings=WIDE, phase="step", reason="")
    assert training_steps([joint, *steps, failed, joint]) == 7 + 12 + 4 + 7


CHILD = """
import argparse, json, os, pathlib, sys
parser = argparse.ArgumentParser()
for name in ("--peer", "--request", "--to"):
    parser.add_argument(name)
given = parser.parse_args()
print("a library prints")
request = json.loads(given.request)
if request["seed"] == 1:
    raise KeyError("its own fault")
if request["seed"] == 2:
    raise SystemExit(0)
answer = {"peer": given.peer, "fate": "answered", "notes": [os.environ.get("PYTHONPATH", "none")]}
pathlib.Path(given.to).write_text(json.dumps(answer))
"""


@pytest.fixture
def child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, int], Answer]:
    """Asks a peer that a few lines stand for; the seed says how it behaves."""
    path = tmp_path / "child.py"
    path.write_text(CHILD)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    for name in ("loadtune", "accelerate"):
        (tmp_path / f"{name}.py").touch()

    def asked(peer: str, seed: int) -> Answer:
        return ask(peer, dataclasses.replace(REQUEST, seed=seed), python=sys.executable, script=[str(path)])

    return asked


def test_a_peer_answers_from_a_process_of_its_own(child: Callable[[str, int], Answer], tmp_path: Path) -> None:
    """What it prints does not matter; a rival does not see the host's PYTHONPATH, others do."""
    answer = child("loadtune", 0)
    assert (answer.peer, answer.fate, answer.notes) == ("loadtune", "answered", ("none",))
    assert answer.process_s is not None
    assert child("tpe", 0).notes == (str(tmp_path),)


@pytest.mark.parametrize(("seed", "said"), [(1, "KeyError: 'its own fault'"), (2, "exit code 0")])
def test_a_peer_that_dies_or_says_nothing_has_crashed(
    child: Callable[[str, int], Answer], seed: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the last line that it printed."""
    answer = child("tpe", seed)
    assert answer.fate == "crashed"
    assert said in str(answer.error)
    assert ("its own fault" in capsys.readouterr().err) == (seed == 1)


def test_a_peer_that_cannot_be_imported_is_not_installed(tmp_path: Path) -> None:
    """No process is started for it."""
    answer = ask("pytorch-autotune", REQUEST, python="false", script=[str(tmp_path / "none.py")])
    assert answer.fate == "not installed"
    assert "pytorch_autotune" in str(answer.error)


def test_answers_of_another_question_are_not_raced() -> None:
    """An earlier run counts only with the same workload, cap, batch rule and defaults."""
    document = {"request": dataclasses.asdict(REQUEST), "defaults": DEFAULTS.to_json()}
    earlier = {**document, "answers": {"ours": Answer(peer="ours", fate="answered").to_json()}}
    other_budget = {**document, "request": {**document["request"], "budget_s": 120.0, "seed": 3}}
    assert earlier_answers(earlier, other_budget) == earlier["answers"]
    for changed in ({"request": {**document["request"], "cap": 64}}, {"defaults": WORKERS.to_json()}):
        with pytest.raises(SystemExit, match="another"):
            earlier_answers(earlier, {**document, **changed})


def test_an_interpreter_is_found_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Children run elsewhere; a virtual environment's link is not followed."""
    (tmp_path / "python").symlink_to(sys.executable)
    monkeypatch.chdir(tmp_path)
    assert interpreter("./python") == str(tmp_path / "python")
    with pytest.raises(argparse.ArgumentTypeError, match="no-such"):
        interpreter("./no-such")


def test_answers_cross_processes_as_json() -> None:
    """Nothing of an answer is lost."""
    answer = Answer(peer="ours", fate="answered", changes=WIDE.to_json(), notes=("one", "two"), claimed_ratio=1.5)
    assert Answer.from_json(json.loads(json.dumps(answer.to_json()))) == answer
    assert set(PEERS) >= {"defaults", "articles", "cores", "loadtune", "pytorch-autotune", "lightning", "ours"}
