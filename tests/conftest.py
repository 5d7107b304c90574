"""Fixtures that every folder may use."""

import gc

import tests.support.hypothesis_profile  # noqa: F401 -- loads the profile that tests take their settings from
from tests.support.logs.postgres import *  # noqa: F403 -- fixtures are found by name


def pytest_collection_finish():
    """Take what was imported and collected out of garbage collection: 0.2 s of CPU each time, in whichever test."""
    gc.collect()
    gc.freeze()
