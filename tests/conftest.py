"""What holds for all tests."""

from __future__ import annotations

from hypothesis import settings

# How long an example takes says more about how busy the machine is than about the code.
settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")
