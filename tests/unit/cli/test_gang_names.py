"""Names of gangs in commands: what `explain` takes, every reader takes."""

from __future__ import annotations

from urllib.parse import parse_qs, urlsplit

import pytest

from extender.cli.commands import explain_command
from extender.cli.commands.gang_commands import root_path
from extender.cli.output.printing import Output
from extender.core.model.errors import BadInput, NotFound
from extender.queries.explain.name_lookup import FoundName, NameSearch
from extender.queries.log.preemption_dto import PreemptionLine
from extender.queries.state.workload_trees import TreeAt, TreeRoot


def a_tree(kind, workload, *roots):
    return TreeAt(
        workload=workload, kind=kind, uid="u", generation=1, profile="default", outcome="compiled", owner="",
        groups=len(roots), reason="", message="", notices=(), position=1, time="",
        roots=tuple(TreeRoot(name=name, kind="PodGroup", state="scheduled") for name in roots),
    )  # fmt: skip


def a_line(position, victim):
    return PreemptionLine(
        preemption=f"p{position}", position=position, planned="", preemptor="PodGroup/prod/serve", preemptor_uid="u",
        priority=9, victims=[], superseded=[], cost={}, alternatives=[], placed=1, needed={}, proved=True,
        explanation=f"{victim} was evicted, {position}.",
    )  # fmt: skip


class Service:
    """Answers for a Job and a LeaderWorkerSet in team-a, and a preemption of the Job's gang."""

    def __init__(self):
        self.asked = []

    def __call__(self, path, kind):
        self.asked.append(path)
        url = urlsplit(path)
        query = {key: values[0] for key, values in parse_qs(url.query).items()}
        if url.path == "/v1/trees":
            trees = [
                a_tree("Job", "team-a/x", "team-a/x-1234"),
                a_tree("LeaderWorkerSet", "team-a/x", "team-a/x-0", "team-a/x-1"),
                a_tree("Job", "team-a/held"),
            ]
            return [one for one in trees if one.workload.startswith(query["namespace"] + "/")]
        if url.path == "/v1/search":
            names = [
                FoundName(kind="Job", name="team-a/x"),
                FoundName(kind="Job", name="team-a/x-other"),
            ]
            twice = [FoundName(kind="Job", name=f"{space}/two") for space in ("team-a", "team-b")]
            return NameSearch(found=tuple(names + twice), more=False)
        victim = query["victim"]
        return [a_line(n, victim) for n in (3, 8)] if victim == "team-a/x-1234" else []


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("x", "team-b/x"),
        ("team-a/x", "team-a/x"),
        ("PodGroup/team-a/x", "team-a/x"),
        ("pg/x", "team-b/x"),
        ("Pod/team-a/x-0", "team-a/x-0"),
        ("Job/team-a/x", "team-a/x-1234"),
        ("jobs/team-a/x", "team-a/x-1234"),
        ("Job/x", "team-a/x-1234"),  # of the one other namespace that has it
    ],
)
def test_a_name_is_that_of_a_root_group_or_a_pod(name, path):
    assert root_path(name, "team-b", Service()) == path


@pytest.mark.parametrize(
    ("name", "ask", "words"),
    [
        ("a/b/c/d", Service(), "gang 'a/b/c/d' is not NAME or NAMESPACE/NAME"),
        ("a//b", Service(), "gang 'a//b' is not NAME or NAMESPACE/NAME"),
        ("no/n1", Service(), "a node is no gang; `gang-extender explain no/n1` has its pods"),
        ("Job/team-a/x", None, "name the root group, or ask the service with --server"),
        ("Job/two", Service(), "Job default/two has no group now"),  # two namespaces have it
        ("Job/team-b/x", Service(), "Job team-b/x has no group now"),
        ("Job/team-a/held", Service(), "Job team-a/held has no group now"),
        ("lws/team-a/x", Service(), "LeaderWorkerSet team-a/x has several root groups, name one of them: team-a/x-0, team-a/x-1"),
    ],
)  # fmt: skip
def test_what_is_no_name_of_a_gang_is_refused(name, ask, words):
    with pytest.raises(BadInput) as caught:
        root_path(name, "default", ask)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("name", "namespace"), [("Job/team-a/x", "default"), ("Job/x", "team-a"), ("x", "default"), ("Job/x", "default")]
)  # fmt: skip
def test_why_a_workload_was_preempted(name, namespace, capsys):
    """By kind and namespace, or by a name that only one other namespace has: the newest preemption."""
    explain_command._explain_preemption(Service(), name, namespace, Output.table)
    assert "team-a/x-1234 was evicted, 8." in capsys.readouterr().out


@pytest.mark.parametrize("name", ["two", "absent", "team-b/x"])
def test_a_name_of_several_namespaces_or_of_a_given_one_is_not_looked_for_elsewhere(name):
    with pytest.raises(NotFound, match="the log has no preemption of this pod or group"):
        explain_command._explain_preemption(Service(), name, "default", Output.table)
