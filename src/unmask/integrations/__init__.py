"""Borders to other people's engines and scripts; each module is imported by those who use it."""
