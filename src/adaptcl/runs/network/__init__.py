"""A run across machines: what the server and a worker do before and after it."""
