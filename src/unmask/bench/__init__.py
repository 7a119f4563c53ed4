"""Measurements of speed and memory, each a library function that the command line prints."""
