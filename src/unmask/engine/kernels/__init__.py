"""What only saves time: the same functions in Triton. The package works without this folder; see device.py."""
