"""gang-extender: places trees of pod groups as one unit beside a stock kube-scheduler, and remembers why.

Reading order: `service/scheduling.py` (the straight line), `core/decisions/verbs.py`, `core/state.py`,
`core/planner/` (`placement.py` first, `search.py` last), `store/event_log.py`, `http/wire.py`.
The map of the house and the state table are in `extender/README.md`.
"""

__version__ = "0.1.0"
