"""The texts of conditions and Events: the answer of `explain` and what helps most, cut, and never a hint as a reason."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from extender.core.admit.gang_sentences import (
    MESSAGE_MAX,
    Sentences,
    refused_text,
    waiting_text,
)
from extender.core.log.reservation_state import LastDecision
from extender.core.model.ids import Position
from extender.core.model.message_formatting import spaced
from extender.queries.explain.object_explanation import Finding
from tests.support.service.fakes import Stage
from tests.support.service.manifest_builders import GPU, RACK, a_gang, a_node, a_pod
from tests.unit.control.actuators.test_nominator import reported
from tests.unit.queries.explain.test_explain_service import explaining

WHO = "PodGroup ns/g"
# long ones are repeated: to draw each of their letters takes a tenth of a second
texts = st.builds(
    lambda part, length: (part * length)[:length],
    st.text(min_size=1, max_size=20),
    st.integers(1, 2 * MESSAGE_MAX),
)


def decision(outcome="impossible", reasons=(f"{WHO} needs 2 pods",), **more):
    return LastDecision(outcome=outcome, reasons=reasons, position=Position(1), at_us=0, **more)


@given(texts, st.lists(texts, max_size=3), st.lists(texts, max_size=3))
def test_a_message_is_never_longer_than_stated(answer, reasons, help_) -> None:
    """It begins with the answer, or the begin of it; help is whole or not there."""
    message = Sentences(answer=answer, reasons=tuple(reasons), help=tuple(help_)).message()
    assert 0 < len(message) <= MESSAGE_MAX
    assert message.startswith(answer[: MESSAGE_MAX - 1])
    whole = f"{answer}. What would help: {help_[0]}" if help_ else answer
    if len(whole) <= MESSAGE_MAX:
        assert message.endswith(whole.removeprefix(answer))


def test_reasons_give_way_to_what_would_help() -> None:
    long = "x" * (MESSAGE_MAX - 20)
    message = Sentences(answer="A", reasons=("b", long), help=("c", "d")).message()
    assert message == "A; b. What would help: c"


def test_never_is_another_answer_than_not_now() -> None:
    now = refused_text(WHO, decision(when_empty="fits"))
    assert now == "does not fit now: it needs 2 pods; it fits when no other pod runs"
    not_known = refused_text(WHO, decision(when_empty="unknown"))
    assert not_known == "does not fit now: it needs 2 pods"
    never = refused_text(WHO, decision(when_empty="never", reasons_when_empty=("no node has x",)))
    assert never == "can never be placed on these nodes, also when no other pod runs: no node has x"
    assert refused_text(WHO, decision("unknown")) == "may fit or not: it needs 2 pods"


def test_parts_of_sentences() -> None:
    assert waiting_text("waiting for members of PodGroup ns/g: 2 required, 1 present") == (
        "waits for members of PodGroup ns/g: 2 required, 1 present"
    )
    assert waiting_text("kube-scheduler schedules groups itself") == (
        "waits: kube-scheduler schedules groups itself"
    )
    finding = Finding(subject=WHO, text="runs", checks=())
    assert (finding.answer, finding.clause) == (f"{WHO} runs", f"{WHO}, which runs")


async def test_condition_event_and_explain_have_one_answer() -> None:
    """Two gangs that wait, one for ever: the group's condition and the pod's Event begin with the line of explain."""
    nodes = [a_node(f"n{n}", {RACK: f"r{n // 2}"}, gpu=8) for n in range(4)]
    runs = [a_pod(f"other-{n}", node=f"n{n}", requests={GPU: 8}) for n in (0, 2)]
    big = a_gang("big", pods=5, requests={GPU: 8})
    late = a_gang("late", pods=2, requests={GPU: 8}, topo=RACK)
    async with await Stage(*nodes, *runs, *big, *late).lead() as stage:
        stage.start(stage.reporter.run())
        await stage.settled()
        stage.clock.advance(2)
        await stage.settled()
        await stage.settled()
        await reported(stage)
        ask = explaining(stage)
        for name, reason in (("big", "NeverFits"), ("late", "Unschedulable")):
            answer = (await ask(f"PodGroup/{name}")).answer
            (event,) = {n.message for n in stage.cluster.notices if n.name == f"{name}-0"}
            assert event.startswith(answer)
            assert ". What would help: " in event
            root = stage.root(name)
            assert root.last_decision is not None
            assert event.endswith(root.last_decision.help[0])
            assert not {*root.last_decision.help} & {*root.last_decision.reasons}
            (condition,) = stage.cluster.group(name).conditions
            assert (condition[2], condition[3]) == (reason, event)
            assert spaced(f"PodGroup/default/{name}") in answer
