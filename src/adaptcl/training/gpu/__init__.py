"""A training step on a GPU in few, large operations.

What PyTorch does in hundreds of small kernels (casting every weight, normalising, clipping,
penalising, updating, tensor by tensor) is done here in a handful, with the same arithmetic.
"""
