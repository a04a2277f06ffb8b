"""The cache: the second start is answered by the first, and what may not answer for ever does not."""

from __future__ import annotations

import copy
import dataclasses
import json
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from autotune import Space, Task, TunedConfig, autotune
from autotune.api import tune
from autotune.api.cache import Cache, unsettled_because
from autotune.api.run import Run
from autotune.measurement import Chunk, Measured, Outcome, OutOfMemory, Probe
from autotune.planner import Found
from autotune.race import RaceResult
from autotune.sandbox import InProcess
from autotune.settings import Settings

Call = Callable[..., TunedConfig]


def measured(settings: Settings, rate: float, kind: Any = "joint") -> Measured:
    """A trial at a steady rate."""
    return Measured(kind=kind, settings=settings, chunks=(Chunk(int(rate), 1.0),))


def raced(baseline: Settings, candidate: Settings, ratios: tuple[float, ...], **fields: Any) -> RaceResult:
    """A race in which the candidate was so many times faster, round by round."""
    own = (100.0,) * len(ratios)
    theirs = tuple(100.0 * ratio for ratio in ratios)
    rates = {"baseline_samples_per_s": own, "candidate_samples_per_s": theirs}
    return RaceResult(baseline=baseline, candidate=candidate, margin=0.05, **{**rates, **fields})


WON = (1.5, 1.52, 1.48, 1.5, 1.51)
LOST = (1.01, 1.0, 1.02, 1.0, 1.01)
NOISE = (0.5, 2.0, 0.7, 1.9, 1.0)


class Searches:
    """Stands in for search and race: counts them, and lets them end as told."""

    def __init__(self) -> None:
        self.count = 0
        self.ratios = WON
        self.interrupted = False
        self.earlier: Settings | None = None

    def go(self, run: Run) -> None:
        self.count += 1
        self.earlier = run.plan.earlier
        baseline = run.plan.candidates.baseline
        best = baseline.replace(batch_size=2 * (baseline.batch_size or 1), gradient_accumulation_steps=1)
        own, other = measured(baseline, 100.0), measured(best, 150.0)
        run.study.record(own)
        run.study.record(other)
        run.found = Found(baseline=own, finalists=(other,), stopped="every move was made")
        run.races = [raced(baseline, best, self.ratios)]
        run.interrupted = self.interrupted


@pytest.fixture
def searches(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Searches]:
    """A store of the test's own, no environment, no real search."""
    monkeypatch.setenv("AUTOTUNE_CACHE_DIR", str(tmp_path / "cache"))
    stand_in = Searches()
    monkeypatch.setattr(Run, "go", lambda run: stand_in.go(run))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield stand_in
    torch.set_num_threads(threads)


@pytest.fixture
def call(searches: Searches) -> Call:
    """``autotune()`` of a toy task in this process, whose data has 640 rows."""
    inputs = torch.randn(640, 4, generator=torch.Generator().manual_seed(0))
    data = TensorDataset(inputs, torch.zeros(640, dtype=torch.long))

    def make(hidden: int = 3, **arguments: Any) -> TunedConfig:
        model = nn.Sequential(nn.Linear(4, hidden), nn.ReLU(), nn.Linear(hidden, 2))
        defaults = {"loss_fn": nn.CrossEntropyLoss(), "device": "cpu", "isolate": False, "progress": False}
        defaults["base_batch_size"] = 16
        return autotune(model, data, optimizer=_sgd, **{**defaults, **arguments})

    return make


def _sgd(params: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(params, lr=0.1)


def test_the_second_start_is_answered_by_the_first(call: Call, searches: Searches) -> None:
    """Same settings and evidence, no search, and ready to train (huggingface/transformers#25956)."""
    first, second = call(), call()
    assert searches.count == 1
    assert second.settings == first.settings != first.baseline
    assert second.evidence.speedup == first.evidence.speedup
    assert second.learning_rate == first.learning_rate
    assert second.to_json()["optimizer"]["kwargs"]["lr"] == pytest.approx(0.1 * second.learning_rate.factor)
    assert "run for one step before it was returned" in second.evidence.reason
    model = second.prepare(nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)))
    step = second.train_step(model, second.optimizer(model))
    assert float(step(next(iter(second.dataloader())))) > 0


@pytest.mark.parametrize("changed", [{"hidden": 5}, {"time_budget_s": 240.0, "max_batch_size": 64}])
def test_what_changes_the_answer_is_not_answered(call: Call, searches: Searches, changed: dict[str, Any]) -> None:
    """Another task or other rules are tuned for themselves."""
    call()
    call(**changed)
    assert searches.count == 2


def test_every_rule_of_the_caller_is_in_the_key(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    """Locked batch, caps, margin, learning-rate rule, space, baseline and clipping each make another key."""
    (cache,) = _caches(call, monkeypatch)
    rules: list[dict[str, Any]] = [
        {"effective_batch_size": "keep"},
        {"max_batch_size": 64},
        {"max_effective_batch_size": 32},
        {"memory_margin": 0.1},
        {"lr_scaling": "sqrt"},
        {"isolate": True},
    ]
    own = dataclasses.replace(cache.call, seed=7, time_budget_s=3.0, progress=None)
    keys = [dataclasses.replace(cache, call=dataclasses.replace(cache.call, **one)).key for one in rules]
    candidates: list[dict[str, Any]] = [
        {"baseline": cache.candidates.baseline.replace(num_workers=1)},
        {"base_batch_size": 8},
        {"space": Space(num_workers=[0])},
    ]
    keys += [
        dataclasses.replace(cache, candidates=dataclasses.replace(cache.candidates, **one)).key for one in candidates
    ]
    clipped = copy.copy(cache.task)
    clipped.max_grad_norm = 1.0
    keys.append(dataclasses.replace(cache, task=clipped).key)
    keys.append(dataclasses.replace(cache, hardware=dataclasses.replace(cache.hardware, cores=99)).key)
    assert len({*keys, cache.key}) == len(keys) + 1
    assert dataclasses.replace(cache, call=own).key == cache.key


def test_a_larger_budget_is_tuned_for_itself(call: Call, searches: Searches) -> None:
    """More can be found in it than what is stored."""
    call(time_budget_s=20.0)
    assert any("smaller time budget" in said for said in call(time_budget_s=200.0).evidence.warnings)
    assert searches.count == 2


def _caches(call: Call, monkeypatch: pytest.MonkeyPatch) -> list[Cache]:
    """The cache as one call sees it."""
    seen: list[Cache] = []
    original = Cache.of.__func__  # type: ignore[attr-defined]

    def noted(cls: type[Cache], *arguments: Any) -> Cache:
        seen.append(original(cls, *arguments))
        return seen[-1]

    monkeypatch.setattr(Cache, "of", classmethod(noted))
    call()
    return seen


def test_a_smaller_budget_is_answered_by_a_larger_ones_result(call: Call, searches: Searches) -> None:
    """More was looked at for it."""
    call(time_budget_s=200.0)
    call(time_budget_s=20.0)
    assert searches.count == 1


def test_no_cache_neither_looks_nor_keeps(call: Call, searches: Searches, tmp_path: Path) -> None:
    """Nothing is written, and what is there is not used."""
    call(cache=False)
    assert not (tmp_path / "cache").exists()
    call()
    call(cache=False)
    assert searches.count == 3


def test_a_study_that_is_continued_is_not_cut_off(call: Call, searches: Searches, tmp_path: Path) -> None:
    """With a storage, the call goes on with its study; its answer is kept for calls without."""
    storage = str(tmp_path / "study.log")
    call(storage=storage, study_name="s")
    call(storage=storage, study_name="s")
    assert searches.count == 2
    call()
    assert searches.count == 2


def test_a_baseline_kept_for_noise_is_not_kept_as_an_answer(call: Call, searches: Searches) -> None:
    """The next start tunes again."""
    searches.ratios = NOISE
    assert call().evidence.kept_baseline
    call()
    assert searches.count == 2


def test_a_lost_race_answers_for_a_week(call: Call, searches: Searches, monkeypatch: pytest.MonkeyPatch) -> None:
    """A decided baseline is returned at once, and looked at again later."""
    searches.ratios = LOST
    call()
    assert call().evidence.kept_baseline
    assert searches.count == 1
    later = datetime.now(timezone.utc) + timedelta(days=8)
    original = Cache.of.__func__  # type: ignore[attr-defined]
    monkeypatch.setattr(Cache, "of", classmethod(lambda cls, *a: _at(original(cls, *a), later)))
    call()
    assert searches.count == 2


def _at(cache: Cache, time: datetime) -> Cache:
    cache.now = lambda: time
    return cache


@pytest.mark.parametrize("undecided", [{"undecided": "Not raced."}, {"ratios": NOISE}, {"ratios": WON[:1]}])
def test_only_what_was_decided_is_settled(undecided: dict[str, Any]) -> None:
    """A win is; a lost race is; a search that tried nothing, was cut or drowned in noise is not."""
    baseline, other = Settings(), Settings(batch_size=64)
    own = measured(baseline, 1.0)
    kept = _Answer(kept_baseline=True)

    def settled(races: list[RaceResult], tried: int = 9, finalists: tuple[Measured, ...] = (), **more: Any) -> bool:
        found = Found(baseline=more.pop("own", own), finalists=finalists, stopped="x")
        interrupted = bool(more.pop("interrupted", False))
        return unsettled_because(kept, found, races, tried=tried, interrupted=interrupted) is None

    assert settled([raced(baseline, other, LOST)])
    assert not settled([raced(baseline, other, undecided.pop("ratios", LOST), **undecided)])
    assert settled([], tried=5)
    assert not settled([], tried=4)
    assert not settled([], finalists=(own,))
    assert not settled([], own=None)
    assert not settled([raced(baseline, other, LOST)], interrupted=True)


class _Answer:
    def __init__(self, *, kept_baseline: bool) -> None:
        self.evidence = self
        self.kept_baseline = kept_baseline


def test_a_stored_answer_that_does_not_run_is_tuned_again_and_said(
    call: Call, searches: Searches, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The safe step runs out of memory: the reason is in the new answer's warnings, which replaces the old.

    See IBM/triton-dejavu#1.
    """
    first = call()
    asked: list[Probe] = []
    real = InProcess.run

    def run(box: InProcess, probe: Probe) -> Outcome:
        asked.append(probe)
        return OutOfMemory(kind=probe.kind, settings=probe.settings, where="allocator", message="no room\nx")

    monkeypatch.setattr(InProcess, "run", run)
    second = call()
    monkeypatch.setattr(InProcess, "run", real)
    assert searches.count == 2
    assert (asked[0].kind, asked[0].steps, asked[0].settings.batch_size) == ("compute", 1, first.settings.batch_size)
    assert len(asked) == 1
    assert any("was not used: a step runs out of memory (no room)" in said for said in second.evidence.warnings)


def test_a_damaged_store_costs_a_tuning_and_nothing_else(call: Call, searches: Searches, tmp_path: Path) -> None:
    """It is said, kept aside, and the next start is answered again."""
    call()
    (file,) = (tmp_path / "cache").glob("*.json")
    file.write_text("{")
    with pytest.warns(UserWarning, match="is kept as"):
        tuned = call()
    assert any("cannot be read" in said for said in tuned.evidence.warnings)
    call()
    assert searches.count == 2


def test_a_store_that_cannot_be_written_is_said(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer is returned all the same."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("AUTOTUNE_CACHE_DIR", str(tmp_path / "file" / "below"))
    assert any("was not stored" in said for said in call().evidence.warnings)


def test_off_gives_the_baseline_through_the_same_call(
    call: Call, searches: Searches, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is measured, nothing looked up, and the result trains."""
    call()
    monkeypatch.setenv("AUTOTUNE", "off")
    monkeypatch.setattr(InProcess, "run", lambda *_: pytest.fail("a probe was run"))
    tuned = call()
    assert searches.count == 1
    assert tuned.settings == tuned.baseline
    assert tuned.evidence.reason == "not tuned: AUTOTUNE=off in the environment, and nothing was measured"
    json.dumps(tuned.to_json(), allow_nan=False)
    assert "AUTOTUNE=off" in str(tuned)
    assert len(next(iter(tuned.dataloader()))[0]) == 16


def test_cached_never_tunes(call: Call, searches: Searches, monkeypatch: pytest.MonkeyPatch) -> None:
    """With nothing stored it is the baseline, said by a warning; with an answer it is that, whatever the budget."""
    monkeypatch.setenv("AUTOTUNE", "cached")
    with pytest.warns(UserWarning, match=r"AUTOTUNE=cached in the environment, and no answer is stored"):
        assert call().settings.batch_size == 16
    assert searches.count == 0
    monkeypatch.setenv("AUTOTUNE", "")
    first = call(time_budget_s=5.0)
    monkeypatch.setenv("AUTOTUNE", "cached")
    assert call(cache=False, time_budget_s=500.0).settings == first.settings
    assert searches.count == 1


def test_force_tunes_and_replaces(call: Call, searches: Searches, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stored answer is not looked at; the new one is stored."""
    call()
    monkeypatch.setenv("AUTOTUNE", "force")
    call()
    monkeypatch.delenv("AUTOTUNE")
    call()
    assert searches.count == 2


def test_an_earlier_answer_from_elsewhere_is_where_the_search_starts(searches: Searches) -> None:
    """What a re-tune has stored is tried first; it neither looks at the cache nor fills it."""
    earlier = Settings(batch_size=48, channels_last=True)
    data = TensorDataset(torch.randn(640, 4), torch.zeros(640, dtype=torch.long))
    task = Task(nn.Linear(4, 2), data, loss_fn=nn.CrossEntropyLoss(), device="cpu")
    for _ in range(2):
        tune(task, earlier=earlier, isolate=False, progress=False)
    assert searches.earlier == earlier
    assert searches.count == 2


def test_no_folder_means_no_store(call: Call, searches: Searches, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty AUTOTUNE_CACHE_DIR, as in these tests, switches the store off."""
    monkeypatch.setenv("AUTOTUNE_CACHE_DIR", "")
    call()
    call()
    assert searches.count == 2
