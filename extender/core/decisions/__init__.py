"""Decisions: where the view, the state and the planner meet.

`requests` asks the planner, `admission` turns its answer into facts, `reconcile` turns what the
cluster shows into facts, `verbs` answers kube-scheduler. All pure: the caller passes the time.
"""
