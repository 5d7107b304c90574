"""Fixtures that every folder may use."""

from hypothesis import settings

from tests.postgres import *  # noqa: F403 -- fixtures are found by name

# A busy machine is no counterexample: how long an example takes is never asserted.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")
