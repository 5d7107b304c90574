"""What a stolen token of the extender, and users, cannot do; each request is accepted without the policies (C3, M1-M3)."""

from __future__ import annotations

import copy
import itertools

import pytest

from extender.core.workloads.kind_table import KINDS
from tests.controlplane.api import Api, Object
from tests.controlplane.objects import path_of
from tests.e2e.security.attempts import LABEL, PODS, Attempt
from tests.e2e.security.conftest import BINDINGS, RIGHTS, VALIDATING, Secured, documents
from tests.e2e.security.uses import Right
from tests.support.waiting import eventually

pytestmark = [pytest.mark.e2e, pytest.mark.kubernetes("1.37", "1.36")]

ACCOUNT = "system:serviceaccount:gang-extender:gang-extender"


async def test_what_the_policies_refuse_is_accepted_without_them(secured: Secured) -> None:
    """Without: every request is accepted. With: each is refused by its policy, and the service does all that it does."""
    await secured.remove_policies()
    refusals = await secured.send(*secured.attempts)
    assert {name: refusal for name, refusal in refusals.items() if refusal} == {}
    assert await secured.use() == {}

    await secured.install_policies()

    refusals = await secured.send(*secured.attempts)
    assert len(refusals) == len(secured.attempts), "two have one name"
    for one in secured.attempts:
        words = f"ValidatingAdmissionPolicy '{one.policy}'"
        assert words in refusals[one.name], (one.name, refusals[one.name])
    assert await secured.use() == {}


@pytest.fixture
async def enforced(secured: Secured) -> Secured:
    """All policies are enforced."""
    await secured.install_policies()
    return secured


@pytest.mark.full
@pytest.mark.kubernetes("1.37")
async def test_each_policy_is_needed(enforced: Secured) -> None:
    """Without the binding of one, which is how it is switched off, what it refuses is accepted, and nothing else."""
    by_policy: dict[str, list[Attempt]] = {}
    for one in enforced.attempts:
        by_policy.setdefault(one.policy, []).append(one)
    removed: Object | None = None
    before: list[Attempt] = []
    for policy, mine in by_policy.items():
        restored, removed = removed, await enforced.admin.get(f"{BINDINGS}/{policy}")
        await enforced.admin.delete(f"{BINDINGS}/{policy}")
        if restored is not None:
            await enforced.restore(restored)
        wanted = {mine[0].name: False} | {one.name: True for one in before[:1]}

        async def switched(wanted: dict[str, bool] = wanted) -> bool:
            probes = [one for one in enforced.attempts if one.name in wanted]
            refusals = await enforced.send(*probes)
            return {name: bool(refusal) for name, refusal in refusals.items()} == wanted

        await eventually(switched, every_s=0.1)
        refusals = await enforced.send(*enforced.attempts)
        accepted = {name for name, refusal in refusals.items() if not refusal}
        assert accepted == {one.name for one in mine}
        assert await enforced.use() == {}
        before = mine
    assert removed is not None
    await enforced.restore(removed)


def rights() -> dict[tuple[str, Right], list[Object]]:
    """Return the roles of the account of the extender that give a right, by their namespace and the right."""
    found: dict[tuple[str, Right], list[Object]] = {}
    bound = {
        one["roleRef"]["name"]
        for one in documents(*RIGHTS)
        if one["kind"] in ("RoleBinding", "ClusterRoleBinding")
    }
    for role in documents(*RIGHTS):
        if role["kind"] not in ("Role", "ClusterRole") or role["metadata"]["name"] not in bound:
            continue
        for rule in role["rules"]:
            for right in itertools.product(
                rule.get("apiGroups", ()), rule.get("resources", ()), rule["verbs"]
            ):
                found.setdefault((role["metadata"].get("namespace", ""), right), []).append(role)
    return found


def without(role: Object, right: Right) -> Object:
    """Return a role without one right."""
    made = copy.deepcopy(role)
    made["rules"] = []
    for rule in role["rules"]:
        for group in rule.get("apiGroups", ()):
            for resource in rule["resources"]:
                verbs = [verb for verb in rule["verbs"] if (group, resource, verb) != right]
                if verbs:
                    made["rules"].append(
                        {**rule, "apiGroups": [group], "resources": [resource], "verbs": verbs}
                    )
    return made


async def allowed(api: Api, role: Object, right: Right) -> bool:
    """Ask kube-apiserver whether the account has a right."""
    group, path, verb = right
    resource, _, subresource = path.partition("/")
    asked = {"group": group, "resource": resource, "subresource": subresource, "verb": verb}
    asked["namespace"] = role["metadata"].get("namespace", "default")
    asked["name"] = next(
        (
            rule["resourceNames"][0]
            for rule in role["rules"]
            if verb in rule["verbs"] and "resourceNames" in rule
        ),
        "any",
    )
    body = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {"user": ACCOUNT, "resourceAttributes": asked},
    }
    answer = await api.post("/apis/authorization.k8s.io/v1/subjectaccessreviews", body)
    return bool(answer["status"]["allowed"])


# The kinds of workloads, whose roles tests/e2e/trees/policies tests.
OTHER_GROUPS = {kind.group for kind in KINDS}
OTHER_RESOURCES = ("treeprofiles", "workloads")


@pytest.mark.full
@pytest.mark.kubernetes("1.37")
async def test_each_right_is_needed(enforced: Secured) -> None:
    """Without one of them exactly the uses that take it fail, each with a refusal that names what is missing."""
    uses = enforced.uses.all()
    for (_, right), roles in rights().items():
        if right[0] in OTHER_GROUPS or (right[1] in OTHER_RESOURCES and right[2] != "create"):
            continue
        broken = {use.name for use in uses if right in use.rights}
        assert broken, f"the right {right} is not needed"
        await replace(enforced.admin, [without(role, right) for role in roles])

        async def gone(role: Object = roles[0], right: Right = right) -> bool:
            return not await allowed(enforced.admin, role, right)

        try:
            await eventually(gone)
            errors = await enforced.use()
        finally:
            await replace(enforced.admin, roles)
        assert errors.keys() == broken, (right, errors)
        assert all("forbidden" in text or "refused" in text for text in errors.values()), errors

        async def back(role: Object = roles[0], right: Right = right) -> bool:
            return await allowed(enforced.admin, role, right)

        await eventually(back)
    assert await enforced.use() == {}


REVIEWS = {"review a token", "review a right"}


@pytest.mark.kubernetes("1.37")
async def test_the_reviews_need_their_binding(enforced: Secured) -> None:
    """Their role is built in, so the binding is removed: then tokens and rights are not reviewed, and all else works."""
    name = "gang-extender-auth-delegator"
    binding = next(one for one in documents("rbac") if one["metadata"]["name"] == name)
    await enforced.admin.delete(path_of(binding, named=True))

    async def refused() -> bool:
        return (await enforced.use()).keys() == REVIEWS

    try:
        await eventually(refused)
        errors = await enforced.use()
        assert all(
            "needs the ClusterRole system:auth-delegator" in text for text in errors.values()
        )
    finally:
        await enforced.admin.create(binding)

    async def works() -> bool:
        return await enforced.use() == {}

    await eventually(works)


async def replace(api: Api, roles: list[Object]) -> None:
    """Write the rules of roles."""
    for role in roles:
        stored = await api.get(path_of(role, named=True))
        await api.put(path_of(role, named=True), stored | {"rules": role["rules"]})


async def test_subresources_that_are_for_other_fields_keep_the_label(enforced: Secured) -> None:
    """pods/resize and pods/ephemeralcontainers drop a change of the labels, for an administrator too."""
    for where in ("resize", "ephemeralcontainers"):
        patch = {"metadata": {"labels": {LABEL: "h"}}}
        found = await enforced.admin.patch(f"{PODS}/held/{where}", patch, dryRun="All")
        assert found["metadata"]["labels"][LABEL] == "g"


@pytest.mark.kubernetes("1.37")
async def test_the_expressions_fit_the_types(enforced: Secured) -> None:
    """The type checker of Kubernetes has no warning about any of them."""
    plane, admin = enforced.plane, enforced.admin
    plane.start_controller_manager(["validatingadmissionpolicy-status-controller"])
    names = {one.policy for one in enforced.attempts}

    async def checked() -> dict[str, Object] | None:
        found = {
            name: (await admin.get(f"{VALIDATING}/{name}")).get("status", {}) for name in names
        }
        return found if all("typeChecking" in status for status in found.values()) else None

    try:
        found = await eventually(checked)
    finally:
        plane.stop_controller_manager()
    assert {
        name: status["typeChecking"] for name, status in found.items() if status["typeChecking"]
    } == {}
