"""Many searches of three namespaces on a busy cluster: shares, order, and nothing starves."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from extender.core.fairness.search_turns import QUANTUM_MS
from extender.core.log.events import GangAdmitted
from extender.core.planner.planning import plan
from tests.support.service.fakes import Stage
from tests.support.service.manifest_builders import a_gang, a_node
from tests.unit.control.admission.test_tree_searches import decoded, in_namespace

LONGEST_S = 2.0
NAMESPACES = ("flood", "many", "few")


class Soak:
    """A stage on which every tree of a name `hard` needs a search, and what its searches cost."""

    def __init__(self, stage: Stage, seed: int) -> None:
        self.stage, self.rng, self.created = stage, random.Random(seed), Counter()
        self.order: list[str] = []
        self.spent: Counter[str] = Counter()  # while all three namespaces wait
        planner = stage.parts.planner
        self._inner, self._quick = planner.plan, planner.at_once
        planner.plan = self._search
        planner.at_once = lambda r: "search" if "hard" in r.root.key.name else self._quick(r)

    async def _search(self, encoded):
        key = decoded(encoded).root.key
        published = self.stage.parts.exchange.published
        others = {w.tree.root.key.namespace for w in self.searches._waiting.values()}
        took_s = self.rng.choice((0.05, 0.5, LONGEST_S)) if key.namespace == "flood" else 0.5
        if others | {key.namespace} == set(NAMESPACES):
            self.spent[key.namespace] += int(took_s * 1000)
        assert published.turns[self.searches._running.uid].runs
        self.order.append(key.path)
        self.stage.later(took_s)
        return await self._inner(encoded)

    @property
    def searches(self):
        return self.stage.control_loop._pending_trees.searches

    def create(self, namespace, count):
        for _ in range(count):
            self.created[namespace] += 1
            name = f"hard-{self.created[namespace]:03}"
            gang = a_gang(name, pods=2, requests={"cpu": "1"})
            self.stage.cluster.add(*in_namespace(namespace, gang))

    def admitted(self):
        return [e.gang for e in self.stage.events() if isinstance(e.data, GangAdmitted)]

    def finish_some(self):
        """Delete the pods and groups of the oldest admitted gangs, so that capacity becomes free."""
        for path in self.admitted()[:-6]:
            namespace, _, name = path.partition("/")
            pods = [
                p for p in self.stage.cluster.seen.pods.values() if p.group and p.group.path == path
            ]
            for pod in pods:
                self.stage.cluster.delete_pod(pod.path)
            if pods:
                assert namespace in NAMESPACES, name


@pytest.mark.parametrize(
    ("steps", "seed"), [(6, 1), *(pytest.param(60, n, marks=pytest.mark.full) for n in range(4))]
)
async def test_three_namespaces_that_search_all_the_time(steps, seed):
    """One floods, two have a few: each gets its share, keeps its order, and all trees are admitted in the end."""
    async with Stage(*(a_node(f"n{n}", cpu="8") for n in range(4)), preemption=False) as stage:
        await stage.lead()
        soak = Soak(stage, seed)
        soak.create("flood", 20)
        for _ in range(steps):
            soak.create("many", 2)
            soak.create("few", 1)
            await stage.one_pass()
            soak.finish_some()
        for _ in range(400):
            if len(soak.admitted()) == sum(soak.created.values()):
                break
            soak.finish_some()
            stage.later(30)
            await stage.one_pass()
        assert len(soak.admitted()) == sum(soak.created.values())
        for namespace in NAMESPACES:
            firsts = list(dict.fromkeys(p for p in soak.order if p.startswith(f"{namespace}/")))
            assert firsts == sorted(firsts), "the order of the queue"
        shares = [soak.spent[namespace] for namespace in NAMESPACES]
        assert max(shares) - min(shares) <= steps * (QUANTUM_MS + 2 * int(LONGEST_S * 1000))
        for event in stage.events():
            if isinstance(event.data, GangAdmitted):
                found = plan(decoded(stage.database.inputs[event.data.input_digest]))
                placed = {a.uid: a.node for a in found.assignments}
                assert placed == {a.uid: a.node for a in event.data.assignments}
