"""The turns of searches and their back-off, as pure functions of what waits and what each search took."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from extender.core.fairness.search_turns import (
    GROWTH_MAX,
    HIGHEST_PER_LOWER,
    PAUSE_FIRST_MS,
    PAUSE_MAX_MS,
    QUANTUM_MS,
    SearchBackoff,
    SearchTurns,
    WaitingSearch,
    turns_of,
)
from extender.core.model.ids import GangUid, GroupKey
from extender.core.planner.plan_types import PlanGroup, PlanRequest, Refusal, SearchEffort
from tests.support.hypothesis_profile import examples

LONGEST_MS = 4_000
efforts = st.integers(0, LONGEST_MS)


def waiting(namespace: str, count: int, priority: int = 0, first: int = 0) -> list[WaitingSearch]:
    """Make searches of one namespace."""
    return [
        WaitingSearch(GangUid(f"{namespace}/{n}"), namespace, priority)
        for n in range(first, first + count)
    ]


def served(turns: SearchTurns, queue: list[WaitingSearch], effort: int) -> WaitingSearch:
    """Search the next tree of a queue."""
    chosen = turns.choose(queue)
    assert chosen is not None
    queue.remove(chosen)
    turns.charge(chosen.namespace, effort)
    return chosen


@examples(400)
@given(st.lists(st.lists(efforts, min_size=1, max_size=8), min_size=2, max_size=5), st.data())
def test_namespaces_that_always_search_get_the_same(costs, data):
    """Whatever their searches take, none is ahead of another by more than a quantum and two searches."""
    turns, spent = SearchTurns(), Counter()
    for number in range(60):
        queue = [search for n in range(len(costs)) for search in waiting(f"n{n}", 2)]
        queue = data.draw(st.permutations(queue)) if number % 20 == 0 else queue
        chosen = turns.choose(queue)
        mine = costs[int(chosen.namespace[1:])]
        effort = max(mine[number % len(mine)], 1)
        turns.charge(chosen.namespace, effort)
        spent[chosen.namespace] += effort
    shares = [spent[f"n{n}"] for n in range(len(costs))]
    assert max(shares) - min(shares) <= QUANTUM_MS + 2 * LONGEST_MS


@examples(400)
@given(st.integers(1, 40), efforts, st.lists(efforts, max_size=20))
def test_a_namespace_that_comes_later_waits_for_one_search_of_each_other(count, long, before):
    """However many searches the others have, and whatever they took before."""
    turns = SearchTurns()
    queue = waiting("flood", count) + waiting("other", count)
    for effort in before:
        served(turns, queue or waiting("flood", 1), effort)
    queue = waiting("flood", count, first=count) + waiting("other", count, first=count)
    queue += waiting("late", 1)
    names = [served(turns, queue, long).namespace for _ in range(3)]
    assert "late" in names


@examples(300)
@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 2)), min_size=1, max_size=25),
    st.lists(efforts, min_size=25, max_size=25),
)
def test_all_are_served_in_order_of_priority_and_of_their_namespace(added, took):
    """Trees below the highest priority get a quarter of its effort, beside it, and in a namespace the order of the queue holds."""
    turns = SearchTurns()
    queue = [WaitingSearch(GangUid(str(n)), name, level) for n, (name, level) in enumerate(added)]
    order, highest_spent, below_spent = [], 0, 0
    for effort in took[: len(added)]:
        levels = {search.priority for search in queue}
        chosen = served(turns, queue, effort)
        order.append(chosen)
        if len(levels) == 1:
            highest_spent = below_spent = 0
        elif chosen.priority == max(levels):
            highest_spent += max(effort, 1)
        else:
            assert below_spent + QUANTUM_MS <= highest_spent / HIGHEST_PER_LOWER
            below_spent += max(effort, 1)
    assert turns.choose(queue) is None
    for name in "abc":
        for level in range(3):
            uids = [int(s.uid) for s in order if (s.namespace, s.priority) == (name, level)]
            assert uids == sorted(uids)


@examples(200)
@given(st.integers(1, 6), st.integers(1, 12), st.integers(100, LONGEST_MS))
def test_no_tree_below_waits_for_ever(high, low, effort):
    """All that wait come back after each search: each tree of lower priority is searched in its turn."""
    turns, searched = SearchTurns(), Counter()
    queue = waiting("high", high, priority=1) + waiting("low", low)
    rounds = 4 * (HIGHEST_PER_LOWER + 1) * (low + QUANTUM_MS * HIGHEST_PER_LOWER // effort)
    for _ in range(rounds):
        chosen = turns.choose(queue)
        assert chosen is not None
        turns.charge(chosen.namespace, effort)
        searched[chosen.uid] += 1
    below = [searched[f"low/{n}"] for n in range(low)]
    assert max(below) - min(below) <= 1
    assert min(below) >= 1
    assert sum(below) * HIGHEST_PER_LOWER <= rounds - sum(below)


def test_a_search_that_holds_up_is_not_passed():
    """Its answer may take what a tree of lower priority would get."""
    turns = SearchTurns()
    below = waiting("low", 1)
    first = WaitingSearch(GangUid("high"), "high", 1, holds_up=True)
    for _ in range(9):
        assert turns.choose([first, *below]) is first
        turns.charge("high", 10 * QUANTUM_MS)
    assert turns.choose([*waiting("high", 1, priority=1), *below]) is below[0]


@examples(200)
@given(st.lists(st.tuples(st.sampled_from("abcd"), efforts), max_size=40))
def test_the_same_calls_lead_to_the_same_choices(calls):
    """No clock and no order of hashes decides."""

    def play() -> list[str]:
        turns, chosen = SearchTurns(), []
        for namespace, effort in calls:
            queue = [*waiting(namespace, 1), *waiting("a", 1), *waiting("z", 1)]
            chosen.append(served(turns, queue, effort).uid)
        return chosen

    assert play() == play()


def test_a_debt_is_not_lost_by_a_pause_and_nothing_is_saved_for_later():
    """One long search at a time is no way around the turns; who was idle is served once, not ten times in a row."""
    turns = SearchTurns()
    served(turns, waiting("long", 1), 10_000)
    names = [
        served(turns, waiting("long", 1) + waiting("other", 1), 1_000).namespace for _ in range(9)
    ]
    assert names.count("long") == 0
    for _ in range(50):
        served(turns, waiting("busy", 1), 1_000)
    names = [
        served(turns, waiting("busy", 1) + waiting("idle", 1), 1_000).namespace for _ in range(6)
    ]
    assert names.count("idle") <= 4


def test_why_a_tree_waits():
    """Its place is counted in its own namespace; of others only their number."""
    queue = waiting("a", 3) + waiting("b", 1) + waiting("vip", 2, priority=5)
    turns = turns_of(queue)
    assert turns["a/2"].sentence() == (
        "waiting for its turn: other searches of its namespace come first: 2; other namespaces that search too: 1; "
        "searches of higher priority: 2"
    )
    assert turns["vip/0"].sentence() == "waiting for its turn: its search is next"


ROOT = PlanGroup(key=GroupKey("ns", "g", "PodGroup"))
SPENT = Refusal(outcome="unknown", status="Unschedulable", reasons=("",), search=SearchEffort(nodes=1, exhausted=False))  # fmt: skip
PROVED = Refusal(outcome="impossible", status="Unschedulable", reasons=("",), search=SearchEffort(nodes=1, exhausted=True))  # fmt: skip


def test_the_budget_doubles_up_to_a_bound_and_so_does_the_pause():
    """Until a search ends with a proof, or the tree is another one."""
    uid, backoff = GangUid("u"), SearchBackoff(100)
    request = PlanRequest(root=ROOT, nodes=(), shapes=())
    budgets, pauses = [], []
    for _ in range(30):
        budgets.append(backoff.budget(uid, ROOT, ()))
        pauses.append(backoff.answered(uid, request, SPENT, 2_000))
    assert budgets[:5] == [100, 200, 400, 800, 800]
    assert max(budgets) == 100 * GROWTH_MAX
    assert pauses[:3] == [PAUSE_FIRST_MS, 2 * PAUSE_FIRST_MS, 4 * PAUSE_FIRST_MS]
    assert pauses[-1] == PAUSE_MAX_MS
    other = PlanGroup(key=ROOT.key, minimum=2)
    assert backoff.budget(uid, other, ()) == 100
    assert backoff.repeated(uid)
    assert backoff.answered(uid, request, PROVED, 2_000) == 0
    assert backoff.budget(uid, ROOT, ()) == 100
    assert not backoff.repeated(uid)
