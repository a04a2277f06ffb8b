"""The demo's story: data, tuning, two trainings, within its time."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from autotune.demo import run


@pytest.fixture
def stage(monkeypatch, tmp_path):
    """Everything around the story replaced; what happened is noted in order."""
    seen = SimpleNamespace(events=[], limit_s=None, options=None, now=0.0, tuning_s=55.0)

    def demo_task(cache_dir, *, say):
        seen.events.append(("task", cache_dir))
        return "task"

    def tune(task, **options):
        seen.events.append(("tune", task))
        seen.options = options
        seen.now += seen.tuning_s
        return "config"

    def compare(task, config, *, limit_s, say, clock):
        seen.events.append(("compare", task))
        seen.limit_s = limit_s
        return "comparison"

    for name, fake in (("demo_task", demo_task), ("tune", tune), ("compare", compare)):
        monkeypatch.setattr(run, name, fake)
    return seen


def test_tunes_hands_over_then_trains(stage):
    """The configuration is handed over as soon as it is known, before the trainings."""

    def tuned(config):
        stage.events.append(("tuned", config))

    result = run.run_demo(cache_dir="here", progress=False, tuned=tuned, clock=lambda: stage.now)
    assert result == "comparison"
    assert stage.events == [("task", "here"), ("tune", "task"), ("tuned", "config"), ("compare", "task")]
    assert stage.options == {"time_budget_s": 55.0, "progress": False}


def test_no_training_after_an_interruption(stage):
    """Whoever gets the configuration may end the demo there."""

    def tuned(config):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run.run_demo(tuned=tuned, clock=lambda: stage.now)
    assert "compare" not in dict(stage.events)


@pytest.mark.parametrize(("tuning_s", "limit_s"), [(20.0, 30.0), (90.0, 25.0), (500.0, 5.0)])
def test_the_trainings_get_what_time_is_left(stage, tuning_s, limit_s):
    """At most 30 s each, at least 5 s, and less when the stages before took long."""
    stage.tuning_s = tuning_s
    run.run_demo(clock=lambda: stage.now)
    assert stage.limit_s == limit_s


def test_stages_are_said(stage):
    """People hear what goes on and how long it may take."""
    said: list[str] = []
    run.run_demo(say=said.append, clock=lambda: stage.now)
    assert said == ["Tuning for at most 55 s."]
