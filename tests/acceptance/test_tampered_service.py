"""The owner of the database changes it while the real service leads: events, log lines and metrics have what was found."""

from __future__ import annotations

import json
import re
import urllib.request
from pathlib import Path

import asyncpg
import pytest
import yaml

from extender.store.connections import plain_url
from extender.store.embedded.embedded_server import EmbeddedPostgres
from tests.acceptance.test_process_kills import a_service
from tests.support import waiting
from tests.support.logs.postgres import run
from tests.support.logs.tampering import tamper
from tests.support.service import fork_server
from tests.support.service.command_line import run_command
from tests.support.service.manifest_builders import a_gang

pytestmark = pytest.mark.postgres
PAUSES = {
    f"control.monitors.log_verifier.{name}": 1.0 for name in ("FIRST_AFTER_S", "PASS_EVERY_S")
}
# What is found -> what is done, and words of the message.
BESIDE_THE_LOG = {
    "forged-projection": ("UPDATE gx.gang_state SET priority = 7", "by the log it is 0"),
    "forged-reference": ("DELETE FROM gx.event_reference", "gx.event_reference lacks node"),
    "missing-input": ("DELETE FROM gx.decision_input", "although nothing was pruned since"),
    "forged-definition": ("ALTER VIEW gx.v_event SET (security_invoker = true)", "it is not what the migrations make"),
}  # fmt: skip
IN_THE_LOG = {
    "edited-row": ("UPDATE gx.event SET actor = 'someone' WHERE type = 'GangObserved'", "a column of the row was changed"),
}  # fmt: skip


async def owner_url(folder):
    """Return the URL of the superuser of an embedded server that runs."""
    server = EmbeddedPostgres(folder)
    url = await server.start()
    await server.stop()  # the service owns it
    return url


async def behind(url):
    """Return how many events are not in the index of names or not in the interval tables yet."""
    connection = await asyncpg.connect(plain_url(url))
    try:
        return await connection.fetchval(
            "SELECT (SELECT max(position) FROM gx.event) - least((SELECT position FROM gx.projection), "
            "(SELECT position FROM gx.event_reference_cursor))"
        )
    finally:
        await connection.close()


def metrics(service):
    with urllib.request.urlopen(f"{service.url}/metrics") as reply:
        text = reply.read().decode()
    return dict(
        re.findall(r'^gang_extender_log_findings\{kind="([^"]+)"\} (\S+)$', text, re.MULTILINE)
    )


def drift_lines(service):
    lines = (json.loads(line) for line in service.log.read_text().splitlines() if '"drift"' in line)
    return {line["kind"]: line for line in lines if line["message"] == "drift"}


def until_found(service, ways):
    """Wait until events have every kind, and compare them with log lines and metrics."""

    def found():
        events = service.get("/v1/events?type=DriftDetected&limit=1000")
        data = {event["data"]["kind"]: event["data"] for event in events}
        return data if set(ways) <= set(data) else None

    data = waiting.until(found, f"findings {sorted(ways)}", every_s=0.5, state=service.tail)
    lines, counts = drift_lines(service), metrics(service)
    for kind, (_, words) in ways.items():
        message = data[kind]["message"]
        assert words in message
        assert "keep this database, copy it first" in message
        assert (lines[kind]["level"], lines[kind]["detail"]) == ("ERROR", message)
        assert float(counts[kind]) >= 1, counts
    return data


def test_a_leader_finds_what_is_changed_beside_the_log_and_in_it():
    """Four ways at once, each with its own finding; then a row of the log, which the others follow from or not."""
    with fork_server.shortened(PAUSES), a_service() as service:
        gang = a_gang("g", pods=2, requests={"cpu": 1})
        (service.manifests / "g.yaml").write_text(yaml.safe_dump_all(gang))
        service.start()
        admitted = lambda: service.get("/v1/events?type=GangAdmitted")
        waiting.until(admitted, "the gang is admitted", every_s=0.2, state=service.tail)
        url = run(owner_url(Path(service.environ["GANG_EXTENDER_DATA_DIR"])))
        waiting.until(
            lambda: run(behind(url)) == 0, "index and intervals are made", every_s=0.2, state=service.tail
        )  # fmt: skip
        run(tamper(url, *(statement for statement, _ in BESIDE_THE_LOG.values())))
        found = until_found(service, BESIDE_THE_LOG)
        assert set(found) == set(BESIDE_THE_LOG)
        verified = run_command("verify", "--server", service.url)
        assert verified.returncode == 1, verified
        assert verified.stdout.startswith("the log does not verify, up to position ")
        for kind, (_, words) in BESIDE_THE_LOG.items():
            assert re.search(rf"^{kind} at .*{re.escape(words)}", verified.stdout, re.MULTILINE)
        status = run_command("status", "--server", service.url)
        assert status.returncode == 1
        assert status.stdout.startswith("WRONG: the log does not verify: ")
        run(tamper(url, *(statement for statement, _ in IN_THE_LOG.values())))
        until_found(service, IN_THE_LOG)
        assert float(metrics(service)["forged-definition"]) >= 1
        assert service.process.poll() is None


def test_a_leader_whose_table_is_renamed_ends_and_the_database_is_to_be_kept():
    """A column of the log has another name: no line advises a change first, and the next start changes nothing."""
    with fork_server.shortened(PAUSES), a_service() as service:
        service.start()
        url = run(owner_url(Path(service.environ["GANG_EXTENDER_DATA_DIR"])))
        run(tamper(url, "ALTER TABLE gx.event RENAME COLUMN actor TO author"))
        ended = lambda: service.process.poll() is not None
        waiting.until(ended, "the service has ended", every_s=0.2, state=service.tail)
        text = service.log.read_text()
        assert "keep this database, copy it first" in text
        assert text.count("db migrate") == text.count(
            "copy it first: it was changed; else run `gang-extender db migrate`"
        )
        verified = service.run("verify")
        assert verified.returncode == 1, verified
        assert "what to do: keep this database, copy it first" in verified.stdout
