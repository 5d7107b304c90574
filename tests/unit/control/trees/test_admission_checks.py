"""AdmissionChecks of Kueue: the answer of the real planner to each, once, and what a restart or another writer does to it."""

from __future__ import annotations

import copy

import pytest

from extender.cluster.read.object_decoding import convert
from extender.cluster.types import WorkloadManifest
from extender.control.trees import admission_check_controller
from extender.control.trees.admission_check_controller import PLANNED_MAX, AdmissionCheckController
from extender.core.model.errors import BadInput, ClusterUnavailable
from extender.core.workloads.admission_checks import CONTROLLER
from extender.core.workloads.tree_policy import TreeProfile
from tests.support.service.fake_workloads import FakeWorkloads
from tests.support.service.fakes import Stage
from tests.support.service.live_plans import live_plans
from tests.support.service.manifest_builders import a_node, a_pod

TREE = "gang-extender.dev/tree"
TIME = "2026-11-29T12:00:00Z"


class Checks(FakeWorkloads):
    """Workloads, and the objects of Kueue beside them; an answer is stored as kube-apiserver does, with its precondition."""

    def __init__(self, stage, *objects):
        super().__init__(stage.cluster, *objects)
        self.version = 0
        self.kueue = {}  # Workloads by UID
        self.answers = []  # (workload, state, message, seconds until Kueue asks again)
        self.refuses = 0  # answers that fail
        self.activated = []
        self.put_kueue("AdmissionCheck", "gangs", {"controllerName": CONTROLLER})

    def _version(self):
        self.version += 1
        return str(self.version)

    def put_kueue(self, kind, name, spec, status=None, owner=None):
        """Create an object of Kueue."""
        metadata = {
            "name": name,
            "uid": f"uid-{name}",
            "resourceVersion": self._version(),
            "generation": 1,
        }
        if kind == "Workload":
            metadata["namespace"] = "default"
            self.kueue[f"uid-{name}"] = one = {}
        else:
            one = {}
        if owner is not None:
            reference = {key: owner["metadata"][key] for key in ("name", "uid")}
            metadata["ownerReferences"] = [
                {
                    "apiVersion": owner["apiVersion"],
                    "kind": owner["kind"],
                    "controller": True,
                    **reference,
                }
            ]
        one |= {"kind": f"Kueue {kind}", "metadata": metadata, "spec": spec, "status": status or {}}
        self._store(one)

    def queue(
        self,
        name,
        owner,
        *,
        count=2,
        part=None,
        state="Pending",
        admitted=False,
        also="",
        at=TIME,
        flavor="",
        **pod,
    ):
        """Create a Workload of Kueue that has quota."""
        conditions = [{"type": "QuotaReserved", "status": "True", "lastTransitionTime": at}]
        if admitted:
            conditions.append({"type": "Admitted", "status": "True"})
        if also:
            conditions.append({"type": also, "status": "True"})
        flavors = {"cpu": flavor} if flavor else {}
        assignment = {"name": "main", "flavors": flavors, "count": part or count}
        template = owner["spec"]["template"] if owner else {"spec": pod}
        self.put_kueue(
            "Workload",
            name,
            {"podSets": [{"name": "main", "count": count, "template": template}], "active": True},
            {
                "admissionChecks": [{"name": "gangs", "state": state, "message": ""}],
                "conditions": conditions,
                "admission": {"podSetAssignments": [assignment]},
            },
            owner,
        )

    def _store(self, one):
        self.store.upsert(convert(WorkloadManifest, one))
        self._wake()

    async def answer_check(self, queued, check, answer):
        stored = self.kueue[queued.uid]
        if self.refuses:
            self.refuses -= 1
            raise ClusterUnavailable("409 Conflict")
        assert stored["metadata"]["resourceVersion"] == queued.resource_version
        stored["metadata"]["resourceVersion"] = self._version()
        (entry,) = [one for one in stored["status"]["admissionChecks"] if one["name"] == check]
        entry |= {"state": answer.state, "message": answer.message}
        self.answers.append((queued.name, answer.state, answer.message, answer.retry_after_s))
        self._store(stored)

    async def activate_check(self, check):
        self.activated.append(check.name)
        conditions = [{"type": "Active", "status": "True", "observedGeneration": check.generation}]
        self.put_kueue(
            "AdmissionCheck", check.name, {"controllerName": CONTROLLER}, {"conditions": conditions}
        )


def a_job(name, pods=2, cpu="1", **spec):
    container = {"name": "main", "resources": {"requests": {"cpu": cpu}}}
    template = {
        "metadata": {"labels": {TREE: "default"}},
        "spec": {"restartPolicy": "Never", "containers": [container], **spec},
    }
    metadata = {
        "name": name,
        "namespace": "default",
        "uid": f"uid-of-{name}",
        "labels": {TREE: "default"},
    }
    return {
        "apiVersion": "batch/v1", "kind": "Job", "metadata": metadata,
        "spec": {"parallelism": pods, "completions": pods, "suspend": True, "template": template},
    }  # fmt: skip


def controller(stage, checks, **more):
    plans = live_plans(stage)

    async def ask(body, readers):
        return (await plans.plan(body, readers)).body

    stage.cluster.workloads = checks
    return AdmissionCheckController(
        stage.cluster, checks, stage.leader, ask, stage.settings, **more
    )


async def asked(*objects, jobs=(), **settings):
    """Return a leading stage with nodes, Workloads of Kueue for some Jobs, and the controller."""
    stage = Stage(*objects, **settings)
    await stage.lead()
    checks = Checks(stage, *jobs)
    return stage, checks, controller(stage, checks)


def states(checks):
    return [(name, state) for name, state, _, _ in checks.answers]


async def test_a_tree_that_fits_is_ready_and_is_not_asked_again():
    """The check becomes Active first."""
    job = a_job("fits")
    stage, checks, control = await asked(a_node("n1", cpu="2"), jobs=[job])
    async with stage:
        checks.queue("w", job)
        await control.look()
        await control.look()
        assert checks.activated == ["gangs"]
        (answer,) = checks.answers
        assert answer[:2] == ("w", "Ready")
        assert answer[2].startswith("fits now")


async def test_a_tree_that_waits_for_capacity_is_tried_again_with_the_reason_and_what_would_help():
    """The node is full. When Kueue asks again and the other pod is gone, the answer is Ready."""
    job = a_job("waits")
    busy = a_pod("busy", node="n1", priority=2000)
    stage, checks, control = await asked(
        a_node("n1", cpu="2"), busy, jobs=[job], admission_check_retry_s=7
    )
    async with stage:
        checks.queue("w", job)
        await control.look()
        (answer,) = checks.answers
        assert (answer[1], answer[3]) == ("Retry", 7)
        assert "does not fit now" in answer[2]
        assert "cpu" in answer[2]
        stage.cluster.delete_pod("busy")
        checks.queue("w", job)
        await control.look()
        assert states(checks) == [("w", "Retry"), ("w", "Ready")]


async def test_a_tree_that_never_fits_is_rejected_with_the_proof():
    job = a_job("huge", cpu="64")
    stage, checks, control = await asked(a_node("n1", cpu="2"), jobs=[job])
    async with stage:
        checks.queue("w", job)
        await control.look()
        (answer,) = checks.answers
        assert answer[1] == "Rejected"
        assert answer[2].startswith("never fits, whatever else runs; ")
        assert answer[2].endswith("needs 2 pods; the cluster holds 0 (2 missing: cpu)")


async def test_what_an_autoscaler_could_add_a_node_for_is_not_rejected():
    group = {"name": "big", "max": 4, "template": a_node("big-0", {"pool": "big"}, cpu="80")}
    job = a_job("huge", pods=1, cpu="64")
    stage, checks, _ = await asked(a_node("n1", cpu="2"), jobs=[job])
    async with stage:
        checks.queue("w", job, count=1)
        await controller(stage, checks, node_groups=(group,)).look()
        (answer,) = checks.answers
        assert answer[1] == "Retry"
        assert "big" in answer[2]


async def test_two_trees_never_get_the_same_capacity():
    """The second waits for the first, which has its answer and no pods yet; also after a restart between the two."""
    first, second = a_job("first"), a_job("second")
    stage, checks, control = await asked(a_node("n1", cpu="2"), jobs=[first, second])
    async with stage:
        checks.queue("w1", first, at="2026-11-29T12:00:00Z")
        checks.queue("w2", second, at="2026-11-29T12:00:01Z")
        await control.look()
        assert states(checks) == [("w1", "Ready"), ("w2", "Retry")]
        checks.queue("w2", second)
        await controller(stage, checks).look()
        assert states(checks)[2:] == [("w2", "Retry")]


async def test_a_conflict_decides_again_and_the_other_checks_do_not_wait():
    first, second = a_job("first", pods=1), a_job("second", pods=1)
    stage, checks, control = await asked(a_node("n1", cpu="2"), jobs=[first, second])
    async with stage:
        checks.queue("w1", first, count=1)
        checks.queue("w2", second, count=1, at="2026-11-29T12:00:01Z")
        checks.refuses = 1
        with pytest.raises(ClusterUnavailable):
            await control.look()
        await control.look()
        assert states(checks) == [("w2", "Ready"), ("w1", "Ready")]


@pytest.mark.parametrize("how", [{"admitted": True}, {"state": "Ready"}, {"state": "Rejected"}])
async def test_only_pending_checks_of_what_does_not_run_are_answered(how):
    """Retry for a Workload that runs would evict it."""
    job = a_job("runs", cpu="64")
    stage, checks, control = await asked(a_node("n1", cpu="2"), jobs=[job])
    async with stage:
        checks.queue("w", job, **how)
        await control.look()
        assert not checks.answers


@pytest.mark.parametrize("condition", ["Evicted", "DeactivationTarget"])
@pytest.mark.parametrize("fits", [True, False])
async def test_a_check_waits_for_the_end_of_an_eviction(fits, condition):
    """Kueue made it Pending and has not taken the quota yet: an answer would be left in a Workload without quota."""
    job = a_job("again", cpu="1" if fits else "64")
    stage, checks, control = await asked(a_node("n1", cpu="2"), jobs=[job])
    async with stage:
        checks.queue("w", job, also=condition)
        await control.look()
        assert not checks.answers
        checks.queue("w", job)
        await control.look()
        assert states(checks) == [("w", "Ready" if fits else "Rejected")]


async def test_what_kueue_preempts_while_it_is_ready_is_answered_with_its_next_quota():
    """Its first answer is gone with its quota; the capacity is that of the other one meanwhile."""
    job = a_job("again")
    stage, checks, control = await asked(a_node("n1", cpu="2"), jobs=[job])
    async with stage:
        checks.queue("w", job)
        await control.look()
        checks.queue("w", job, state="Ready")
        checks.queue("w", job, also="Evicted")  # Pending again, and the quota is there still
        await control.look()
        assert states(checks) == [("w", "Ready")]
        stage.cluster.add(a_pod("other", node="n1", requests={"cpu": "2"}))
        checks.queue("w", job)
        await control.look()
        assert states(checks) == [("w", "Ready"), ("w", "Retry")]


async def test_pods_without_a_tree_are_planned_together():
    """An owner of a kind that makes no tree: all pods of the pod sets at once."""
    stage, checks, control = await asked(a_node("n1", cpu="2"))
    async with stage:
        pod = {"containers": [{"name": "main", "resources": {"requests": {"cpu": "1"}}}]}
        checks.queue("two", None, count=2, **copy.deepcopy(pod))
        checks.queue("three", None, count=3, at="2026-11-29T12:00:01Z", **pod)
        await control.look()
        assert states(checks) == [("two", "Ready"), ("three", "Rejected")]


async def test_a_workload_whose_owner_is_not_read_yet_waits():
    job = a_job("late")
    stage, checks, control = await asked(a_node("n1", cpu="2"))
    async with stage:
        checks.queue("w", job)
        await control.look()
        assert not checks.answers
        checks.put(job)
        await control.look()
        assert states(checks) == [("w", "Ready")]


async def test_a_workload_whose_kind_is_not_read_yet_waits():
    """Only the Job has the label of a tree: without it, its pods would be planned as if they had no topology."""
    job = a_job("late")
    del job["spec"]["template"]["metadata"]
    stage, checks, control = await asked(a_node("n1", cpu="2"))
    async with stage:
        checks.store.set_synced("Job", synced=False)
        checks.store.set_served({"Job"})
        checks.queue("w", job)
        await control.look()
        assert not checks.answers
        checks.store.set_synced("Job", synced=True)
        await control.look()
        assert states(checks) == [("w", "Ready")]


async def test_the_nodes_of_a_flavor_are_those_that_count():
    """Kueue adds the labels of the flavor when it admits: a node without them is not for the tree."""
    job = a_job("flavored")
    nodes = a_node("n1", {"pool": "a"}, cpu="2"), a_node("n2", {"pool": "b"}, cpu="1")
    stage, checks, control = await asked(*nodes, jobs=[job])
    async with stage:
        for pool in "ab":
            checks.put_kueue("ResourceFlavor", pool, {"nodeLabels": {"pool": pool}})
        checks.queue("w", job, flavor="b")
        await control.look()
        checks.queue("w", job, flavor="a")
        await control.look()
        assert states(checks) == [("w", "Rejected"), ("w", "Ready")]


async def test_no_workload_is_rejected_for_a_profile_that_is_not_read_yet():
    job = a_job("gold")
    for metadata in (job["metadata"], job["spec"]["template"]["metadata"]):
        metadata["labels"][TREE] = "gold"
    stage, checks, control = await asked(a_node("n1", cpu="2"), jobs=[job])
    async with stage:
        checks.store.set_synced("TreeProfile", synced=False)
        checks.queue("w", job)
        await control.look()
        assert not checks.answers
        checks.store.set_synced("TreeProfile", synced=True)
        checks.put_profile(TreeProfile(name="gold"))
        await control.look()
        assert states(checks) == [("w", "Ready")]


async def test_a_workload_whose_profile_does_not_exist_is_tried_again_with_the_reason():
    """Kueue never asks again about one that is rejected; the others of its namespace do not wait."""
    gold, other = a_job("gold", pods=1), a_job("other", pods=1)
    for metadata in (gold["metadata"], gold["spec"]["template"]["metadata"]):
        metadata["labels"][TREE] = "gold"
    stage, checks, control = await asked(a_node("n1", cpu="2"), jobs=[gold, other])
    async with stage:
        checks.queue("w", gold, count=1)
        checks.queue("x", other, count=1, at="2026-11-29T12:00:01Z")
        await control.look()
        assert states(checks) == [("w", "Retry"), ("x", "Ready")]
        assert checks.answers[0][2].startswith("no TreeProfile 'gold'; create it")
        checks.put_profile(TreeProfile(name="gold"))
        checks.queue("w", gold, count=1)
        await control.look()
        assert states(checks)[2:] == [("w", "Ready")]


async def test_the_checks_of_a_namespace_are_answered_by_one_plan_as_one_by_one(monkeypatch):
    """Also beside one that cannot be read, and one that never fits."""
    jobs = [a_job(f"job-{number:02d}", pods=1) for number in range(14)]
    jobs[0] = a_job("job-00", pods=1, cpu="many")
    jobs[6] = a_job("job-06", pods=1, cpu="64")
    nodes = [a_node(f"n{number}", cpu="1") for number in range(8)]
    answered, queries = [], []
    for at_once in (PLANNED_MAX, 1):
        stage, checks, control = await asked(*nodes, jobs=copy.deepcopy(jobs))
        async with stage:
            planned, ask = [], control._ask_planner

            async def counted(body, readers, ask=ask, planned=planned):
                planned.append(body)
                return await ask(body, readers)

            control._ask_planner, control._at_once = counted, at_once
            monkeypatch.setattr(admission_check_controller, "PLANNED_MAX", at_once)
            for number, job in enumerate(jobs):
                checks.queue(f"w{number}", job, count=1, at=f"2026-11-29T12:00:{number:02d}Z")
            while len(checks.answers) < len(jobs):
                await control.look()
            answered.append(sorted(checks.answers))
            queries.append(len(planned))
    assert [(*answer[:2],) for answer in answered[0]] == [(*answer[:2],) for answer in answered[1]]
    verdicts = [state for _, state, _, _ in answered[0]]
    assert [verdicts.count(state) for state in ("Ready", "Retry", "Rejected")] == [8, 5, 1]
    assert queries[0] < queries[1] == len(jobs)


async def test_a_workload_of_which_only_a_part_fits_takes_nothing_from_the_next():
    """Of two replicas of two pods one fits, and Kueue gives its quota back."""
    both, later = a_set("LeaderWorkerSet", "both", replicas=2, pods=2), a_job("later", pods=2)
    stage, checks, control = await asked(a_node("n1", cpu="3"), jobs=[both, later])
    async with stage:
        checks.queue("w1", both)
        checks.queue("w2", later, at="2026-11-29T12:00:01Z")
        await control.look()
        assert states(checks) == [("w1", "Retry"), ("w2", "Ready")]


async def test_a_jobset_is_planned_with_the_workload_that_it_names():
    jobsets = [a_set("JobSet", name, pods=2) for name in ("named", "same")]
    for jobset in jobsets:
        jobset["metadata"]["annotations"] = {"gang-extender.dev/workload": "mine"}
    template = {"name": "w", "schedulingPolicy": {"gang": {"minCount": 2}}}
    mine = {
        "apiVersion": "gang-extender.dev/v1alpha1", "kind": "Workload",
        "metadata": {"name": "mine", "namespace": "default", "uid": "uid-of-mine"},
        "spec": {"podGroupTemplates": [template]},
    }  # fmt: skip
    stage, checks, control = await asked(a_node("n1", cpu="2"), jobs=jobsets)
    async with stage:
        checks.store.upsert(convert(WorkloadManifest, mine))
        checks.queue("w", jobsets[0])
        checks.queue("x", jobsets[1], at="2026-11-29T12:00:01Z")
        await control.look()
        assert states(checks) == [("w", "Ready"), ("x", "Retry")]


async def test_a_jobset_of_a_trainjob_has_the_annotations_of_that():
    """Trainer copies none: the topology is that of the TrainJob, and no rack has two nodes."""
    jobset = a_set("JobSet", "train", pods=2)
    train = a_job("train")
    train |= {"apiVersion": "trainer.kubeflow.org/v1alpha1", "kind": "TrainJob"}
    train["metadata"]["annotations"] = {"gang-extender.dev/topology": "leaf=net/rack"}
    reference = {key: train["metadata"][key] for key in ("name", "uid")}
    reference |= {"apiVersion": train["apiVersion"], "kind": "TrainJob", "controller": True}
    jobset["metadata"]["ownerReferences"] = [reference]
    nodes = [a_node(f"n{rack}", {"net/rack": rack}, cpu="1") for rack in "ab"]
    stage, checks, control = await asked(*nodes, jobs=[train, jobset])
    async with stage:
        checks.queue("w", train)
        await control.look()
        assert states(checks) == [("w", "Rejected")]


async def test_a_workload_whose_flavor_is_not_read_yet_waits():
    job = a_job("flavored")
    stage, checks, control = await asked(a_node("n1", {"pool": "a"}, cpu="2"), jobs=[job])
    async with stage:
        checks.queue("w", job, flavor="b")
        with pytest.raises(ClusterUnavailable, match="Workload/default/w: ResourceFlavor/b"):
            await control.look()
        assert not checks.answers
        checks.put_kueue("ResourceFlavor", "b", {"nodeLabels": {"pool": "b"}})
        await control.look()
        assert states(checks) == [("w", "Rejected")]


async def test_a_workload_that_cannot_be_planned_is_tried_again_with_the_message():
    job = a_job("odd", cpu="many")
    stage, checks, control = await asked(a_node("n1", cpu="2"), jobs=[job])
    async with stage:
        checks.queue("w", job)
        await control.look()
        (answer,) = checks.answers
        assert answer[1] == "Retry"
        assert 'quantity "many" is not a number' in answer[2]


def test_a_workload_of_another_form_is_refused_by_name():
    stage = Stage()
    with pytest.raises(BadInput, match="Workload/default/w"):
        Checks(stage).queue("w", a_job("x"), count="many")


async def test_pods_without_a_tree_keep_the_labels_that_their_affinity_selects():
    """Two pods that refuse to be on one node, and one node."""
    labels = {"app": "web", "gang-extender.dev/leaf": "job"}
    term = {
        "labelSelector": {"matchLabels": {"app": "web"}},
        "topologyKey": "kubernetes.io/hostname",
    }
    affinity = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    owner = a_job("web", affinity=affinity)
    owner["kind"] = "ReplicaSet"
    owner["spec"]["template"]["metadata"] = {"labels": labels}
    stage, checks, control = await asked(a_node("n1", cpu="2"))
    async with stage:
        checks.queue("w", owner)
        await control.look()
        assert states(checks) == [("w", "Rejected")]


async def test_pods_without_a_tree_never_get_the_capacity_of_others():
    stage, checks, control = await asked(a_node("n1", cpu="2"))
    async with stage:
        pod = {"containers": [{"name": "main", "resources": {"requests": {"cpu": "1"}}}]}
        checks.queue("first", None, **copy.deepcopy(pod))
        checks.queue("second", None, at="2026-11-29T12:00:01Z", **pod)
        await control.look()
        assert states(checks) == [("first", "Ready"), ("second", "Retry")]


def a_set(kind, name, replicas=1, pods=1, cpu="1"):
    """Return a JobSet or LeaderWorkerSet, with the pod template where a Workload is made from it."""
    job = a_job(name, pods, cpu)
    template = job["spec"]["template"]
    if kind == "JobSet":
        api_version = "jobset.x-k8s.io/v1alpha2"
        spec = {"parallelism": pods, "completions": pods, "template": template}
        spec = {"replicatedJobs": [{"name": "w", "replicas": replicas, "template": {"spec": spec}}]}
    else:
        api_version = "leaderworkerset.x-k8s.io/v1"
        del template["spec"]["restartPolicy"]
        spec = {
            "replicas": replicas,
            "leaderWorkerTemplate": {"size": pods, "workerTemplate": template},
        }
    metadata = job["metadata"] | {"uid": f"uid-of-{kind}-{name}"}
    spec["template"] = template
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata, "spec": spec}


async def test_the_answer_is_that_of_the_workload_and_not_of_another_kind_with_its_name():
    """The JobSet got its answer when n2 was larger."""
    job, jobset = a_job("train", 1), a_set("JobSet", "train", pods=2, cpu="2")
    stage, checks, control = await asked(
        a_node("n1", cpu="1"), a_node("n2", cpu="2"), jobs=[job, jobset]
    )
    async with stage:
        checks.queue("w1", jobset, state="Ready", admitted=True)
        checks.queue("w2", job, count=1, at="2026-11-29T12:00:01Z")
        await control.look()
        assert states(checks) == [("w2", "Ready")]


async def test_a_leader_that_is_replaced_between_two_answers_writes_no_second():
    jobs = [a_job(f"job-{number}", 1) for number in range(2)]
    stage, checks, control = await asked(a_node("n1", cpu="2"), jobs=jobs)
    async with stage:
        for job in jobs:
            checks.queue(job["metadata"]["name"], job, count=1)
        write = checks.answer_check

        async def last_answer(*answer):
            await write(*answer)
            await stage.leader.stop()

        checks.answer_check = last_answer
        await control.look()
        assert len(checks.answers) == 1


async def test_more_trees_than_one_query_plans_do_not_make_others_wait():
    """45 LeaderWorkerSets of five trees each are more than the 200 of a query; the newest are planned before."""
    sets = [a_set("LeaderWorkerSet", f"lws-{number}", replicas=5) for number in range(45)]
    job = a_job("late")
    nodes = [a_node(f"n{number}", cpu="8") for number in range(40)]
    stage, checks, control = await asked(*nodes, jobs=[*sets, job])
    async with stage:
        for each in sets:
            checks.queue(each["metadata"]["name"], each, state="Ready", admitted=True)
        checks.queue("late", job)
        await control.look()
        assert states(checks) == [("late", "Ready")]


@pytest.mark.parametrize("same", [True, False])
async def test_a_job_of_which_a_part_has_quota_is_planned_as_that_part(same):
    """Kueue resumes it with that parallelism, and where its annotation asks for it with as many completions."""
    job = a_job("part", 6)
    if same:
        job["metadata"]["annotations"] = {
            "kueue.x-k8s.io/job-completions-equal-parallelism": "true"
        }
    stage, checks, control = await asked(a_node("n1", cpu="4"), jobs=[job])
    async with stage:
        checks.queue("w", job, count=6, part=4)
        await control.look()
        assert states(checks) == [("w", "Ready")]
