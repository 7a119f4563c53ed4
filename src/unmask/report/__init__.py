"""From runs to tables and pictures: what was measured, how sure it is, and what the paper says of the same thing."""

from unmask.report.build import Report, report

__all__ = ["Report", "report"]
