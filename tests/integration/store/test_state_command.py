"""`gang-extender state` and `db project` on a real database: what people read, what programs get, exit codes."""

from __future__ import annotations

import json

import pytest

from extender.core.model.message_formatting import rfc3339
from tests.support.logs.bulk_log import copy_events, writing_connection
from tests.support.logs.postgres import fresh_database, run
from tests.support.logs.short_log import at_us, story
from tests.support.service.command_line import run_command

pytestmark = pytest.mark.postgres


@pytest.fixture(scope="module")
def story_url(postgres_url, template_database):
    async def fill(url):
        connection = await writing_connection(url)
        await copy_events(connection, list(story()))
        await connection.close()

    with fresh_database(postgres_url, template=template_database) as url:
        run(fill(url))
        yield url


@pytest.fixture
def command(story_url, tmp_path):
    """Run the program in this process; return (exit code, stdout, stderr)."""
    data = str(tmp_path / "data")

    def call(*words):
        done = run_command(
            *words, GANG_EXTENDER_DATABASE_URL=story_url, GANG_EXTENDER_DATA_DIR=data
        )
        return done.returncode, done.stdout, done.stderr

    return call


def test_for_people(command):
    code, out, err = command("state", "--at", rfc3339(at_us(65)))
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == (
        "position 9, 2026-09-21T14:14:20.000000Z (asked for 2026-09-21T14:14:25.000000Z): gangs 2 (pending 1), "
        "members reserved 0, bound 2, nodes 2"
    )
    assert lines[1] == "the log ends at position 14, 2026-09-21T14:15:00.000000Z"
    assert "other/high" in out
    assert "preempting" in out
    assert "waits for its preemption to finish" in out
    assert (
        "preemption for other/high since 2026-09-21T14:14:20.000000Z: 0 victims gone, 1 to go"
        in out
    )
    assert "Ordinary pods are not in the log" in out


def test_a_node_for_people(command):
    code, out, _ = command("state", "--at", "4", "--node", "n1")
    assert code == 0
    (line,) = [line for line in out.splitlines() if line.startswith("n1")]
    assert line.split() == ["n1", "ns/low", "ns/a", "bound", "nvidia.com/gpu", "2"]


def test_what_changed_for_people(command):
    code, out, _ = command("state", "--at", "6", "--diff", rfc3339(at_us(80)))
    assert code == 0
    assert "from position 6" in out
    assert "to   position 12" in out
    (line,) = [line for line in out.splitlines() if line.startswith("ns/h")]
    assert line.split() == ["ns/h", "other/high", "-", "reserved", "on", "n1"]


def test_for_programs(command):
    code, out, err = command("state", "--at", "9", "--domain", "rack=r1", "-o", "json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert [node["node"] for node in found["nodes"]] == ["n1"]
    assert found["scope"] == {"node": "", "domain": {"rack": "r1"}, "namespace": "", "states": []}
    code, out, _ = command("state", "-n", "ns", "-o", "yaml")
    assert code == 0
    assert "ns/stray" in out


@pytest.mark.parametrize(
    ("words", "code", "expected"),
    [
        (
            ("--at", "2026-09-21T10:00"),
            2,
            "--at: '2026-09-21T10:00' is neither a position, a time with offset nor a span before now; write one like 17, 90m, 2h, 3d",
        ),
        (("--at", "2199-01-01T00:00:00Z"), 2, "is in the future; the log ends at position 14"),
        (("--at", "2020-01-01T00:00:00Z"), 2, "the log begins at 2026-09-21T14:13:20.000000Z"),
        (("--at", "15"), 2, "position 15 is not in the log"),
        (("--diff", "16"), 2, "--diff: position 16 is not in the log"),
        (("--domain", "rack"), 2, "--domain: 'rack' is not KEY=VALUE"),
        (("--node", "n7"), 1, "node n7: the log has no member that was reserved or bound there"),
        (
            ("--domain", "rack=r9"),
            1,
            "domain rack=r9: the log has no node with the value 'r9' of this label",
        ),
        (("-n", "absent"), 1, "namespace absent: the log has no gang in it"),
    ],
)
def test_faults(command, words, code, expected):
    """Nothing on stdout, what is wrong on stderr."""
    ended, out, err = command("state", *words)
    assert (ended, out) == (code, "")
    assert expected in err


def test_the_tables_are_made_and_made_again(command, story_url):
    """Before, a node is only known by what is there now; afterwards by all that ever was."""
    command("db", "project", "--rebuild")
    code, out, _ = command("db", "project")
    assert (code, out) == (0, "projected up to position 14; 0 snapshots made\n")
    code, out, _ = command("state", "--at", "1", "--node", "n1")
    assert (code, "No gangs there." in out) == (0, True)
