"""The options of the commands that list something, on a database with the log of a day, and on a running service."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess

import pytest
import yaml

from tests.support.logs.example_log import BATCH, TRAIN, write_tuesday
from tests.support.logs.postgres import fresh_database, run
from tests.support.service import fork_server
from tests.support.service.command_line import run_command
from tests.support.service.manifest_builders import a_fleet, a_gang
from tests.support.service.replicas import Replica

pytestmark = pytest.mark.postgres


@pytest.fixture(scope="module")
def tuesday_url(postgres_url, template_database):
    with fresh_database(postgres_url, template=template_database) as url:
        run(write_tuesday(url))
        yield url


@pytest.fixture
def command(tuesday_url, tmp_path):
    """Run the program in this process on the log of that day."""

    def call(*words):
        return run_command(
            *words, GANG_EXTENDER_DATABASE_URL=tuesday_url, GANG_EXTENDER_DATA_DIR=str(tmp_path)
        )

    return call


@pytest.fixture(scope="module")
def service(tmp_path_factory, postgres_url, template_database):
    """A process of `serve` with one gang, and the folder of its manifests."""
    folder = tmp_path_factory.mktemp("manifests")
    gang = a_gang("g", pods=2)
    gang[0]["metadata"]["labels"] = {"team": "a"}
    (folder / "fleet.yaml").write_text(yaml.safe_dump_all(a_fleet("4 nodes", gpu=2)))
    (folder / "g.yaml").write_text(yaml.safe_dump_all(gang))
    with fresh_database(postgres_url, template=template_database) as url:
        served = Replica(tmp_path_factory.mktemp("serve"), url, folder, "a", lease_duration_s=15)
        try:
            run(served.until_leads())
            run(served.until_events("?type=GangAdmitted"))
            yield served, folder, url
        finally:
            served.end()


SPAN = ("--since", "2026-11-17", "--until", "2026-11-18")
LISTS = {
    "events": ("events", *SPAN),
    "history": ("history", TRAIN, *SPAN),
    "preemptions": ("preemptions", *SPAN),
    "report": ("report", "terminations", *SPAN),
    "state": ("state",),
}


@pytest.mark.parametrize("words", LISTS.values(), ids=LISTS)
def test_every_list_has_the_forms_and_their_names(command, words):
    """wide has the columns of table and more, name one word per row, and no titles means no titles."""
    table, wide, names, bare = (
        command(*words, *more) for more in ((), ("-o", "wide"), ("-o", "name"), ("--no-headers",))
    )
    for done in (table, wide, names, bare):
        assert (done.returncode, done.stderr) == (0, ""), done
    narrow_titles, wide_titles = (
        next(line for line in done.stdout.splitlines() if line.isupper()) for done in (table, wide)
    )
    assert {*narrow_titles.split()} <= {*wide_titles.split()}
    assert len(narrow_titles) < len(wide_titles)
    assert narrow_titles not in bare.stdout
    assert names.stdout.splitlines()
    assert all(" " not in line for line in names.stdout.splitlines())


@pytest.mark.parametrize("words", LISTS.values(), ids=LISTS)
def test_times_are_of_a_named_zone(command, words):
    """Every list has a column of times, in UTC; `state` with -o wide."""
    titles = command(*words, "-o", "wide").stdout
    assert " (UTC)" in titles


@pytest.mark.parametrize("words", LISTS.values(), ids=LISTS)
@pytest.mark.parametrize(
    ("option", "sentence"),
    [
        (("--sort-by", "xyz"), "--sort-by: 'xyz' is not a column; there are "),
        (("-o", "csv"), "--output: 'csv' is not one of 'table', 'wide', 'name', 'json', 'yaml'; "),
    ],
)
def test_wrong_options_are_named_before_the_database_is_read(command, words, option, sentence):
    done = command(*words, *option)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"gang-extender: {sentence}")


def test_rows_are_sorted_by_a_column(command):
    """By values, not by texts: 10 comes after 9."""
    names = [
        [int(name) for name in command("events", "-o", "name", "--sort-by", by).stdout.split()]
        for by in ("position", "-position", "time")
    ]
    assert names[0] == names[2] == sorted(names[0])
    assert names[1] == names[0][::-1]
    assert len(names[0]) > 10
    by_name = json.loads(command("events", "-o", "json", "--sort-by", "gang").stdout)
    gangs = [event["gang"] for event in by_name if event["gang"]]
    assert gangs == sorted(gangs)


def test_a_span_restricts_every_list_of_the_log(command):
    """The preemption of that day was planned at 8:30 UTC and ended two minutes later."""
    early = ("--since", "2026-11-17T08:00:00Z", "--until", "2026-11-17T08:29:59Z")
    late = ("--since", "2026-11-17T08:30:00Z", "--until", "2026-11-17T08:31:00Z")
    assert command("preemptions", *early).stderr == "No preemptions match.\n"
    (line,) = json.loads(command("preemptions", *late, "-o", "json").stdout)
    assert line["outcome"] == "completed"
    for words in (("events",), ("history", TRAIN)):
        times = [
            [e["time"] for e in json.loads(command(*words, *span, "-o", "json").stdout)]
            for span in (early, late)
        ]
        assert all(time < "2026-11-17T08:30" for time in times[0])
        assert all("2026-11-17T08:30" <= time <= "2026-11-17T08:31:00.000000Z" for time in times[1])
        assert all(times)
    assert command("history", TRAIN, "--until", "2026-11-01").stdout == ""


def test_preemptions_are_filtered_by_outcome_and_namespace(command):
    """A namespace is that of the preemptor or of a victim."""
    for words, count in (
        (("--state", "completed"), 1),
        (("--state", "pending,cancelled"), 0),
        (("-n", "team-a"), 1),
        (("-n", "team-b"), 1),
        (("-n", "research"), 0),
        (("-n", "research", "-A"), 1),
        (("--victim", BATCH, "--state", "completed"), 1),
        (("--victim", "batch", "-n", "team-b"), 1),
        (("--victim", "batch"), 1),  # the only namespace that has it
    ):
        done = command("preemptions", *words, "-o", "json")
        assert (done.returncode, len(json.loads(done.stdout))) == (0, count), words


def test_a_state_is_filtered_by_the_states_of_gangs(command):
    """Nodes and sums are those of the gangs that remain."""
    whole = json.loads(command("state", "-o", "json").stdout)
    states = {gang["state"] for gang in whole["gangs"]}
    assert len(states) > 1
    for state in states:
        part = json.loads(command("state", "--state", state, "-o", "json").stdout)
        wanted = [gang for gang in whole["gangs"] if gang["state"] == state]
        assert part["gangs"] == wanted
        assert part["totals"]["gangs"] == len(wanted)
        assert {pod["gang"] for node in part["nodes"] for pod in node["pods"]} <= {
            gang["gang"] for gang in wanted
        }


def test_a_service_gives_the_same_lists_as_its_database(service):
    """Byte by byte, for programs: /v1 has the same filters as the command line."""
    served, _, url = service
    for words in (
        ("preemptions",),
        ("state", "-n", "default", "--state", "admitted"),
        ("state", "--at", "1", "--diff", "3"),
        ("events", "--type", "GangAdmitted"),
        ("events", "--since", "1d", "--until", "now", "-n", "default", "--limit", "2"),
        ("history", "g", "--since", "today"),
        ("history", "default/g", "--decisions"),
        ("report", "decisions", "--since", "2026-11-01", "--until", "2026-11-02"),
    ):
        asked = run_command(*words, "-o", "json", "--server", served.url)
        read = run_command(*words, "-o", "json", "--database-url", url)
        assert (asked.returncode, asked.stderr) == (0, read.stderr), asked
        assert asked.stdout == read.stdout
    both = run_command("preemptions", "--server", served.url, "--database-url", url)
    assert (both.returncode, both.stdout) == (2, "")
    assert "asks a service, so not together with a database" in both.stderr


def test_gangs_are_selected_by_labels_and_states(service):
    """The labels of the PodGroup in the manifest; what nothing matches is a sentence on stderr."""
    served, _, _ = service
    for words, names in (
        (("-l", "team=a"), ["PodGroup/default/g"]),
        (("-l", "team in (b,c)"), []),
        (("-l", "!team"), []),
        (("--state", "admitted,scheduled"), ["PodGroup/default/g"]),
        (("--state", "invalid"), []),
        (("-n", "other"), []),
        (("-n", "other", "-A"), ["PodGroup/default/g"]),
    ):
        done = run_command("gangs", *words, "-o", "name", "--server", served.url)
        assert (done.returncode, done.stdout.split()) == (0, names), done
    done = run_command("gangs", "-n", "x", "--state", "invalid", "--server", served.url)
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr == "No gangs in namespace 'x' in state invalid.\n"
    header, row = run_command("gangs", "--server", served.url).stdout.splitlines()
    assert "AGE" in header.split()
    assert row.split()[7].endswith(("s", "m"))


def test_following_ends_after_the_limit(service):
    """By itself, with the events that a list has: from the database and from the service."""
    served, _, url = service
    words = ["events", "--after", "1", "--limit", "2", "-o", "name"]
    for source in (("--server", served.url), ("--database-url", url)):
        listed, followed = (
            run_command(*words, *source, *more).stdout for more in ((), ("--follow",))
        )
        assert listed == followed == "2\n3\n"


@contextlib.contextmanager
def watching(*words):
    """Run a command that watches; its lines are read as it prints them, and Ctrl-C must end it with 0."""
    with fork_server.run(
        words, os.environ, subprocess.PIPE, errors=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process.stdout
            process.send_signal(signal.SIGINT)
            _, err = process.communicate()
            assert (process.returncode, err) == (0, "")
        finally:
            process.kill()


@pytest.mark.parametrize("name", ["gangs", "state"])
def test_a_watch_prints_rows_that_are_new_changed_and_gone_until_ctrl_c(service, name):
    served, folder, _ = service
    manifest = folder / f"{name}.yaml"
    with watching(name, "--watch", "--server", served.url) as lines:
        assert lines.readline().startswith("GANG ")
        assert lines.readline().startswith("default/g ")
        manifest.write_text(yaml.safe_dump_all(a_gang(f"new-{name}", pods=1)))
        states = [next(lines).split()[:4] for _ in range(1)]
        manifest.unlink()
        while states[-1][3] != "removed":
            states.append(next(lines).split()[:4])
    assert {state[0] for state in states} == {f"default/new-{name}"}
    assert states[0][3] in {"observed", "admitted"}
