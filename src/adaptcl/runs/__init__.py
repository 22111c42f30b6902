"""A run: its session, its folder on disk and what comes of it."""
