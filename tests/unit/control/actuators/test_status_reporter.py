"""Warnings about odd trees: each is written once, and only trees that changed are looked at."""

from __future__ import annotations

from extender.control.actuators import status_reporter
from tests.support.service.fakes import Stage
from tests.support.service.manifest_builders import GPU, a_gang, a_group, a_node
from tests.support.waiting import eventually

KEY = "example.com/block"
TEXT = f"PodGroup/default/odd: topology key {KEY} is on no node (W3)"


def warnings(stage):
    """Return the warnings that were written, by group."""
    return [(n.name, n.message) for n in stage.cluster.notices if n.reason == "Questionable"]


async def test_only_trees_that_changed_are_looked_at(monkeypatch):
    """Looking at all trees whenever one changes would take too long with a thousand of them."""
    looked, inner = [], status_reporter.collect_warnings

    def counting(view, tree, labels):
        looked.append(tree.root.key.name)
        return inner(view, tree, labels)

    monkeypatch.setattr(status_reporter, "collect_warnings", counting)
    odd = a_gang("odd", pods=2, topo=KEY)
    async with Stage(a_node("n0", gpu=1), *odd, *a_gang("plain", pods=2)) as stage:
        await stage.lead()
        await stage.settled()
        assert set(looked) == {"odd", "plain"}
        looked.clear()
        stage.cluster.delete_pod("plain-0")
        await stage.settled()
        assert set(looked) == {"plain"}
        looked.clear()
        stage.cluster.change_node("n0", labels={"other": "x"})  # nodes concern all trees
        await stage.settled()
        assert set(looked) == {"odd", "plain"}
        stage.start(stage.reporter.run())
        await eventually(lambda: warnings(stage), "the warning")
        assert warnings(stage) == [("odd", TEXT)]


async def test_a_warning_is_written_once():
    """Written again only after the tree was right in between."""
    async with Stage(a_node("n0", gpu=1), *a_gang("odd", pods=3, topo=KEY)) as stage:
        await stage.lead()
        stage.start(stage.reporter.run())
        await stage.settled()
        await eventually(lambda: warnings(stage), "the warning")
        stage.cluster.delete_pod("odd-0")
        await stage.settled()
        stage.cluster.change_node("n0", labels={KEY: "b"})
        await stage.settled()
        assert warnings(stage) == [("odd", TEXT)]
        stage.cluster.change_node("n0", labels={})
        await stage.settled()
        await eventually(lambda: len(warnings(stage)) > 1, "the warning again")
        assert warnings(stage) == [("odd", TEXT)] * 2


async def test_orphans_are_reported_by_name():
    """The order of the map of orphans differs in each process, and with it the log of a simulation did."""
    names = [f"orphan-{number}" for number in range(9)]
    async with Stage(*(a_group(name, gang=1, parent="no-such-parent") for name in names)) as stage:
        await stage.lead()
        await stage.settled()
        stage.conditions_due()
        stage.start(stage.reporter.run())

        def written():
            return [call[1] for call in stage.cluster.calls if call[0] == "set_conditions"]

        await eventually(lambda: len(written()) == len(names), "a condition of each")
        assert written() == [f"default/{name}" for name in names]


def reported(stage):
    """Return the members whose waiting was reported in an Event, sorted."""
    return sorted({n.name for n in stage.cluster.notices if n.kind == "Pod"})


async def until_reported(stage, *names):
    """Run passes until exactly these members have an Event."""
    for _ in range(4):
        stage.later(status_reporter.SETTLED_MS / 1000 + 0.1)
        await stage.settled()
    await eventually(
        lambda: reported(stage) == sorted(names), f"Events for {names}, not {reported(stage)}"
    )


async def test_members_that_wait_in_a_placed_leaf_are_found():
    """One that comes late, and one whose reservation is released while the pods stay as they are."""
    async with Stage(a_node("n0", gpu=2), *a_gang("g", pods=2)) as stage:
        await stage.lead()
        stage.start(stage.reporter.run())
        await until_reported(stage)
        assert len(stage.where("g")) == 2
        late = a_gang("g", pods=3)[-1]
        stage.cluster.add(late)
        await until_reported(stage, "g-2")
        stage.cluster.change_node("n0", allocatable={GPU: 1, "cpu": 8000})
        await until_reported(stage, "g-0", "g-1", "g-2")
        assert not stage.root("g").reservations
