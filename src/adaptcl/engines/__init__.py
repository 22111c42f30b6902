"""The loop of a run, and the transports that carry its tasks."""
