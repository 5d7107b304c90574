"""Each command of documents and alert pages that asks about the service, from a laptop: its URL, and neither a database nor a folder."""

from __future__ import annotations

import json
import shlex
import subprocess
import tarfile

import pytest
import yaml

from extender.cli.main import COMMANDS, imported_command
from extender.http.v1.status_api import LEADER_PATH
from extender.queries.state.service_status import ServiceStatus
from tests.support.documented_commands import PAGES, documented_commands
from tests.support.logs.postgres import fresh_database, run
from tests.support.service import fork_server
from tests.support.service.command_line import run_command
from tests.support.service.manifest_builders import a_fleet, a_gang
from tests.support.service.replicas import Replica
from tests.support.waiting import eventually

pytestmark = pytest.mark.postgres

NODE = "{node}"
# Words that a reader fills in -> what they are here.
FILLED_IN = {
    "GANG": "default/train", "NAME": "default/train", "NAMESPACE/NAME": "default/train", "POSITION": "{admitted}", "17": "{admitted}",
    "NODE": NODE, "n1": NODE, "n7": NODE, "Node/NODE": "Node/{node}", "POD": "default/train-0", "default/a": "default/train",
    "team-a": "default", "team-a/train": "default/train", "KIND/NAMESPACE/NAME": "PodGroup/default/train", "TIME": "now",
    "2026-11-20T03:12:00Z": "now", "2026-11-25T03:00:00Z": "now", "KEY=VALUE": "zone=a", "job/train": "default/train",
    "pod/team-a/train-3": "pod/default/train-0",
}  # fmt: skip
OF_A_NODE = {"--node": NODE}  # whose value is NAME in a page about nodes
# The last word of a command that a sentence names without it.
LEFT_OUT = {
    "history": "default/train",
    "explain": "default/train",
    "decision replay": "{admitted}",
    "--at": "now",
}
# Its commands are about a log of its own, with which tests/unit/queries/explain/test_past_document.py runs them.
OWN_LOG = "docs/how-to/explain-at.md"
# Options that choose a cluster: here the URL is in the environment.
CHOOSING = ("--context", "--kubeconfig", "--server", "--as-service-account", "--server-ca-file")
NEEDS_DATABASE = ("--database-url", "--data-dir")
NEEDS_WHEEL = "--with"  # of another version, as in test_replay_all.py
# The answer of a command whose words are an example: the name is not here.
NOT_THERE = (
    "no such root group",
    "nothing is called",
    "moves: none are under way",
    "does not exist",
    "no preemption of",
    "has no preemption",
    "has no gang in it",
)
# Without an end, or about objects that only a cluster has.
ENDLESS = ("-w", "--watch")


def asks_the_service(words):
    """Return whether a command can ask a service and needs no other input."""
    parameters = imported_command(words).params
    chooses = any("--context" in parameter.opts for parameter in parameters)
    return chooses and words not in {"plan", "make-room", "drain", "proxy"}


ASKING = {words for words in COMMANDS if asks_the_service(words)}


def laptop_commands():
    """Yield place and words of each documented command that asks the service, as a reader would type it."""
    for place, text in documented_commands():
        parts = shlex.split(text.replace("[", "").replace("]", ""))
        words = next((name for name in COMMANDS if parts[: len(name.split())] == name.split()), "")
        if (
            words in ASKING
            and not {*NEEDS_DATABASE, NEEDS_WHEEL} & set(parts)
            and OWN_LOG not in place
        ):
            parts = parts[: parts.index(">")] if ">" in parts else parts
            last = LEFT_OUT.get(parts[-1], LEFT_OUT.get(words) if text == words else None)
            yield place, words, [*parts, *([last] if last else [])]


def test_all_commands_about_the_service_ask_it():
    assert {
        "gangs", "explain", "trees", "history", "events", "moves", "preemptions", "state", "report", "decision replay", "verify", "status",
    } == ASKING  # fmt: skip
    places = [place for place, _, _ in laptop_commands()]
    assert len({place.partition(":")[0] for place in places}) > 20
    assert {page for page in map(str, PAGES) if "/docs/alerts/" in page}


@pytest.fixture(scope="module")
def place(tmp_path_factory, postgres_url, template_database):
    """A leader and a follower with two gangs, whose whole log was verified."""
    folder = tmp_path_factory.mktemp("manifests")
    objects = [*a_fleet("4 nodes", gpu=4), *a_gang("train", pods=2), *a_gang("serve", pods=2)]
    (folder / "all.yaml").write_text(yaml.safe_dump_all(objects))
    with (
        fork_server.shortened({"control.monitors.log_verifier.FIRST_AFTER_S": 0.1}),
        fresh_database(postgres_url, template=template_database) as url,
    ):
        logs = tmp_path_factory.mktemp("serve")
        leader = Replica(logs, url, folder, "a", lease_duration_s=15)
        follower = None
        try:
            run(leader.until_leads())
            run(leader.until_events("?type=GangAdmitted", 2))
            follower = Replica(logs, url, folder, "b", lease_duration_s=15)
            run(follower.until("/readyz", 200))
            run(eventually(lambda: verified(leader), "the log is verified", state=leader.tail))
            yield leader, follower
        finally:
            for replica in (leader, follower):
                if replica is not None:
                    replica.end()


async def verified(replica):
    status, body = await replica.ask("/v1/status")
    assert status == 200, body
    return body["verification"] is not None


@pytest.fixture
def laptop(place, tmp_path, monkeypatch):
    """Run a command in an environment that names the service alone; the follower, as a Service may choose it."""
    monkeypatch.chdir(tmp_path)  # a bundle is written there
    for name in ("DATABASE_URL", "DATA_DIR"):
        monkeypatch.delenv(f"GANG_EXTENDER_{name}", raising=False)

    def call(*words, server=place[1].url):
        return run_command(*words, GANG_EXTENDER_SERVER=server, HOME=str(tmp_path), PATH="/nowhere")

    return call


def filled_in(parts, admission):
    """Return the words that are typed: with the names of this place, and without the choice of a cluster."""
    words, before = [], ""
    node = admission["data"]["assignments"][0]["node"]
    for part in parts:
        if before not in CHOOSING and part not in CHOOSING:
            value = OF_A_NODE.get(before) or FILLED_IN.get(part, part)
            words.append(value.format(admitted=admission["position"], node=node))
        before = part
    if {"-f", "--follow", "-w", "--watch"} & set(words) and words[0] == "events":
        words += ["--after", "0", "--limit", "1"]
    return words


def test_every_documented_command_is_answered(place, laptop, subtests):
    """By the service alone, with exit 0, or 1 and a sentence where the example names something that is not here."""
    (event, *_) = json.loads(laptop("events", "--type", "GangAdmitted", "-o", "json").stdout)
    typed = set()
    for where, words, parts in laptop_commands():
        words_typed = tuple(filled_in(parts, event))
        if words_typed in typed or (words != "events" and set(ENDLESS) & set(words_typed)):
            continue
        typed.add(words_typed)
        with subtests.test(f"{where}: {shlex.join(words_typed)}"):
            leads = {"server": place[0].url} if words_typed[0] == "moves" else {}
            done = laptop(*words_typed, **leads)
            answered = done.returncode == 0 or (
                done.returncode == 1 and any(text in done.stderr for text in NOT_THERE)
            )
            assert answered, done
    assert {words[0] for words in typed} >= {
        "history",
        "events",
        "preemptions",
        "state",
        "report",
        "verify",
        "decision",
        "status",
    }


def test_a_decision_is_planned_again_on_the_laptop(laptop):
    (event, *_) = json.loads(laptop("events", "--type", "GangAdmitted", "-o", "json").stdout)
    done = laptop("decision", "replay", str(event["position"]))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"position {event['position']}: the same result (2 placed)\n"
    done = laptop("decision", "replay", "1")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("gang-extender: position 1: LeaseAcquired is not a decision; ")


def test_verify_prints_what_the_leader_found_and_how_to_verify_without_it(laptop):
    done = laptop("verify")
    assert (done.returncode, done.stderr) == (0, "")
    first, *_, last = done.stdout.splitlines()
    assert first.endswith(" events verified, no gap, chain unbroken")
    assert "gang-extender verify --database-url URL --anchors FILE|cluster" in last
    report = json.loads(laptop("verify", "-o", "json").stdout)
    assert (report["findings"], report["anchors_from"]) == ([], "the service")
    refused = laptop("verify", "--anchors", "some.yaml")
    assert refused.returncode == 2
    assert (
        "--anchors some.yaml: is compared with the log in the database; name it with --database-url"
        in refused.stderr
    )


def test_a_service_and_a_database_are_not_both_asked(laptop):
    done = laptop(
        "history",
        "default/train",
        "--server",
        "http://127.0.0.1:1",
        "--database-url",
        "postgresql://x/y",
    )
    assert done.returncode == 2
    assert "asks a service, so not together with a database" in done.stderr


def test_where_nothing_listens_the_ways_are_named(laptop):
    done = laptop("events", server="http://127.0.0.1:1")
    assert (done.returncode, done.stdout) == (2, "")
    assert (
        "--server URL, or --context NAME for a cluster; --database-url URL or --data-dir FOLDER"
        in done.stderr
    )


def test_long_lists_are_read_page_by_page(laptop):
    """More than one answer of the service has; the events are those of the log, each once."""
    whole = json.loads(laptop("events", "-o", "json", "--limit", "10000").stdout)
    positions = [event["position"] for event in whole]
    assert positions == list(range(1, len(positions) + 1))
    cut = laptop("events", "-o", "json", "--limit", "2")
    assert [event["position"] for event in json.loads(cut.stdout)] == [1, 2]
    assert cut.stderr == "gang-extender: cut off after 2 events; --after 2 goes on\n"


def test_the_status_of_a_healthy_service(place, laptop):
    """A follower has what only the leader has; exit 0."""
    leader, _follower = place
    answers = {}
    for replica in place:
        done = laptop("status", "-o", "json", server=replica.url)
        assert (done.returncode, done.stderr) == (0, ""), done
        status = answers[replica.holder] = json.loads(done.stdout)
        assert status["problems"] == []
        assert status["leader"]["name"] == leader.holder
        assert status["leader_answers"]
        assert status["replicas"] == ["a", "b"]
        assert status["verification"]["finding_count"] == 0
        assert sum(status["gangs"].values()) == 2
        assert status["oldest_wait"]["gang"].startswith("default/")
        assert status["database"]["bytes"] > 1 << 20
        assert "postgres" in status["settings"]["database_url"]
    assert answers["b"]["role"] == "following"
    assert answers["a"]["verification"]["position"] > 1
    text = laptop("status").stdout
    assert text.startswith("Nothing is wrong.\n")
    assert [line.split()[0] for line in text.splitlines()[2:6]] == [
        "service",
        "leader",
        "replicas",
        "log",
    ]


def test_a_leader_that_does_not_answer_is_what_is_wrong(postgres_url, template_database, tmp_path):
    """First in the table, with what to do; exit 1."""
    (tmp_path / "all.yaml").write_text(yaml.safe_dump_all(a_fleet("1 nodes", gpu=1)))
    with fresh_database(postgres_url, template=template_database) as url:
        leader = Replica(
            tmp_path, url, tmp_path, "a", lease_duration_s=60, advertise_url="http://127.0.0.1:1"
        )
        try:
            run(leader.until_leads())
            follower = Replica(tmp_path, url, tmp_path, "b", lease_duration_s=60)
            try:
                run(follower.until("/readyz", 200))
                done = run_command("status", "--server", follower.url)
            finally:
                follower.end()
        finally:
            leader.end()
    assert done.returncode == 1
    wrong, to_do, *_ = done.stdout.splitlines()
    assert wrong == "WRONG: the leader a does not answer this replica at http://127.0.0.1:1"
    assert to_do.startswith("    what to do: ")


def files_of(path):
    with tarfile.open(path) as archive:
        return {
            member.name.partition("/")[2]: archive.extractfile(member).read() for member in archive
        }


def test_a_bundle_has_what_a_maintainer_needs(laptop, tmp_path):
    done = laptop("status", "--bundle", str(tmp_path / "b.tar.gz"))
    assert done.returncode == 0, done
    files = files_of(tmp_path / "b.tar.gz")
    assert {"status.json", "metrics.txt", "events.json", "gangs.json", "contents.txt"} <= set(files)
    assert b"default/train" in files["events.json"]
    assert b"gang_extender_leader" in files["metrics.txt"]
    assert b"logs.txt: left out: the service was not found in a cluster" in files["contents.txt"]


def test_a_bundle_without_names_has_none(laptop, tmp_path):
    """Numbers stand for them, the same in all files; states, types and metrics stay."""
    (event, *_) = json.loads(laptop("events", "--type", "GangAdmitted", "-o", "json").stdout)
    node = event["data"]["assignments"][0]["node"]
    done = laptop("status", "--bundle", str(tmp_path / "b.tar.gz"), "--no-names")
    assert done.returncode == 0, done
    files = files_of(tmp_path / "b.tar.gz")
    for name, body in files.items():
        for hidden in (b"train", b"serve-", node.encode(), b"postgresql://"):
            assert hidden not in body, (name, hidden)
    states = {gang["gang"]: gang["state"] for gang in json.loads(files["gangs.json"])}
    assert len(states) == 2
    assert set(states.values()) <= {"admitted", "observed", "waiting"}
    admitted = [e for e in json.loads(files["events.json"]) if e["type"] == "GangAdmitted"]
    assert {event["gang"] for event in admitted} == set(states)
    assert b"gang_extender_leader" in files["metrics.txt"]


def test_what_only_the_leader_has_is_not_under_v1(place):
    """Other replicas ask for them where kube-scheduler calls."""
    leader, follower = place
    assert run(leader.ask(LEADER_PATH))[1]["leads"]
    assert not run(follower.ask(LEADER_PATH))[1]["leads"]
    assert "leads" not in ServiceStatus.__struct_fields__


def test_watch_ends_with_ctrl_c(place, tmp_path):
    """And prints one line of JSON for each reading."""
    import signal
    import sys

    leader, _ = place
    watching = subprocess.Popen(
        [sys.executable, "-m", "extender", "status", "--watch", "-o", "json", "--server", leader.url],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        lines = [watching.stdout.readline() for _ in range(2)]
        watching.send_signal(signal.SIGINT)
        rest, _ = watching.communicate()
    finally:
        watching.kill()
    assert [json.loads(line)["problems"] for line in lines] == [[], []]
    assert watching.returncode == 0, rest
