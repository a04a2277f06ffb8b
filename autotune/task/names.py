"""Names of classes and functions for people and for hashes."""

from __future__ import annotations

from typing import Any

__all__ = ["qualified_name"]


def qualified_name(value: Any) -> str:
    """Module and qualified name of a class or function, or of the class of anything else.

    Args:
        value: Anything.

    Returns:
        Such as ``torch.nn.modules.linear.Linear``.
    """
    named = value if isinstance(value, type) or hasattr(value, "__qualname__") else type(value)
    return f"{getattr(named, '__module__', '?')}.{named.__qualname__}"
