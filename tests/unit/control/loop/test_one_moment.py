"""The steps of a pass get one moment, and none of them asks for the newest view, trees or state itself."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import extender.control

CONTROL = Path(extender.control.__file__).parent
# Where "now" is asked for, by function. In the control loop: where a moment begins, or where only a change is waited for.
BEGINS = {
    "admission/cluster_observer.py": {"approach", "observe", "_moment"},
    "loop/control_loop.py": {
        "_run_pass", "search",  # a moment begins
        "_actuate", "_end_recovery",  # the committed state, once
        "_seen", "_next_change", "_unexpected_change", "_can_wait", "_changes_after",  # what is waited for
    },
    "admission/pending_trees.py": {"admit_postponed", "_perform"},
    "admission/tree_searches.py": {"away", "_run"},
    # Writes look again when they may act: each is a step of its own.
    "actuators/nominator.py": {"_carry_out", "_claim_of", "_is_current", "_wake_or_clear", "_path_of"},
    "actuators/evictor.py": {"_still_due", "_wait_and_recheck", "_mark_groups", "_lost"},
    "actuators/move_controller.py": {
        "_process", "_keeps",
        "begin", "_writable",  # requests of users
        "look", "_refusal",  # the policy asks in a task of its own, and looks again when it has the answer
    },
    "actuators/status_reporter.py": {"_write"},
    "actuators/finalizer_controller.py": {"__init__", "_work_for_a_round", "_held", "_write"},
    "actuators/write_priority.py": {"_are_being_placed"},
}  # fmt: skip
ASKS = {"view", "observe", "pending_state", "committed"}  # of a cluster, an observer, a leader


def asked_in(path):
    """Yield the function and the name of each question for the newest view, trees or state."""
    tree = ast.parse(path.read_text())
    functions = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
    for function in functions:
        for node in ast.walk(function):
            if not isinstance(node, ast.Attribute) or node.attr not in ASKS:
                continue
            of = ast.unparse(node.value)
            if of.rpartition(".")[2].removeprefix("_") in ("cluster", "observer", "leader"):
                yield function.name, node.attr


def test_only_the_begin_of_a_step_asks_for_now():
    """A step that asked again after an await would have a view and trees that do not belong together."""
    folders = ("loop", "admission", "actuators")
    paths = [path for folder in folders for path in (CONTROL / folder).glob("*.py")]
    asked = {
        (str(path.relative_to(CONTROL)), function, name)
        for path in paths
        for function, name in asked_in(path)
    }
    wrong = {one for one in asked if one[1] not in BEGINS.get(one[0], ())}
    assert not wrong
    assert {path for path, _, _ in asked} >= {
        "admission/cluster_observer.py",
        "loop/control_loop.py",
    }


def test_the_steps_of_a_pass_have_no_cluster_to_ask():
    """What is planned and reconciled gets a moment; only the observer and the loop itself hold the cluster."""
    holders = {
        str(path.relative_to(CONTROL))
        for folder in ("loop", "admission")
        for path in (CONTROL / folder).glob("*.py")
        if re.search(r"self\._cluster = |_parts\.cluster\b", path.read_text())
    }
    assert holders == {
        "admission/cluster_observer.py",
        "loop/control_loop.py",
    }
