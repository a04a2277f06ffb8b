"""Where the command's text goes: the result to stdout, all else to stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager, ExitStack
from typing import TYPE_CHECKING, Any, TextIO

from autotune.errors import AutotuneError

if TYPE_CHECKING:
    from autotune.report import Progress
    from autotune.report.narrator import ProgressOption

__all__ = ["Output"]


class Output:
    """The command's two streams.

    Args:
        as_json: The result is one JSON document.
        quiet: No messages and no progress.
        stdout: For the result; None is ``sys.stdout`` as it is now.
        stderr: For all else; None is ``sys.stderr`` as it is now.
    """

    def __init__(
        self, *, as_json: bool = False, quiet: bool = False, stdout: TextIO | None = None, stderr: TextIO | None = None
    ) -> None:
        self.as_json = as_json
        self.quiet = quiet
        self.stdout = stdout or sys.stdout
        self.stderr = stderr or sys.stderr
        self.last_progress: Progress | None = None
        self.wrote: str | None = None
        self._live = _Live()

    def say(self, message: str) -> None:
        """A message for people, unless quiet."""
        self._live.close()
        if not self.quiet:
            print(message, file=self.stderr, flush=True)

    def result(self, text: str, document: Any) -> None:
        """The result: ``text`` for people, or ``document`` as JSON."""
        self._live.close()
        self.stdout.write(json.dumps(document, indent=2, allow_nan=False) if self.as_json else text)
        self.stdout.write("\n")
        self.stdout.flush()

    def error(self, error: AutotuneError) -> None:
        """Cause and remedy on stderr, quiet or not; with JSON also as the document."""
        described = {"type": type(error).__name__, "cause": error.cause, "remedy": error.remedy}
        self._failed(str(error), {**described, "exit_code": error.exit_code})

    def interrupted(self, found: str, exit_code: int) -> None:
        """What there is to say after Ctrl-C."""
        described = {"type": "KeyboardInterrupt", "cause": "Interrupted.", "remedy": found, "exit_code": exit_code}
        self._failed(f"Interrupted. {found}", described)

    def progress(self) -> ProgressOption:
        """What to pass as ``progress`` to ``tune``: a live display on stderr until the next message; False if quiet."""
        if self.quiet:
            return False
        from autotune.report import LiveProgress

        display = LiveProgress(self.stderr)
        live = self._live

        def show(event: Progress) -> None:
            self.last_progress = event
            if live.is_closed:
                live.open(display)
            display(event)

        return show

    def close(self) -> None:
        """Take the live display off the screen."""
        self._live.close()

    def _failed(self, text: str, document: Mapping[str, Any]) -> None:
        self._live.close()
        print(f"torch-autotune: {text}", file=self.stderr, flush=True)
        if self.as_json:
            self.result("", {"error": document})


class _Live:
    """A display that is opened by an event and closed by a message."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self.is_closed = True

    def open(self, display: AbstractContextManager[Any]) -> None:
        self._stack.enter_context(display)
        self.is_closed = False

    def close(self) -> None:
        self._stack.close()
        self.is_closed = True
