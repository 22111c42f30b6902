"""Tracing: one forward pass tells which units a model has."""
