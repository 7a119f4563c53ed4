"""What happened in a generation, as data."""

from unmask.trace.record import SCHEMA, Trace

__all__ = ["SCHEMA", "Trace"]
