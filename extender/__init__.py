"""gang-extender: places trees of pod groups as one unit beside a stock kube-scheduler, and records every decision.

Start with `extender/README.md`: a map of the folders, the steps from an informer to a Binding with links to the modules,
and the tables of states and events. Then read `core/log/reservation_state.py`, `core/planner/plan_types.py`,
`core/planner/planning.py`, `store/log/postgres_event_log.py` and `http/scheduler/wire.py`.
"""

__version__ = "0.1.0"
