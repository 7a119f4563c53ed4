"""What may be reused between forward passes."""
