"""What happens in the child: live objects of one setting, and the windows in which they are measured."""

from autotune.trial.bench import Bench

__all__ = ["Bench"]
