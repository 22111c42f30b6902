"""What a CPU computes faster than PyTorch does by itself."""
