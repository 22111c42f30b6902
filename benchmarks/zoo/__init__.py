"""How far models that nobody wrote for AdaptCL can be cut, beside Torch-Pruning."""
