"""What `docker compose up` runs, run natively: same flags, same one-shot, the example tree bound."""

from __future__ import annotations

import asyncio
import sys

import pytest

from tests.e2e.scenarios.conftest import Story
from tests.e2e.scenarios.service import ROOT
from tests.support.waiting import answer_of

pytestmark = [pytest.mark.e2e, pytest.mark.lived_in("long")]


@pytest.mark.full
async def test_the_one_shot_prints_the_example_tree_bound(story: Story) -> None:
    """deploy/compose/demo.py creates nodes and tree; exit 0 means that the minimum was scheduled.

    It may run again, as in the head of docker-compose.yml: what is bound stays where it is.
    """
    first = await play(story)
    bound = await story.bound("serve-")
    assert len(bound) >= 8
    again = await play(story)
    for text in (first, again):
        for pod, node in bound.items():
            assert any(pod in line and node in line for line in text.splitlines()), text
    assert bound.items() <= (await story.bound("serve-")).items(), (
        "what finds capacity later is more"
    )
    await story.check_events()


async def play(story: Story) -> str:
    """Run the demo once and give what it printed; it must end well."""
    environ = story.service.command_environ | {
        "KUBECONFIG": str(story.plane.kubeconfig("admin")),
        "GANG_EXTENDER_SERVER": story.service.url,
    }
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(ROOT / "deploy" / "compose" / "demo.py"),
        env=environ,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    out, _ = await answer_of(process.communicate(), "the end of the demo")
    assert process.returncode == 0, out.decode()
    return out.decode()
