"""Steps of workloads against what their controller does, played one event at a time, and against every placement."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from extender.cluster.manifests.manifest_entries import Role, entries_in
from extender.cluster.manifests.manifest_loader import build, complete
from extender.cluster.manifests.yaml_reader import Document
from extender.core.model.cluster_view import ClusterView, with_pod
from extender.core.model.ids import NodeName, PodUid
from extender.core.model.pods import Pod, PodShape
from extender.queries.plan.plan_query import PlanInput, answer_plan_query
from extender.queries.plan.plan_steps import with_largest_use
from tests.support.hypothesis_profile import examples
from tests.support.service.manifest_builders import a_node
from tests.support.service.workload_builders import a_jobset, a_replicated_job, a_template

Jobs = Mapping[str, tuple[list[int], Mapping[str, str]]]  # CPUs of its pods, and what it depends on


@st.composite
def jobs(draw) -> Jobs:
    """Draw ReplicatedJobs, each of which may wait for earlier ones."""
    found: dict[str, tuple[list[int], Mapping[str, str]]] = {}
    for number in range(draw(st.integers(2, 4))):
        earlier = [name for name in found if draw(st.booleans())][:2]
        after = {name: draw(st.sampled_from(["Complete", "Ready"])) for name in earlier}
        pods = draw(st.integers(1, 2))
        found[f"j{number}"] = ([draw(st.integers(1, 4))] * pods, after)
    return found


def together(found: Jobs, last: str) -> set[str]:
    """Play the controller until a job starts, ending nothing that need not have ended; return the jobs that run then."""
    running: set[str] = set()
    over: set[str] = set()

    def start(job: str) -> None:
        if job in running or job in over:
            return
        for name, state in found[job][1].items():
            start(name)
            if state == "Complete":
                over.add(name)
                running.discard(name)
        running.add(job)

    start(last)
    return running - over


def fits(pods: list[int], nodes: list[int]) -> bool:
    """Return whether pods of so many CPUs have a place, by trying all."""
    return any(
        all(
            sum(cpu for cpu, where in zip(pods, places, strict=True) if where == node) <= size
            for node, size in enumerate(nodes)
        )
        for places in itertools.product(range(len(nodes)), repeat=len(pods))
    )


def answer_for(found: Jobs, nodes: list[int]):
    """Plan the JobSet of some jobs."""
    made = [
        {
            **a_replicated_job(
                name, 1, template=a_template({"cpu": pods[0]}), parallelism=len(pods), completions=len(pods)
            ),
            **({"dependsOn": [{"name": n, "status": s} for n, s in after.items()]} if after else {}),
        }
        for name, (pods, after) in found.items()
    ]  # fmt: skip
    fleet = [a_node(f"n{i}", cpu=size) for i, size in enumerate(nodes)]
    entries = (
        *entries_in([Document(where="nodes", value=node) for node in fleet], Role.CLUSTER),
        *entries_in([Document(where="work", value=a_jobset(*made))], Role.WANTED),
    )
    world = build(complete(entries))
    question = PlanInput(
        groups=frozenset(world.groups),
        pods=frozenset(world.pods),
        order=world.order,
        origins=world.origins,
    )
    return answer_plan_query(world.world.view, question)


@examples(200, quick=25)
@given(jobs(), st.lists(st.integers(1, 6), min_size=1, max_size=3))
def test_a_jobset_is_placed_exactly_when_each_step_fits_beside_what_runs_then(found, nodes):
    """Against every placement of every set of jobs that run together; the nodes of the plan are such a placement."""
    answer = answer_for(found, nodes)
    (gang,) = answer.gangs
    moments = {name: together(found, name) for name in found}
    step = {frozenset(after.items()): [] for _, after in found.values()}
    for name, (_, after) in found.items():  # jobs that wait for the same are one gang
        step[frozenset(after.items())].append(name)
    all_fit = all(
        fits([cpu for job in set().union(*(moments[n] for n in names)) for cpu in found[job][0]], nodes)
        for names in step.values()
    )  # fmt: skip
    assert answer.verdict == ("placed" if all_fit else "impossible")
    assert gang.search.exhausted
    if not all_fit:
        assert not gang.assignments
        return
    assert len(gang.assignments) == sum(len(pods) for pods, _ in found.values())
    assert not gang.unplaced


SHAPES = st.fixed_dictionaries({"cpu": st.integers(0, 4), "gpu": st.integers(0, 2)})


@examples(300)
@given(
    st.lists(st.tuples(SHAPES, st.integers(0, 1)), min_size=1, max_size=6),
    st.lists(st.sets(st.integers(0, 5), min_size=1), min_size=1, max_size=3),
)
def test_the_largest_use_of_any_step_counts_on_each_node(drawn, steps):
    """For each node and resource: what is used afterwards is the most that the pods of one step use."""
    pods = [
        Pod(
            uid=PodUid(f"p{i}"), namespace="ns", name=f"p{i}",
            shape=PodShape(requests=tuple(sorted(requests.items()))),
        )
        for i, (requests, _) in enumerate(drawn)
    ]  # fmt: skip
    nodes = {pod.uid: NodeName(f"n{node}") for pod, (_, node) in zip(pods, drawn, strict=True)}
    view = ClusterView()
    for pod in pods:
        view = with_pod(view, pod)
    runs = [{pods[i].uid for i in step if i < len(pods)} for step in steps]
    after = with_largest_use(view, runs, nodes, static=False)
    for node in ("n0", "n1"):
        most: Counter[str] = Counter()
        for uids in runs:
            used: Counter[str] = Counter()
            for pod in pods:
                if pod.uid in uids and nodes[pod.uid] == node:
                    used.update(dict(pod.shape.requests))
            most |= used
        there: Counter[str] = Counter()
        for pod in after.pods.values():
            if pod.node == node:
                there.update(dict(pod.shape.requests))
        assert +there == +most
