"""What only saves time: the same operations in Triton, and passes captured as CUDA graphs. Removable; see device.py."""
