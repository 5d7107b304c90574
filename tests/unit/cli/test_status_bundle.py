"""A bundle without names: what is replaced, and what stays."""

from __future__ import annotations

import json

from extender.cli.commands.status_command import NamesRemoved

STATUS = {
    "version": "1", "replica": "annbook.corp:8888", "replicas": ["annbook.corp:8888"], "leader": {"name": "annbook.corp:8888", "address": "https://10.0.0.7:8888"},
    "database": {"place": "gang@db.corp:5432/gang", "bytes": 7}, "checks": [{"name": "lease", "ok": True, "reason": "node gpu-7 is new"}],
    "gangs": {"scheduled": 1}, "oldest_wait": {"gang": "team-a/waiting", "state": "waiting"}, "certificates": [{"name": "server", "ends": "x"}],
    "settings": {"identity": "annbook.corp:8888", "lease_duration_s": 10.0, "preemption": True, "cluster": []},
}  # fmt: skip
EVENTS = [
    {
        "type": "GangAdmitted", "gang": "team-a/train", "summary": "train in rack=r7, train-long and team-a-b stay",
        "data": {"assignments": [{"pod": "team-a/train-long-0", "node": "gpu-7"}], "topology": {"gpu-8": {"zone": "z9"}}, "groups": [{"kind": "PodGroup", "name": "train-long",
                 "domain": {"rack": "r7"}}]},
    },
    {"type": "LeaseAcquired", "actor": "annbook.corp:8888", "summary": "by annbook.corp:8888", "data": {"holder": "annbook.corp:8888", "address": "http://10.0.0.7:8888"}},
    {"type": "MemberTerminated", "actor": "kube-scheduler"},
]  # fmt: skip
METRICS = b'gang_extender_search_seconds_total{namespace="team-a"} 1\ngang_extender_x{file="/home/ann/f.yaml",kind="train"} 2\ngang_extender_y{folder="/home/ann/data"} 3\n'


def changed():
    files = {
        "status.json": json.dumps(STATUS).encode(),
        "events.json": json.dumps(EVENTS).encode(),
        "metrics.txt": METRICS,
    }
    return NamesRemoved(files).files()


def test_no_name_is_left():
    """Also not within sentences; addresses, places and texts of settings are left out."""
    for name, body in changed().items():
        for hidden in (
            b"team-a/",
            b'team-a"',
            b"gpu-7",
            b"gpu-8",
            b"z9",
            b"r7",
            b"train-long",
            b"10.0.0.7",
            b"db.corp",
            b"annbook",
            b"ann",
        ):
            assert hidden not in body, (name, hidden)


def test_a_name_has_one_number_in_all_files():
    files = changed()
    event, *_ = json.loads(files["events.json"])
    namespace, gang = event["gang"].split("/")
    assert event["summary"].startswith(f"{gang} in rack=object-")
    assert json.loads(files["status.json"])["oldest_wait"]["gang"].startswith(f"{namespace}/")
    assert f'namespace="{namespace}"'.encode() in files["metrics.txt"]
    (assignment,) = event["data"]["assignments"]
    assert (
        json.loads(files["status.json"])["checks"][0]["reason"]
        == f"node {assignment['node']} is new"
    )


def test_words_of_ours_stay():
    """A gang that is called `waiting` changes no state; kinds, types, states, checks and numbers are what a maintainer reads."""
    files = changed()
    status = json.loads(files["status.json"])
    assert status["oldest_wait"]["state"] == "waiting"
    assert status["checks"][0]["name"] == "lease"
    assert status["certificates"][0]["name"] == "server"
    assert status["settings"] == {
        "identity": "(left out)", "lease_duration_s": 10.0, "preemption": True, "cluster": [],
    }  # fmt: skip
    event, *others = json.loads(files["events.json"])
    assert (event["type"], event["data"]["groups"][0]["kind"]) == ("GangAdmitted", "PodGroup")
    assert b'kind="train"} 2' in files["metrics.txt"]
    assert [other["actor"] for other in others] == ["replica-1", "kube-scheduler"]
