"""Defects that are planted one at a time, to see whether the seeds find them: each replaces text in one function of the service."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import textwrap
from collections.abc import Iterator
from types import CodeType, FunctionType
from typing import Any, Final

# Name -> module, function, text, other text.
DEFECTS: Final[dict[str, tuple[str, str, str, str]]] = {
    "the barrier opens one member early": (
        "control.binding.bind_barrier", "BindBarriers._evaluate",
        "if unit is None or barrier.missing_count:", "if unit is None or barrier.missing_count > 1:",
    ),
    "a bind call whose reservation was released keeps waiting": (
        "control.binding.bind_barrier", "BindBarriers._compare",
        "current is None or current.plan != arrival.reservation.plan", "False",
    ),
    "a Binding is posted though its caller has gone": (
        "control.binding.bind_barrier", "BindBarriers._may_post", "if not live:", "if False:",
    ),
    "a Binding is not tried again": (
        "control.binding.bind_barrier", "BindBarriers._post_binding",
        "await asyncio.sleep(max(pause_s, error.retry_after_s))", 'return "busy"',
    ),
    "a barrier that bound nothing stays open": (
        "control.binding.bind_barrier", "BindBarriers._close_unless_started",
        "barrier.opened = False", "pass",
    ),
    "a refused pod is not woken when a claim ends": (
        "control.actuators.nominator", "PodWaker.sync",
        "self._queue.add(pod.uid)", "pass",
    ),
    "a reservation is not released when its pod is gone": (
        "core.reconcile.cluster_reconciliation", "_unusable",
        "if pod is None:\n            return", "if pod is None:\n            return None\n            return",
    ),
    "a reservation on a lost node is kept": (
        "core.reconcile.cluster_reconciliation", "_unusable",
        "if node is None or node.deleting:", "if node is None:\n            return None\n        if node.deleting:",
    ),
    "unused reservations never expire": (
        "core.reconcile.cluster_reconciliation", "_released",
        "if root.uid in now.expired and not bound_here:", "if False:",
    ),
    "a tree whose group was deleted keeps its reservations": (
        "core.reconcile.cluster_reconciliation", "_released",
        "if changed and not started:", "changed = {}\n    if changed:",
    ),
    "wrong sign: a refusal holds while nodes gain capacity": (
        "core.admit.verdict_events", "_less",
        "now.free.get(name, 0) <= amount", "now.free.get(name, 0) >= amount",
    ),
    "a refusal holds although its append failed": (
        "control.admission.tree_admission", "TreeAdmission._would_be_refused",
        "if self._trees[uid].decided_at != _decided_at(state, uid):", "if False:",
    ),
    "a pass is left out although something has changed": (
        "control.admission.pending_trees", "PendingTrees.nothing_to_admit",
        "return self._idle_filter", "return now.pending.position > 6 or self._idle_filter",
    ),
    "reservations of others count as free capacity": (
        "core.capacity.free_capacity", "_claimed", "elif not is_in_use(view, claim):", "elif False:",
    ),
    "what runs counts twice": (
        "core.capacity.free_capacity", "make_row",
        "for name, amount in usage.requests.items():", "for name, amount in (*usage.requests.items(), *usage.requests.items()):",
    ),
    "terminating pods count as gone": (
        "core.model.cluster_view", "_take", "for name, amount in pod.shape.requests:",
        "for name, amount in () if pod.deleting else pod.shape.requests:",
    ),
    "filter lets other pods use reserved capacity": (
        "core.verbs.filter_and_prioritize", "decide_filter",
        "return _protect(view, state, pod, offered)",
        'return FilterDecision(outcome="passed", passed=tuple(offered))',
    ),
    "wrong sign: pods of equal priority are victims": (
        "core.preempt.disruption_units", "",  # the class is looked up below
        "if priority >= self.tree.root.priority or pod.uid in self.own or exempt:",
        "if priority > self.tree.root.priority or pod.uid in self.own or exempt:",
    ),
    "a capacity hold never ends": (
        "core.holds.hold_planning", "decide_hold_ends", "def end_of(hold: CapacityHold) -> Iterator[ev.NewEvent]:",
        "def end_of(hold: CapacityHold) -> Iterator[ev.NewEvent]:\n        return\n        yield",
    ),
    "writes go on after the lease has run out": (
        "control.log.leader_role", "LeaderRole.may_act", "and self.lease.holds()", "",
    ),
    "a lease counts for three times its length": (
        "control.log.leader_role", "Lease._extend", "asked_ms + self._identity.ttl_ms -", "asked_ms + 3 * self._identity.ttl_ms -",
    ),
    "the pending state is not reset after a failed append": (
        "control.log.append_pipeline", "AppendPipeline.fail", "self.pending = self.committed", "pass",
    ),
    "an append without an answer counts as written": (
        "control.log.append_pipeline", "AppendPipeline.settle",
        "if all(event.event_id in recorded for event in append.events):", "if True:",
    ),
    "what vanished from a list stays in the copy": (
        "cluster.api_server.informers", "Informer._replace",
        "if key not in items]", "if False]",
    ),
    "an expired watch is not listed again": (
        "cluster.api_server.informers", "Informer.run",
        "except ResourceVersionExpired as expiry:\n                self._lose(str(expiry))",
        "except ResourceVersionExpired as expiry:\n                await asyncio.sleep(60)",
    ),
    "a gate that was not removed is not tried again": (
        "control.actuators.nominator", "Nominator._execute", "return await retried(", "await retried(",
    ),
    "an eviction that failed is not tried again": (
        "control.actuators.evictor", "Evictor._process", "return Retry(", "return None and Retry(",
    ),
    "a new leader does not wait for its view": (
        "control.loop.control_loop", "ControlLoop._catch_up", "await self._parts.cluster.catch_up()", "pass",
    ),
    "a new leader starts from an old fold": (
        "control.log.follower", "Follower.state_at",
        "return await fold_from(self.state, self._log, until=head.position)", "return self.state",
    ),
    "the control loop forgets changes during a pass": (
        "control.loop.control_loop", "ControlLoop._next_change",
        "for change in self._changes_after(before)", "for change in self._changes_after(self._seen())",
    ),
    "a replacement hold never ends": (
        "core.capacity.capacity_claims", "expired_holds", "return frozenset(", "return frozenset() and frozenset(",
    ),
}  # fmt: skip
# The same rule elsewhere: alone, either one keeps the other from showing.
BESIDE: Final = {
    "wrong sign: pods of equal priority are victims": (
        "core.planner.preempt.post_eviction_view", "PostEvictionView.__init__",
        "if u.priority < source.priority]", "if u.priority <= source.priority]",
    ),
}  # fmt: skip


def _function(name: str, place: tuple[str, str, str, str]) -> tuple[FunctionType, str, str]:
    """Return the function of a defect, its text and the other text.

    Raises:
        LookupError: The text is not in it once; the defect must be written anew.
    """
    module_name, path, text, other = place
    module = importlib.import_module(f"extender.{module_name}")
    for function in _functions(module, path):
        source = textwrap.dedent(inspect.getsource(function))
        if source.count(textwrap.dedent(text)) == 1 or source.count(text) == 1:
            return function, source, source.replace(text, other)
        indented = inspect.getsource(function)
        if indented.count(text) == 1:
            return function, source, textwrap.dedent(indented.replace(text, other))
    raise LookupError(f"{name}: {text!r} is not in {module_name}.{path}")


def _functions(module: Any, path: str) -> Iterator[FunctionType]:
    """Yield the function of a path, or all of a module where it is empty."""
    if path:
        target: Any = module
        for part in path.split("."):
            target = inspect.getattr_static(target, part)
        yield target
        return
    for value in vars(module).values():
        if isinstance(value, FunctionType) and value.__module__ == module.__name__:
            yield value
        elif inspect.isclass(value) and value.__module__ == module.__name__:
            yield from (f for f in vars(value).values() if isinstance(f, FunctionType))


@contextlib.contextmanager
def planted(name: str) -> Iterator[None]:
    """Run with one defect; everything that has the function has the defect."""
    places = [DEFECTS[name], *([BESIDE[name]] if name in BESIDE else [])]
    functions = [_function(name, place) for place in places]
    before = [function.__code__ for function, _, _ in functions]
    for function, _, changed in functions:
        whole = compile(f"from __future__ import annotations\n{changed}", f"<{name}>", "exec")
        codes = [c for c in whole.co_consts if isinstance(c, CodeType)]
        (function.__code__,) = (c for c in codes if c.co_name == function.__name__)
    try:
        yield
    finally:
        for (function, _, _), code in zip(functions, before, strict=True):
            function.__code__ = code
