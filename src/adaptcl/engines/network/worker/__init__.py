"""The worker's side of the network."""
