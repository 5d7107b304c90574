"""Trees that keep the planner busy: what a user of one namespace can create to slow the others."""

from __future__ import annotations

import random

from tests.support.service.manifest_builders import RACK, Object, a_group, a_node, a_pod

NODES_PER_RACK, CPUS = 4, 12
ODD = (2100, 2300, 2700, 3100, 3700)  # thousandths of a CPU: they fill no node evenly
HOST = "kubernetes.io/hostname"


def a_fleet_of_racks(racks: int = 6) -> list[Object]:
    """Make racks of 4 nodes with 12 CPUs: `odd_sized` is almost possible in 6, `apart` in 4; a search takes a second."""
    return [
        a_node(f"n{n:02}", {RACK: f"r{n // NODES_PER_RACK}"}, cpu=CPUS)
        for n in range(racks * NODES_PER_RACK)
    ]


def odd_sized(name: str, namespace: str, rng: random.Random) -> list[Object]:
    """Make a tree of 8 leaves of 9 pods of odd sizes, each leaf in one rack."""
    objects = [a_group(name, composite=True, gang=8, namespace=namespace)]
    for leaf in (f"{name}-{n}" for n in range(8)):
        objects.append(a_group(leaf, gang=9, parent=name, namespace=namespace, topo=RACK))
        for pod in range(9):
            requests = {"cpu": f"{rng.choice(ODD)}m"}
            objects.append(a_pod(f"{leaf}-{pod}", leaf, namespace=namespace, requests=requests))
    return objects


def apart(name: str, namespace: str, _rng: random.Random) -> list[Object]:
    """Make a gang of 20 pods, each with anti-affinity on hosts to the others: every pod has a shape of its own."""
    pods = []
    for number in range(20):
        others = [f"{name}-{n}" for n in range(20) if n != number]
        term = {
            "topologyKey": HOST,
            "labelSelector": {
                "matchExpressions": [{"key": "apart", "operator": "In", "values": others}]
            },
        }
        rule = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
        labels = {"labels": {"apart": f"{name}-{number}"}}
        requests = {"cpu": f"{ODD[number % len(ODD)]}m"}
        pods.append(
            a_pod(
                f"{name}-{number}",
                name,
                namespace=namespace,
                requests=requests,
                metadata=labels,
                affinity=rule,
            )
        )
    return [a_group(name, gang=20, namespace=namespace), *pods]
