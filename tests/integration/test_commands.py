"""Each command once as a process of its own, as it is installed: exit code, what it prints, and nothing on stderr."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
import yaml

from extender.cli.main import COMMANDS
from tests.support.logs.example_log import BATCH, write_tuesday
from tests.support.logs.postgres import fresh_database, run
from tests.support.service import fork_server
from tests.support.service.command_line import run_command
from tests.support.service.manifest_builders import a_fleet, a_gang, a_group, a_pod, an_object
from tests.support.service.replicas import Replica

pytestmark = pytest.mark.postgres

# Words after the command, and what it prints. `serve` is at the side of them, for those that ask a service.
RUN = {
    "db migrate": ((), "the database has schema "),
    "plan": (("--cluster", "{folder}", "--all-pending"), "PodGroup default/g: placed"),
    "make-room": (("--for", "default/g", "--server", "{server}"), "default/g: no move is needed"),
    "drain": (("n0", "--cluster", "{folder}"), "drain n0: no move is needed"),
    "moves": (("--server", "{server}"), "no moves are under way"),
    "gangs": (("--server", "{server}"), "default/g"),
    "explain": (("g", "--server", "{server}"), "PodGroup default/g: "),
    "history": ((BATCH,), "GangObserved"),
    "events": (("--limit", "1000"), "LeaseAcquired"),
    "preemptions": ((), "  completed  2m          1/1   "),
    "state": ((), "the log ends at position"),
    "db project": ((), "projected up to position "),
    "report": ((), "pending-namespaces"),
    "trees": (("-o", "json", "--server", "{server}"), "[]"),
    "status": (("--server", "{server}"), "Nothing is wrong."),
    "config": ((), "postgresql://"),
    "simulate": (
        ("--cluster", "{folder}/all.yaml", "--workloads", "{folder}.job.yaml", "--until", "1h"),
        "of 2 nvidia.com/gpu used, 0 preemptions",
    ),
    "certs": (("{folder}/certificates",), "client-kube-scheduler.crt"),
    "keys": (("{folder}/anchor.key",), "signs with key"),
    "verify": ((), "no gap, chain unbroken"),
    "db prune": (("--days", "1", "--dry-run"), "0 inputs and 0 parts"),
}
REFUSED = {
    "decision replay": ("2",)
}  # exit 1: no decision of the log of that day has a stored input


@pytest.fixture(scope="module")
def filled_url(postgres_url, template_database):
    with fresh_database(postgres_url, template=template_database) as url:
        run(write_tuesday(url))
        yield url


@pytest.fixture(scope="module")
def manifests(tmp_path_factory):
    folder = tmp_path_factory.mktemp("manifests")
    objects = [*a_fleet("1 nodes", gpu=2), *a_gang("g", pods=2)]
    (folder / "all.yaml").write_text(yaml.safe_dump_all(objects))
    Path(f"{folder}.job.yaml").write_text(yaml.safe_dump(a_pod("alone")))
    return folder


@pytest.fixture(scope="module")
def service(tmp_path_factory, postgres_url, template_database, manifests):
    """A process of `serve` on a database of its own."""
    with fresh_database(postgres_url, template=template_database) as url:
        served = Replica(tmp_path_factory.mktemp("serve"), url, manifests, "a", lease_duration_s=15)
        try:
            run(served.until_leads())
            yield served
        finally:
            served.end()


def test_the_log_of_the_service_has_its_address_and_its_page(service):
    """So that a user who started it by hand finds the page."""
    (line,) = (
        line
        for line in map(json.loads, service.log.read_text().splitlines())
        if line["message"] == "listening"
    )
    assert line["addresses"] == [service.url.removeprefix("http://")]
    assert line["page"] == f"{service.url}/ui/"


def environ_of(url, folder):
    return {"GANG_EXTENDER_DATABASE_URL": url, "GANG_EXTENDER_DATA_DIR": str(folder)}


def run_process(name, words, url, folder):
    """Run a command to its end as a process of its own."""
    command = [*name.split(), *words]
    environ = os.environ | environ_of(url, folder)
    process = fork_server.run(command, environ, subprocess.PIPE, errors=subprocess.PIPE, text=True)
    output, errors = process.communicate()
    return subprocess.CompletedProcess(command, process.wait(), output, errors)


def test_every_command_is_run_here():
    assert {*RUN, *REFUSED, "serve", "proxy"} == set(COMMANDS)  # those two run until a signal


@pytest.mark.parametrize("name", RUN)
def test_a_command_answers(name, filled_url, manifests, tmp_path, request):
    words, expected = RUN[name]
    server = request.getfixturevalue("service").url if "{server}" in words else ""
    filled = [word.format(folder=manifests, server=server) for word in words]
    done = run_process(name, filled, filled_url, tmp_path)
    assert (done.returncode, done.stderr) == (0, ""), done
    assert expected in done.stdout


BETA = "scheduling.k8s.io/v1beta1"  # of composites only in Kubernetes 1.38
CLASSES = [
    an_object("PriorityClass", name, "scheduling.k8s.io/v1", "", value=7, preemptionPolicy=policy)
    for name, policy in (("calm", "Never"), ("keen", "PreemptLowerPriority"), ("keen-2", "PreemptLowerPriority"))
]  # fmt: skip
KEEN = {"priorityClassName": "keen"}
# What Kubernetes 1.38 decides otherwise than 1.37 -> the objects, the exit code, what the answer has.
RULES_OF_1_38 = {
    "a basic group below a gang": (
        [a_group("top", composite=True, gang=1, version=BETA), a_group("leaf", parent="top", version=BETA), a_pod("p", "leaf")],
        0,
        "Kubernetes 1.38 refuses such a tree of built-in groups",
    ),
    "a basic group that is disrupted as a whole": (
        [a_group("leaf", whole=True), a_pod("p", "leaf")],
        0,
        "refused by Kubernetes 1.38 in built-in groups (E11)",
    ),
    "two classes of one value": (
        [
            a_group("top", composite=True, gang=1, version=BETA, **KEEN),
            a_group("leaf", gang=1, parent="top", version=BETA, priorityClassName="keen-2"),
            a_pod("p", "leaf", **KEEN),
        ],
        0,
        "placed",
    ),
    "another preemptionPolicy of a pod": (
        [a_group("leaf", gang=1, version=BETA, **KEEN), a_pod("p", "leaf", priorityClassName="calm")],
        1,
        'Pod/default/p has preemptionPolicy "Never", its tree PodGroup/default/leaf has "PreemptLowerPriority"',
    ),
}  # fmt: skip


@pytest.mark.parametrize("door", ["--cluster", "--server"])
@pytest.mark.parametrize("rule", RULES_OF_1_38)
def test_rules_of_kubernetes_1_38_at_every_door(
    rule, door, filled_url, manifests, service, tmp_path
):
    """`plan` of files, and `/v1/plan` of a service, give the same answer."""
    objects, code, words = RULES_OF_1_38[rule]
    (tmp_path / "f.yaml").write_text(yaml.safe_dump_all([*CLASSES, *objects]))
    where = manifests if door == "--cluster" else service.url
    asked = (door, str(where), "-f", str(tmp_path / "f.yaml"))
    done = run_process("plan", asked, filled_url, tmp_path)
    assert done.returncode == code, done
    assert words in done.stdout + done.stderr, done


def test_moves_of_a_service_are_about_its_live_cluster(filled_url, service, tmp_path):
    """On the live cluster a reservation keeps a node, in files nothing does."""
    here = run_process("drain", ("n0", "--server", service.url, "-o", "json"), filled_url, tmp_path)
    answer = json.loads(here.stdout)
    assert (here.returncode, answer["verdict"]) == (1, "impossible"), here
    assert [pod["reason"] for pod in answer["stays"]] == ["for a gang that waits"]
    free = ("--free", "kubernetes.io/hostname=2", "--server", service.url)
    done = run_process("make-room", free, filled_url, tmp_path)
    assert (done.returncode, done.stderr) == (1, ""), done
    assert "0 domains of 1 can be emptied at all, 2 are asked for" in done.stdout


@pytest.mark.parametrize("name", REFUSED)
def test_a_command_refuses(name, filled_url, tmp_path):
    """What is wrong stands on stderr, and nothing on stdout."""
    done = run_process(name, REFUSED[name], filled_url, tmp_path)
    assert (done.returncode, done.stdout) == (1, ""), done
    assert done.stderr.startswith("gang-extender: position 2: ")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("decision", "replay", "1"), "position 1: LeaseAcquired is not a decision; decisions are GangAdmitted, "),
        (("decision", "replay", "999"), "position 999: the log has no such event; it ends at position 35\n"),
        (("history", "team-a/absent"), "gang team-a/absent: the log has no such root group; names are NAMESPACE/NAME"),
        (("explain", "team-a/absent"), "nothing is called team-a/absent: no group, pod, workload or node; the log may have it: `gang-extender history "),
        (("plan", "--server", "{server}/ui"), "POST /ui/v1/plan: this path has GET, HEAD\n"),
        (("make-room", "--for", "default&x/g", "--server", "{server}"), "--for default&x/g: the service has no such gang"),
        (("gangs", "--server", "{server}/v2"), "GET /v2/v1/gangs: no such path; /ui/ is the page, "),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)  # fmt: skip
def test_what_is_not_there_is_named_with_what_would_help(
    words, expected, filled_url, tmp_path, service, monkeypatch
):
    monkeypatch.setenv("GANG_EXTENDER_SERVER", service.url)
    filled = [word.format(server=service.url) for word in words]
    done = run_command(*filled, **environ_of(filled_url, tmp_path))
    assert (done.returncode in (1, 2), done.stdout) == (True, ""), done
    assert done.stderr.startswith(f"gang-extender: {expected}")
    assert done.stderr.count("\n") == 1


def test_a_variable_that_is_no_setting_is_in_the_log_of_the_service(
    filled_url, tmp_path, monkeypatch
):
    """Also when the service cannot start; here nothing listens at the address of the database."""
    monkeypatch.setenv("GANG_EXTENDER_LISTENS", "127.0.0.1:1")
    done = run_process(
        "serve", ["--cluster", str(tmp_path)], "postgresql://127.0.0.1:9/gang", tmp_path
    )
    assert done.returncode == 2, done.stderr
    (line,) = map(json.loads, done.stdout.splitlines())
    assert (line["level"], line["variable"]) == ("WARNING", "GANG_EXTENDER_LISTENS")
    assert line["similar"] == "GANG_EXTENDER_LISTEN"
    assert "GANG_EXTENDER_LISTENS" not in done.stderr


def test_a_variable_that_is_no_setting_is_warned_about_by_every_other_command(
    filled_url, tmp_path, monkeypatch
):
    """On stderr, with the setting that is meant; the answer and the exit code stay as they are."""
    monkeypatch.setenv("GANG_EXTENDER_SEARCH_BUGDET", "1")
    for words in (["db", "migrate"], ["history", BATCH], ["config"]):
        done = run_command(*words, **environ_of(filled_url, tmp_path))
        assert done.returncode == 0
        assert done.stderr == (
            "gang-extender: environment variable GANG_EXTENDER_SEARCH_BUGDET is not a setting; "
            "did you mean GANG_EXTENDER_SEARCH_BUDGET?\n"
        )
        assert done.stdout
