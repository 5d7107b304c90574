"""Any name as the log had it at a time: what is answered, what the log does not have, and what was deleted."""

from __future__ import annotations

import pytest

from extender.core.model.errors import BadInput, NotFound
from extender.core.model.message_formatting import rfc3339
from extender.queries.explain.explanation import CHECKS
from extender.queries.explain.name_lookup import parse_name
from extender.queries.explain.past_explanation import PastExplanations
from extender.queries.state.historical_state import HistoricalState
from extender.queries.state.state_report import ORDINARY
from tests.support.logs.fake_store import FakeEventLog, FakeEventQueries, FakeSnapshots
from tests.support.logs.short_log import at_us, story
from tests.support.service.fakes import Stage
from tests.support.service.manifest_builders import GPU, RACK, a_gang, a_group, a_node, a_pod
from tests.unit.queries.state.test_historical_state import Past


def asking(database):
    """Return a function that explains a name from a log, at a position or time."""
    reader = FakeEventQueries(database)
    as_of = HistoricalState(FakeEventLog(database), FakeSnapshots(database), reader)
    service = PastExplanations(as_of, reader)

    async def ask(text, at, namespace="ns"):
        return await service.explain(parse_name(text, namespace), str(at))

    return ask


@pytest.fixture
def ask():
    past = Past(story())
    past.database.projected = len(past.database.rows)
    return asking(past.database)


def outcomes(explanation):
    return {check.check: check.outcome for check in explanation.checks}


@pytest.mark.parametrize(
    ("name", "at", "answer"),
    [
        ("low", 2, "PodGroup ns/low was pending: no decision yet since it was observed"),
        ("low", 3, "PodGroup ns/low had its capacity reserved: 0 bound, 2 reserved"),
        ("low", 6, "PodGroup ns/low ran: 2 of 2 pods of the minimum, 2 bound"),
        ("low", 11, "PodGroup ns/low was degraded: 1 of 2 pods of the minimum are there; last lost: "),
        ("low", 14, "PodGroup ns/low did not exist any more: it was removed at 2026-09-21T14:15:00"),
        ("other/high", 6, "PodGroup other/high was not in the log yet: it was first recorded at 2026"),
        ("other/high", 8, "PodGroup other/high did not fit: no node has 2 GPUs (refused at 2026-09-"),
        ("other/high", 9, "PodGroup other/high waited for victims of its preemption: 1 victim to go of Pod ns/a"),
        ("other/high", 10, "PodGroup other/high waited for victims of its preemption: all victims"),
        ("a", 3, "Pod ns/a had capacity reserved on n1, a member of PodGroup ns/low, which had its "),
        ("a", 4, "Pod ns/a ran on n1, a member of PodGroup ns/low, which had its capacity"),
        ("a", 9, "Pod ns/a ran on n1 and was to be evicted for PodGroup other/high, a member of"),
        ("a", 11, "Pod ns/a was lost on n1 at 2026-09-21T14:14:30.000000Z, position 11 (evicted for "),
        ("a", 2, "Pod ns/a was not in the log yet: it had capacity reserved on n1 from 2026"),
        ("a", 14, "Pod ns/a was not there any more: it ran on n1 until 2026-09-21T14:14:30.000000Z"),
        ("n1", 4, "Node n1 had 1 bound and 0 reserved members of 1 gang"),
        ("n1", 9, "Node n1 had 1 bound and 0 reserved members of 1 gang and 1 victim of preemptions"),
        ("n9", 4, "Node n9 had no member, reservation or victim of a gang"),
    ],
)  # fmt: skip
async def test_the_first_sentence(ask, name, at, answer) -> None:
    """Each state of a gang, a pod and a node, while it held; before and after it, that it did not exist."""
    found = await ask(name, at)
    prefix = f"At {found.as_of}, position {at}: "
    assert found.answer.startswith(prefix + answer), found.answer
    assert (found.position, found.at) == (at, str(at))
    assert found.limitations[0] == ORDINARY


async def test_a_time_means_the_last_event_by_then(ask) -> None:
    """The refusal holds at 55 s; the answer has the time of its event, and the refusal with the time of its record."""
    found = await ask("other/high", rfc3339(at_us(55)))
    assert found.position == 8
    assert found.gang is not None
    assert found.gang.last_decision_position == 8
    assert outcomes(found)["fits now"] == "no"


async def test_what_the_log_does_not_have_is_not_recorded(ask) -> None:
    """Whether it fitted an empty cluster, its gates, and kube-scheduler's answer are not in the log."""
    refused, reserved, ran = [
        outcomes(await ask(name, at)) for name, at in (("other/high", 8), ("low", 3), ("low", 6))
    ]
    assert refused["fits an empty cluster"] == "not recorded"
    assert refused["members complete"] == "yes"
    assert reserved["gates removed"] == reserved["accepted by kube-scheduler"] == "not recorded"
    assert reserved["fits now"] == "yes"
    assert reserved["bound"] == "not reached"
    assert set(ran.values()) == {"yes"}
    assert list(ran) == list(CHECKS)


async def test_a_lost_member_and_its_gang(ask) -> None:
    found = await ask("low", 11)
    assert found.state == "degraded"
    assert found.gang is not None
    assert found.gang.last_loss is not None
    assert found.gang.last_loss.pod == "ns/a"
    assert outcomes(found)["bound"] == "no"
    assert [m.pod for m in found.gang.members] == ["ns/b"]


async def test_the_gangs_of_a_node_are_related(ask) -> None:
    found = await ask("Node/n2", 6)
    assert [(r.kind, r.name, r.relation) for r in found.related] == [
        ("PodGroup", "ns/low", "gang on this node")
    ]


async def test_the_last_state_of_a_removed_group_is_one_command_away(ask) -> None:
    found = await ask("low", 14)
    assert found.help[0] == "`gang-extender explain ns/low --at 13` has its last state"
    assert outcomes(found)["group exists"] == "no"


async def test_names_that_were_not_there(ask) -> None:
    """Similar names of that time are named, and what the log never has."""
    with pytest.raises(
        NotFound, match=r"nothing that is called ns/lo; did you mean PodGroup ns/low"
    ):
        await ask("lo", 6)
    with pytest.raises(NotFound, match="ordinary pods, and groups that were never placed, are not"):
        await ask("Pod/unheard-of", 6)
    with pytest.raises(BadInput, match="position 15 is not in the log"):
        await ask("low", 15)


async def test_a_child_group_of_a_real_run() -> None:
    """A composite of two leaves is placed by the service; then its log is asked about one leaf and its pod."""
    root = a_group("root", gang=2, composite=True)
    leaves = [a_group(name, gang=1, parent="root", topo=RACK) for name in ("left", "right")]
    pods = [a_pod(f"{name}-0", name, requests={GPU: 8}) for name in ("left", "right")]
    nodes = [a_node(f"n{n}", {RACK: f"r{n}"}, gpu=8) for n in range(2)]
    async with Stage(*nodes, root, *leaves, *pods) as stage:
        await stage.lead()
        await stage.settled()
        end = stage.leader.committed.position
        ask = asking(stage.database)
        found = await ask("left", end, "default")
        start = "PodGroup default/left, with 0 bound and 1 reserved members in topology.example.com/rack="
        assert found.answer.partition(": ")[2].startswith(start), found.answer
        assert (
            "was a child group of CompositePodGroup default/root, which had its cap" in found.answer
        )
        assert [(r.kind, r.name) for r in found.related] == [("CompositePodGroup", "default/root")]
        member = await ask("left-0", end, "default")
        assert "Pod default/left-0 had capacity reserved on n" in member.answer


async def test_members_that_wait_are_not_recorded() -> None:
    """A gang that waits for its members is recorded so; the pods that it has are not, as its limitations have it."""
    objects = [a_node("n0", gpu=8), a_group("g", gang=2), a_pod("g-0", "g"), *a_gang("h", pods=1)]
    async with Stage(*objects) as stage:
        await stage.lead()
        await stage.settled()
        ask = asking(stage.database)
        end = stage.leader.committed.position
        found = await ask("PodGroup/g", end, "default")
        assert (
            "PodGroup default/g waited for members of PodGroup default/g: 2 required, 1 present"
            in found.answer
        )
        assert outcomes(found)["members complete"] == "no"
        assert "which of them waited is not known" in found.limitations[1]
        with pytest.raises(NotFound, match="Pod default/g-0"):
            await ask("Pod/g-0", end, "default")
