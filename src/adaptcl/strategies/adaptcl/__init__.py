"""AdaptCL: the paper's own strategy, Algorithms 1 (server side) and 2."""

from adaptcl.strategies.adaptcl.server import AdaptCL, AdaptCLSettings

__all__ = ["AdaptCL", "AdaptCLSettings"]
