"""A service with a key for its anchors in a cluster: what it publishes with the rights of deploy/, and what that finds.

The owner of the database deletes the newest event twice: while the service runs, and while it is stopped.
"""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest

from extender.cli.certificates.certificate_folder import CertificateFolder
from extender.core.log.anchors import Anchor, decode_anchors
from extender.runtime.log_keys import LogKeys, parse_keys, public_blocks
from tests.controlplane.api import ApiError
from tests.e2e.scenarios.conftest import Story
from tests.support.certificates import certificate_folder
from tests.support.logs.tampering import tamper
from tests.support.service.command_line import run_command
from tests.support.service.manifest_builders import a_gang, a_node

pytestmark = [pytest.mark.e2e, pytest.mark.lived_in("never")]
CONFIG_MAP = "/api/v1/namespaces/gang-extender/configmaps/gang-extender-log"
CPU = {"cpu": 1}
DELETED = "gang_extender_history_truncated_total"


@pytest.fixture(scope="module", autouse=True)
def _programs() -> None:
    """No second control plane, which the other tests of this folder have."""


@pytest.fixture
def certificates(tmp_path: Path) -> CertificateFolder:
    """The certificates of the story."""
    return certificate_folder(tmp_path / "certificates")


@pytest.fixture(autouse=True)
def key_file(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The key as `gang-extender keys` makes it; the service of the story has it."""
    path = tmp_path / "anchor.key"
    done = run_command("keys", str(path))
    assert done.returncode == 0, done.stderr
    request.node.add_marker(pytest.mark.settings(anchor_key_file=str(path), lease_duration_s="4"))
    return path


class Auditor:
    """An administrator of the cluster with `gang-extender verify`, kubectl, and the public keys alone."""

    def __init__(self, story: Story, url: str, key_file: Path, folder: Path) -> None:
        self._story, self._url = story, url
        text = key_file.read_bytes()
        self.keys: LogKeys = parse_keys(text, "test")
        self._public = folder / "anchors.pub"
        self._public.write_bytes(public_blocks(text, "test"))
        programs = folder / "bin"
        programs.mkdir()
        (programs / "kubectl").symlink_to(story.plane.binaries / "kubectl")
        self._environ = {
            "PATH": f"{programs}:{os.environ['PATH']}",
            "KUBECONFIG": str(story.plane.kubeconfig("admin")),
        }

    def verified(self) -> tuple[int, dict[str, Any]]:
        """Return the exit code and the report of `verify` with the anchors of the cluster."""
        words = ("--anchors", "cluster", "--keys", str(self._public), "-o", "json")
        done = run_command("verify", "--database-url", self._url, *words, **self._environ)
        assert done.stdout, done
        return done.returncode, json.loads(done.stdout)

    async def verifies(self) -> tuple[int, dict[str, Any]]:
        """The same in a thread, while the service speaks through a proxy of this process."""
        return await asyncio.to_thread(self.verified)

    async def published(self) -> tuple[Anchor, ...]:
        """Return the anchors in the ConfigMap; none before the first are published."""
        try:
            found = await self._story.api.get(CONFIG_MAP)
        except ApiError as error:
            if error.reason != "NotFound":
                raise
            return ()
        return decode_anchors(json.dumps(found["data"]).encode())

    async def until_published(self) -> int:
        """Wait until the whole log is published; return its end."""
        story = self._story

        async def whole() -> int:
            end = len(await story.service.events())
            anchors = await self.published()
            return end if anchors and anchors[-1].position == end else 0

        end: int = await story.until(whole)
        return end


async def delete_newest(url: str, position: int) -> None:
    """Delete the newest event and what was made of it, as the owner of the database can."""
    await tamper(
        url,
        f"DELETE FROM gx.event WHERE position >= {position}",
        f"DELETE FROM gx.snapshot WHERE position >= {position}",
        "SELECT gx.reset_projection()",
    )


def kinds(report: dict[str, Any]) -> list[str]:
    return [finding["kind"] for finding in report["findings"]]


async def until_scheduled(story: Story, name: str) -> None:
    await story.create(*a_gang(name, pods=2, requests=CPU))
    await story.until_event("GangScheduled", f"default/{name}")


@pytest.mark.full
@pytest.mark.kubernetes("1.37", "1.36")
async def test_a_deleted_tail_is_found_by_what_the_service_signed(
    story: Story, key_file: Path, database_url: str, tmp_path: Path
) -> None:
    """Signed anchors under the shipped rights; a deletion is found while the service runs, by `verify`, and after a restart."""
    auditor = Auditor(story, database_url, key_file, tmp_path)
    await story.create(a_node("n1", cpu="32"))
    await until_scheduled(story, "a")
    end = await auditor.until_published()
    assert {auditor.keys.check(one) for one in await auditor.published()} == {"valid"}
    code, report = await auditor.verifies()
    assert (code, kinds(report), report["verified_position"]) == (0, [], end)
    assert report["signed"] == report["anchors"] > 0
    assert await story.service.metric(DELETED) == 0

    await delete_newest(database_url, end)
    found = (await story.until_event("HistoryTruncated"))["data"]
    assert (found["evidence"], found["known_position"]) == ("memory", end)
    assert "tail-deleted" in found["message"]
    assert await story.service.metric(DELETED) == 1
    (line,) = story.service.lines("history lost")
    assert line["level"] == "ERROR"
    await story.until(story.service.ready)
    await auditor.until_published()  # which excuses the anchors from before the loss

    await until_scheduled(story, "b")  # it goes on
    await asyncio.to_thread(story.service.stop)
    end = (await auditor.published())[-1].position  # published by the stop
    await delete_newest(database_url, end)
    code, report = await auditor.verifies()
    assert (code, kinds(report)) == (1, ["tail-deleted"])
    assert len(report["losses"]) == 1, "the first one"

    await story.service.start()
    found = (await story.until_event("HistoryTruncated", after=end - 1))["data"]
    assert (found["evidence"], found["known_position"]) == ("published", end)
    assert "tail-deleted" in found["message"]
    assert await story.service.metric(DELETED) == 1
    await until_scheduled(story, "c")
    await story.until_bound(6)
    await auditor.until_published()
    code, report = await auditor.verifies()
    assert (code, kinds(report), len(report["losses"])) == (0, [], 2)
    await asyncio.to_thread(story.service.stop)
