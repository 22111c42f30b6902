"""Training on a GPU: a step in few, large operations, captured once and replayed.

PyTorch casts, normalises, rectifies, penalises and updates tensor by tensor, in hundreds of small
kernels. Here a handful of kernels do the same arithmetic.
"""
