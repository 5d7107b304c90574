"""Fixtures that every folder may use."""

import tests.hypothesis_profile  # noqa: F401 -- loads the profile that tests take their settings from
from tests.postgres import *  # noqa: F403 -- fixtures are found by name
