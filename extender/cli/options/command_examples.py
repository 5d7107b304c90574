"""Examples at the end of `--help`, as kubectl has them: what a line does, and the line."""

from __future__ import annotations

from typing import Final

EXAMPLES: Final[dict[str, tuple[tuple[str, str], ...]]] = {
    "gangs": (
        ("Gangs of a team that do not run, the one that has waited longest first",
         "gangs -n team-a --state unschedulable,degraded --sort-by -waits"),
        ("Gangs of workloads with a label, and each of them that changes", "gangs -l app=train -w"),
        ("Explain each gang that was preempted",
         "gangs --state preempted -o name | xargs -n1 gang-extender explain"),
    ),
    "trees": (
        ("Workloads that no tree could be made for, with the reason", "trees --state refused"),
        ("Workloads with a label, with UID and position", "trees -l team=a -o wide"),
    ),
    "proxy": (
        ("The page of the service in a cluster, at http://127.0.0.1:8889/ui/", "proxy --context prod"),
        ("The same for a kubeconfig with a client certificate, as a ServiceAccount",
         "proxy --as-service-account monitoring/reader"),
    ),
    "history": (
        ("All events about a gang", "history default/train"),
        ("Its decisions of the last three days, with their alternatives",
         "history train --since 3d --decisions"),
    ),
    "events": (
        ("Refusals of the last two hours", "events --since 2h --type GangUnschedulable"),
        ("What happened on a node yesterday",
         "events --node n1 --since yesterday --until today"),
        ("New events of a namespace, one JSON object per line", "events -n team-a -w -o json"),
    ),
    "preemptions": (
        ("Preemptions since yesterday, the longest first",
         "preemptions --since yesterday --sort-by -took"),
        ("Who evicted a pod, why, and what was examined instead",
         "preemptions --victim team-b/batch-0"),
        ("Preemptions of a service that are not completed, and each that changes",
         "preemptions --state pending -w"),
    ),
    "state": (
        ("What held a node two hours ago", "state --at 2h --node n1"),
        ("What changed since then", "state --at 2h --diff now"),
        ("Names of the gangs of a rack", "state --domain topology.example.com/rack=r7 -o name"),
    ),
    "report": (
        ("How long each gang waited this week, the longest first",
         "report pending --since 7d --sort-by -duration"),
        ("Members of a namespace that were terminated yesterday",
         "report terminations -n team-a --since yesterday --until today"),
    ),
    "make-room": (
        ("Which pods to move so that a gang fits that waits", "make-room --for default/train --server URL"),
        ("Two whole racks, with at most ten moves", "make-room --free topology.example.com/rack=2 --budget 10 --cluster cluster.yaml"),
    ),
    "drain": (
        ("What would break if two racks were drained",
         "drain topology.example.com/rack=a1 topology.example.com/rack=a2 --cluster cluster.yaml"),
    ),
    "moves": (("Evict no further pod for now", "moves pause --server URL"),),
    "status": (
        ("What is wrong, again and again", "status -w"),
        ("For a maintainer who must not know the names of your gangs", "status --bundle status.tar.gz --no-names"),
    ),
    "decision replay": (
        ("The decision at position 17 of the log", "decision replay 17"),
        ("Which decisions of the last quarter the next version makes otherwise",
         "decision replay --all --since 90d --with gang_extender-0.2.0-py3-none-any.whl"),
        ("All of them with a larger search budget, for programs",
         "decision replay --all --set search_budget=40000 -o json"),
    ),
    "certs": (
        ("For a service that is called by two addresses, valid for 90 days",
         "certs pki --name 10.0.0.7 --name extender.example.com --days 90"),
        ("Again with the same names, before they end; kube-scheduler needs no new ca.crt",
         "certs pki --renew"),
        ("With a certificate for one more client", "certs pki --renew --client prometheus"),
    ),
}  # fmt: skip


def examples_text(command: str) -> str | None:
    """Return the examples of a command for its help, each in two lines that are not wrapped; None: it has none."""
    lines = [f"  # {about}\n  gang-extender {words}" for about, words in EXAMPLES.get(command, ())]
    return "\b\nExamples:\n" + "\n".join(lines) if lines else None
