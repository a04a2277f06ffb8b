"""What is stored for a task beyond the very request: re-tunes, near machines, other rules; and what is not stored."""

from __future__ import annotations

import copy
import dataclasses
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from autotune import TunedConfig, autotune
from autotune.api.request import request_of
from autotune.api.run import Run
from autotune.hardware import Hardware, Limits
from autotune.measurement import Chunk, Measured, Outcome, OutOfMemory, Probe, TimedOut
from autotune.planner import Found
from autotune.profiles import Key, Profiles
from autotune.race import RaceResult
from autotune.sandbox import InProcess
from autotune.settings import Settings
from autotune.task import Task

Call = Callable[..., TunedConfig]
WON = (1.5, 1.52, 1.48, 1.5, 1.51)


def measured(settings: Settings, rate: float) -> Measured:
    """A trial at a steady rate."""
    return Measured(kind="joint", settings=settings, chunks=(Chunk(int(rate), 1.0),))


class Searches:
    """Stands in for search and race: counts them, and lets them end as told."""

    def __init__(self) -> None:
        self.earlier: list[Settings | None] = []
        self.ratios = WON
        self.race: dict[str, Any] = {}
        self.interrupted = False
        self.store = Profiles(Path("nowhere"))
        self.last: Run | None = None

    def go(self, run: Run) -> None:
        self.earlier.append(run.plan.earlier)
        self.last = run
        baseline = run.plan.candidates.baseline
        best = baseline.replace(batch_size=2 * (baseline.batch_size or 1))
        run.found = Found(
            baseline=measured(baseline, 100.0), finalists=(measured(best, 150.0),), stopped="every move was made"
        )
        rates = {"baseline_samples_per_s": (100.0,) * len(self.ratios)}
        rates["candidate_samples_per_s"] = tuple(100.0 * ratio for ratio in self.ratios)
        run.races = [RaceResult(baseline=baseline, candidate=best, margin=0.05, **rates, **self.race)]
        run.interrupted = self.interrupted

    @property
    def count(self) -> int:
        """Searches so far."""
        return len(self.earlier)


@pytest.fixture
def searches(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Searches]:
    """A store of the test's own, no environment, no real search."""
    monkeypatch.setenv("AUTOTUNE_CACHE_DIR", str(tmp_path / "cache"))
    stand_in = Searches()
    stand_in.store = Profiles(tmp_path / "cache")
    monkeypatch.setattr(Run, "go", lambda run: stand_in.go(run))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield stand_in
    torch.set_num_threads(threads)


@pytest.fixture
def call(searches: Searches) -> Call:
    """``autotune()`` of a toy task in this process."""
    data = TensorDataset(torch.randn(640, 4), torch.zeros(640, dtype=torch.long))

    def make(loss_fn: Any = None, **arguments: Any) -> TunedConfig:
        model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
        options = {"device": "cpu", "isolate": False, "progress": False, "base_batch_size": 16, **arguments}
        return autotune(model, data, loss_fn=loss_fn or nn.CrossEntropyLoss(), optimizer=_sgd, **options)

    return make


def _sgd(params: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(params, lr=0.1)


def moved(searches: Searches, **changes: Any) -> Hardware:
    """The one stored answer taken over to another machine."""
    (entry,) = searches.store.read().entries
    there = dataclasses.replace(Hardware.detect(device="cpu"), **changes)
    document = copy.deepcopy(entry.document)
    document["hardware"] = {**json.loads(json.dumps(there.to_json())), "fingerprint": there.fingerprint}
    Path(entry.where).unlink()
    searches.store.put(dataclasses.replace(entry.key, hardware=there.fingerprint), document, time_budget_s=500.0)
    return there


def as_retuned(searches: Searches, config: TunedConfig, **options: Any) -> Key:
    """The one stored answer as a re-tune that was asked this leaves it: under a key without rules."""
    (entry,) = searches.store.read().entries
    Path(entry.where).unlink()
    key = dataclasses.replace(entry.key, rules="")
    assert isinstance(config.task, Task)
    assert isinstance(config.hardware, Hardware)
    options = {"isolate": False, **options}
    request = request_of(config.task, config.facts, config.hardware, Limits.of(config.hardware), options)
    searches.store.put(key, entry.document, why="retune", request=request, time_budget_s=300.0)
    return key


@pytest.mark.parametrize(
    ("changes", "named"),
    [({"cores": 99}, "cores: 99 there"), ({"torch": "2.14.99+cpu"}, "torch: 2.14.99+cpu there")],
)
def test_an_answer_of_a_near_machine_is_where_the_search_starts(
    call: Call, searches: Searches, changes: dict[str, Any], named: str
) -> None:
    """Not returned, for it was not measured here; its settings are tried first, and the result says whose they were."""
    first = call()
    moved(searches, **changes)
    second = call()
    assert searches.earlier == [None, first.settings]
    (said,) = [text for text in second.evidence.warnings if text.startswith("The search started from the answer of")]
    assert "found on another machine" in said
    assert named in said


def test_a_machine_of_another_kind_is_no_start(call: Call, searches: Searches) -> None:
    """What an accelerator trains best with says little about a CPU."""
    call()
    (entry,) = searches.store.read().entries
    document = copy.deepcopy(entry.document)
    card = {"type": "cuda", "name": "A card", "index": 0, "count": 1, "memory_bytes": 2**34}
    document["hardware"] |= {"accelerator": card, "fingerprint": "sha256:card"}
    Path(entry.where).unlink()
    searches.store.put(dataclasses.replace(entry.key, hardware="sha256:card"), document, time_budget_s=500.0)
    call()
    assert searches.earlier == [None, None]


def test_other_rules_and_a_larger_budget_start_from_what_is_stored(call: Call, searches: Searches) -> None:
    """The answer to one request is a first guess for the next."""
    first = call(time_budget_s=50.0)
    second = call(max_batch_size=64)
    assert any("found under other limits or rules" in said for said in second.evidence.warnings)
    call(time_budget_s=500.0)
    assert searches.earlier == [None, first.settings, first.settings]


def test_force_and_no_cache_start_from_nothing(call: Call, searches: Searches, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever asks for a fresh tuning gets one."""
    call()
    call(cache=False)
    monkeypatch.setenv("AUTOTUNE", "force")
    call()
    assert searches.earlier == [None, None, None]


def test_what_does_not_run_here_is_no_start(call: Call, searches: Searches, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stored answer runs out of memory in its safe step: it is not tried a second time."""
    call()

    def run(box: InProcess, probe: Probe) -> Outcome:
        return OutOfMemory(kind=probe.kind, settings=probe.settings, where="allocator", message="no room")

    monkeypatch.setattr(InProcess, "run", run)
    call()
    assert searches.earlier == [None, None]


def test_safe_steps_of_several_answers_share_one_deadline(
    call: Call, searches: Searches, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first has all of it; one that hangs leaves nothing for the next, whose time the search has."""
    as_retuned(searches, call())
    deadlines: list[float] = []

    def run(box: InProcess, probe: Probe) -> Outcome:
        deadlines.append(probe.deadline_s)
        return TimedOut(kind=probe.kind, settings=probe.settings, deadline_s=probe.deadline_s, cost_s=probe.deadline_s)

    monkeypatch.setattr(InProcess, "run", run)
    call()
    assert deadlines == [30.0]
    assert searches.count == 2


def test_a_retuned_answer_to_the_same_request_is_returned(call: Call, searches: Searches) -> None:
    """As one of ``autotune()`` itself: after one safe step, with no search."""
    first = call()
    as_retuned(searches, first)
    second = call()
    assert searches.count == 1
    assert second.settings == first.settings
    assert "run for one step before it was returned" in second.evidence.reason


@pytest.mark.parametrize("options", [{"effective_batch_size": 16}, {"memory_margin": 0.2}])
def test_a_retuned_answer_to_another_request_is_a_start(
    call: Call, searches: Searches, options: dict[str, Any]
) -> None:
    """A lock or a margin that was not asked for here."""
    first = call()
    as_retuned(searches, first, **options)
    call()
    assert searches.earlier == [None, first.settings]


def test_keep_is_the_same_request_as_its_number(call: Call, searches: Searches) -> None:
    """A re-tune locks the batch by its number."""
    searches.ratios = (1.0, 1.01, 1.0, 1.01, 1.0)
    first = call(effective_batch_size="keep")
    as_retuned(searches, first, effective_batch_size=16)
    call(effective_batch_size="keep")
    assert searches.count == 1


def test_an_answer_taken_among_others_is_served_with_that_word(call: Call, searches: Searches) -> None:
    """It is returned, with what to do about it; one that was measured alone goes before it, though it be older."""
    quiet = call()
    retuned = as_retuned(searches, quiet)
    assert not any("was measured while" in said for said in call().evidence.warnings)
    document = copy.deepcopy(next(one for one in searches.store.read().entries if one.key == retuned).document)
    document["evidence"]["speedup"]["others_cores"] = 2.0
    own = dataclasses.replace(retuned, rules=_rules(searches))
    searches.store.put(own, document, time_budget_s=500.0)
    assert not any("was measured while" in said for said in call().evidence.warnings)
    searches.store.put(retuned, {**document, "schema_version": 1}, request="another")
    (said,) = [text for text in call().evidence.warnings if "was measured while" in text]
    assert "other processes used up to 2.0 cores: `torch-autotune retune` measures again" in said
    assert searches.count == 1


def test_a_win_among_others_goes_before_an_older_baseline_that_was_kept(call: Call, searches: Searches) -> None:
    """Nobody noted what that one was measured beside."""
    won = call()
    retuned = as_retuned(searches, won)
    own = dataclasses.replace(retuned, rules=_rules(searches))
    searches.ratios = (1.0, 1.01, 1.0, 1.01, 1.0)
    kept = call(cache=False)
    document = won.to_json()
    document["evidence"]["speedup"]["others_cores"] = 2.0
    searches.store.put(retuned, kept.to_json(), request=own.rules, time_budget_s=500.0)
    searches.store.put(own, document, time_budget_s=500.0)
    assert kept.evidence.kept_baseline
    assert call().settings == won.settings != kept.settings


def _rules(searches: Searches) -> str:
    """The digest of the last call's request."""
    entry = next(one for one in searches.store.read().entries if not one.key.rules)
    return str(entry.results[0]["request"])


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"interrupted": True}, "Ctrl-C ended it"),
        ({"ratios": (0.5, 2.0, 0.7, 1.9, 1.0)}, "too noisy to decide the race"),
        ({"race": {"undecided": "Not raced."}}, "the race was not decided"),
    ],
)
def test_an_answer_that_is_not_stored_says_why(
    call: Call, searches: Searches, change: dict[str, Any], why: str
) -> None:
    """Once, in its warnings; not where nothing was to be stored."""
    for name, value in change.items():
        setattr(searches, name, value)
    said = [text for text in call().evidence.warnings if "was not stored" in text]
    assert len(said) == 1
    assert why in said[0]
    assert "the next start tunes again" in said[0]
    assert not any("was not stored" in text for text in call(cache=False).evidence.warnings)


def test_a_stored_answer_says_nothing_of_storing(call: Call) -> None:
    """Nor does a store that can be written."""
    assert not any("stored" in text for text in call().evidence.warnings)


class _Restless(nn.Module):
    """A loss that is another one at each start."""

    def __init__(self, number: float) -> None:
        super().__init__()
        self.started = number

    def forward(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(output, target)


def test_a_task_that_is_another_one_at_each_start_is_noticed(call: Call) -> None:
    """After three answers that were never found again, the part that changes is named."""
    said = [call(loss_fn=_Restless(1000.0 + start)).evidence.warnings for start in range(4)]
    told = [any("another one at each start" in text for text in warnings) for warnings in said]
    assert told == [False, False, False, True]
    assert any("loss_fn: _Restless, with other code or options" in text for text in said[3])


def test_a_store_that_cannot_be_read_is_no_start_and_no_fault(call: Call, searches: Searches) -> None:
    """The call tunes as if there were none, and says so."""
    call()
    for file in searches.store.path.glob("*.json"):
        file.write_text('{"profiles_version": 99}')
    tuned = call()
    assert searches.earlier == [None, None]
    assert any("reads up to" in said for said in tuned.evidence.warnings)
