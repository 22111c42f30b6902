"""AdaptCL, the paper's strategy: Algorithm 1 (server side) and Algorithm 2."""

from adaptcl.strategies.adaptcl.adaptcl_server import AdaptCL, AdaptCLSettings

__all__ = ["AdaptCL", "AdaptCLSettings"]
