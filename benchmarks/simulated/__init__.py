"""Machines, tasks and a clock that exist as formulae only: search strategies are compared on them in seconds."""
