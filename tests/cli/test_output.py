"""Two streams: the result on one, all else on the other."""

from __future__ import annotations

import io
import json

import pytest

from autotune.cli.output import Output
from autotune.errors import TaskError
from autotune.report import Progress


@pytest.fixture
def streams():
    """Stand-ins for stdout and stderr."""
    return {"stdout": io.StringIO(), "stderr": io.StringIO()}


def _event(message: str, best: float | None = None) -> Progress:
    return Progress(elapsed_s=3.0, budget_s=10.0, phase="search", message=message, best_samples_per_s=best)


def test_text_for_people(streams):
    """The result goes to stdout as text, messages to stderr."""
    output = Output(**streams)
    output.say("working")
    output.result("done", {"x": 1})
    assert streams["stdout"].getvalue() == "done\n"
    assert streams["stderr"].getvalue() == "working\n"


def test_json_is_the_only_thing_on_stdout(streams):
    """One document, whatever was said before."""
    output = Output(as_json=True, **streams)
    output.say("working")
    output.result("done", {"x": 1})
    assert json.loads(streams["stdout"].getvalue()) == {"x": 1}


def test_quiet_leaves_result_and_errors(streams):
    """No messages, no progress; errors are still said."""
    output = Output(quiet=True, **streams)
    output.say("working")
    assert output.progress() is False
    output.error(TaskError("It does not train.", "Mend it."))
    assert streams["stderr"].getvalue() == "torch-autotune: It does not train. Mend it.\n"


def test_an_error_with_json_is_a_document_too(streams):
    """Programs read what people read."""
    Output(as_json=True, **streams).error(TaskError("It does not train.", "Mend it."))
    document = json.loads(streams["stdout"].getvalue())["error"]
    assert document == {"type": "TaskError", "cause": "It does not train.", "remedy": "Mend it.", "exit_code": 3}
    assert "Mend it" in streams["stderr"].getvalue()


def test_progress_lines_stop_for_a_message_and_go_on_after_it(streams):
    """The display closes for a message, so that the two do not mix, and opens again with the next event."""
    output = Output(**streams)
    show = output.progress()
    show(_event("one"))
    output.say("between")
    show(_event("two", 512.0))
    output.close()
    lines = streams["stderr"].getvalue().splitlines()
    assert len(lines) == 3
    assert "one" in lines[0]
    assert lines[1] == "between"
    assert "two" in lines[2]
    assert "512" in lines[2]
    assert output.last_progress == _event("two", 512.0)
    assert streams["stdout"].getvalue() == ""
