"""The algorithms of the arena on the published examples of the peers, and the cluster that they share.

The vectors of `tests/golden/vectors.yaml` have in `kep` what the procedure of KEP-6012 binds; that of KEP-2724 is the example of its text.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from extender.simulation.arrivals import Arrival, ArrivingGroup
from tests.bench.arena.contest import (
    GPU,
    OURS,
    SERVICE,
    Ours,
    arms,
    contest,
    of_the_service,
    starved,
    table,
)
from tests.bench.arena.peer_algorithms import (
    after_fragmentation,
    after_kube_scheduler,
    after_kueue,
    fragmentation_of,
    least_allocated,
    most_allocated,
    workload_of,
)
from tests.bench.arena.virtual_cluster import Arm, Free, Host, WrongAnswer, simulate
from tests.support.planning.spec_vectors import of_kind
from tests.support.service.hash_seeds import outputs

ROOT = Path(__file__).parents[3]
RACK = "rack"


def a_group(name, pods, *, minimum=None, slots=1, key=""):
    return ArrivingGroup(name=name, pods=pods, minimum=pods if minimum is None else minimum, requests={"slot": slots}, topology_key=key)  # fmt: skip


def an_arrival(*groups, at_s=0.0, runs_for_s=10.0, name="a"):
    return Arrival(at_s=at_s, namespace="n", name=name, groups=groups, runs_for_s=runs_for_s)


def hosts_of(slots, **racks):
    """Return hosts by name and number of slots, with the rack of each."""
    return [Host(name, {RACK: racks[name]} if racks else {}, {"slot": n}) for name, n in slots.items()]  # fmt: skip


def simple(vector):
    """Return whether an arrival of the arena can be the tree of a vector: leaves under a gang of all of them."""
    tree = vector["tree"]
    leaves = tree.get("kids", [tree])
    plain = all(
        isinstance(leaf.get("pods"), int) and "gang" in leaf and not leaf.keys() - {"n", "gang", "topo", "pods"}
        for leaf in leaves
    )  # fmt: skip
    whole = tree is leaves[0] or (tree.get("gang") == len(leaves) and not tree.keys() - {"n", "gang", "kids"})  # fmt: skip
    nodes = all("c" not in node for node in vector["nodes"].values())
    return plain and whole and nodes and "kep" in vector


VECTORS = {vector["id"]: vector for vector in of_kind("place") if simple(vector)}


def test_there_are_vectors_of_placements_and_of_refusals():
    assert len(VECTORS) >= 5, [*VECTORS]
    assert {vector["kep"] == "none" for vector in VECTORS.values()} == {True, False}


@pytest.mark.parametrize("choose", [least_allocated, most_allocated], ids=["spreads", "packs"])
@pytest.mark.parametrize("name", VECTORS)
def test_kube_scheduler_places_what_its_procedure_does(name, choose):
    vector = VECTORS[name]
    if vector.get("pick") == "spread" and choose is most_allocated:
        choose = least_allocated  # the vector is about the default score only
    hosts = [
        Host(host, {key: value for key, value in node.items() if key != "f"}, {"slot": node["f"]})
        for host, node in vector["nodes"].items()
    ]
    tree = vector["tree"]
    groups = [
        a_group(leaf["n"], leaf["pods"], minimum=leaf["gang"], key=leaf.get("topo", ""))
        for leaf in tree.get("kids", [tree])
    ]
    seats = after_kube_scheduler(Free(hosts), an_arrival(*groups), choose)
    if vector["kep"] == "none":
        assert seats is None, vector
        return
    assert seats is not None
    counts = Counter(groups[of].name for of, _ in seats)
    assert counts == vector["kep"], vector


@pytest.mark.parametrize(
    ("key", "expected"), [(RACK, {"a": 3, "b": 3, "d": 1}), ("", {"d": 1, "c": 2, "a": 3, "b": 1})]
)
def test_kueue_places_the_example_of_its_proposal(key, expected):
    """Four nodes for 3, 3, 2 and 1 pods, and 7 pods: best fit in a rack, least free capacity without a level."""
    hosts = hosts_of({"a": 3, "b": 3, "c": 2, "d": 1}, a="r", b="r", c="r", d="r")
    seats = after_kueue(Free(hosts), an_arrival(a_group("g", 7, key=key)))
    assert Counter(hosts[host].name for _, host in seats) == expected


def test_kueue_takes_the_rack_that_just_accommodates_all_or_none():
    hosts = hosts_of({"a": 4, "b": 3, "c": 2}, a="r1", b="r2", c="r3")
    seats = after_kueue(Free(hosts), an_arrival(a_group("g", 3, key=RACK)))
    assert {hosts[host].name for _, host in seats} == {"b"}
    assert after_kueue(Free(hosts), an_arrival(a_group("g", 5, key=RACK))) is None
    assert (
        after_kueue(Free(hosts), an_arrival(a_group("g", 10, minimum=1))) is None
    )  # whole pod sets


def test_fragmentation_is_what_the_workload_cannot_use():
    """Half of the pods request 1 GPU and half 8: of 7 free GPUs half is lost on average, of 8 nothing."""
    small, large = an_arrival(a_group("s", 1)), an_arrival(a_group("l", 1, slots=8))
    workload = workload_of([small, large], "slot")
    assert workload == ((0.5, 1), (0.5, 8))
    assert [fragmentation_of(workload, gpus) for gpus in (0, 3, 7, 8)] == [0.0, 1.5, 3.5, 0.0]
    place = after_fragmentation(workload, "slot")
    hosts = hosts_of({"whole": 8, "part": 3})
    assert place(Free(hosts), small) == ((0, 1),)  # the whole host stays whole
    assert place(Free(hosts), large) == ((0, 0),)
    assert after_kube_scheduler(Free(hosts), small) == ((0, 0),)  # of equal shares the first


def test_ours_finds_what_a_fixed_order_does_not():
    """A group that could go to both racks leaves the larger one to the group that needs it."""
    hosts = hosts_of({"a": 4, "b": 3}, a="r1", b="r2")
    groups = (a_group("head", 1, key=RACK), a_group("workers", 4, key=RACK))
    ours = Ours().place(Free(hosts), an_arrival(*groups))
    assert {(groups[of].name, hosts[host].name) for of, host in ours} == {("head", "b"), ("workers", "a")}  # fmt: skip


def test_what_waits_is_placed_when_capacity_frees():
    hosts = hosts_of({"a": 4})
    arrivals = [
        an_arrival(a_group("g", 3), name="first", runs_for_s=100.0),
        an_arrival(a_group("g", 4), name="large", at_s=10.0, runs_for_s=50.0),
        an_arrival(a_group("g", 1), name="small", at_s=20.0, runs_for_s=100.0),
        an_arrival(a_group("g", 5), name="never", at_s=30.0),
    ]
    loose = simulate(hosts, arrivals, Arm("loose", after_kueue), "slot")
    assert loose.waits == {"n/first": 0.0, "n/small": 0.0, "n/large": 110.0}
    assert (loose.never, starved(loose), loose.pods["n/large"]) == (("n/never",), 1, 4)
    assert loose.utilisation == pytest.approx((3 * 30 + 1 * 10) / (4 * 30))
    strict = simulate(hosts, arrivals, Arm("strict", after_kueue, strict=True), "slot")
    assert strict.waits == {"n/first": 0.0, "n/large": 90.0, "n/small": 130.0}


@pytest.mark.parametrize(
    ("seats", "expected"),
    [
        (((0, 0),), "1 pods of g"), (((0, 0), (0, 1)), "several domains"), (((0, 1), (0, 1)), "over their capacity"),
    ],
    ids=["incomplete", "two domains", "full"],
)  # fmt: skip
def test_an_answer_that_breaks_a_rule_ends_the_run(seats, expected):
    hosts = hosts_of({"a": 4, "b": 1}, a="r1", b="r2")
    with pytest.raises(WrongAnswer, match=expected):
        simulate(hosts, [an_arrival(a_group("g", 2, key=RACK))], Arm("wrong", lambda *_: seats), "slot")  # fmt: skip


def test_two_processes_write_the_same_table(monkeypatch):
    """With other hash seeds; each arm places everything of a trace that fits on the empty cluster."""
    monkeypatch.setenv("GANG_EXTENDER_ARENA_JOBS", "40")
    hosts, arrivals = contest()
    outcomes = [simulate(hosts, arrivals, arm, GPU) for arm in arms(arrivals)]
    assert outcomes[0].arm == OURS
    assert all(len(outcome.waits) == 40 and not outcome.never for outcome in outcomes)
    text = table(arrivals, outcomes)
    assert text.count("\n| ") == 1 + len(outcomes)
    program = (
        "import hashlib; from tests.bench.arena.contest import *; hosts, arrivals = contest(); "
        "print(hashlib.sha256(table(arrivals, [simulate(hosts, arrivals, arm, GPU) for arm in arms(arrivals)]).encode()).hexdigest())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, env=os.environ | {"PYTHONHASHSEED": "7"}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.strip() == hashlib.sha256(text.encode()).hexdigest()


def test_the_service_places_what_its_planner_places_on_an_empty_cluster():
    hosts, arrivals = contest()
    outcome = of_the_service(hosts, arrivals[:6])
    assert outcome.never == ()
    planner = simulate(hosts, arrivals[:6], arms(arrivals[:6])[0], GPU)
    assert outcome.pods == planner.pods
    assert outcome.waits.keys() == planner.waits.keys()
    assert max(outcome.waits.values()) < 5.0
    assert outcome.utilisation == pytest.approx(planner.utilisation, abs=0.01)


@pytest.mark.full
def test_two_processes_have_the_same_outcome_of_the_service():
    program = (
        "from tests.bench.arena.contest import *; hosts, arrivals = contest(); "
        "print(table(arrivals[:60], [of_the_service(hosts, arrivals[:60])]))"
    )
    (text,) = outputs(program, ["1", "77"])
    assert SERVICE in text
