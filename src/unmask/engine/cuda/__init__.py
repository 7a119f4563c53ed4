"""What only saves time on CUDA devices: passes begun early, captured decisions, warm-up. Removable; see device.py."""
