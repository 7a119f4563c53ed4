"""Measurement: recipes, benchmark and tiny tasks, scoring, and results that survive an interruption."""
