"""gang-extender: places trees of pod groups as one unit beside a stock kube-scheduler, and remembers why.

Reading order: `control/verbs/extender_service.py` (the straight line), `core/decisions/verbs/filter_and_prioritize.py`, `core/log/reservation_state.py`,
`core/planner/` (`placement.py` first, `search.py` last), `store/log/postgres_event_log.py`, `http/scheduler/wire.py`.
The map of the house and the state table are in `extender/README.md`.
"""

__version__ = "0.1.0"
