"""Fixtures that every folder may use."""

from tests.postgres import *  # noqa: F403 -- fixtures are found by name
