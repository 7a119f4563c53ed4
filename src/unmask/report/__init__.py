"""From runs to tables and figures: what was measured, how sure it is, and what the paper prints for it."""

from unmask.report.build import Report, report

__all__ = ["Report", "report"]
