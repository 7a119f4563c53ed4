"""What happened in a generation, as data."""
