"""deploy/chart and deploy/kustomize on real API servers: every object of every set of values is accepted, and a release lives its life.

Kinds of other projects have the definitions of their own modules (tests/controlplane/operator_crds.py).
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.packaging import archive
from deploy.packaging.written import CHART, KUSTOMIZE
from tests.chart.goldens import BASE
from tests.chart.helm import (
    VALUE_SETS,
    VALUES_BEFORE,
    HelmError,
    Object,
    by_key,
    check_order,
    comparable,
    helm,
    render,
)
from tests.controlplane.api import Api, ApiError
from tests.controlplane.objects import a_pod
from tests.controlplane.operator_crds import MODULES, definitions
from tests.controlplane.plane import ControlPlane
from tests.e2e.conftest import DEFINITIONS, delete_definitions, until_gates_are_free
from tests.support.waiting import eventually

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
OVERLAYS = sorted((KUSTOMIZE / "overlays").iterdir())
# what a release has in its namespace
CONTENT = (
    "apis/apps/v1/deployments",
    "api/v1/services",
    "api/v1/configmaps",
    "api/v1/secrets",
    "api/v1/serviceaccounts",
    "apis/rbac.authorization.k8s.io/v1/roles",
    "apis/rbac.authorization.k8s.io/v1/rolebindings",
    "apis/policy/v1/poddisruptionbudgets",
)
POLICY = "/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolicies"

pytestmark = [pytest.mark.e2e, pytest.mark.kubernetes("1.37", "1.36")]


@pytest.fixture(scope="module")
def defined(plane: ControlPlane) -> Iterator[ControlPlane]:
    """A cluster with our namespaces and with the definitions of other projects that values ask for."""
    files = [file for name in MODULES for file in definitions(name)]
    flags = [
        part
        for file in [DEPLOY / "kubernetes" / "namespace.yaml", *files]
        for part in ("-f", str(file))
    ]
    succeeds(plane.kubectl("apply", "--server-side", *flags))
    succeeds(plane.kubectl("wait", "--for=condition=Established", "--timeout=600s", *flags[2:]))
    yield plane
    succeeds(plane.kubectl("delete", "--wait=false", *flags[2:]))


def succeeds(done: subprocess.CompletedProcess[str]) -> str:
    """Return what kubectl has printed; a warning of kube-apiserver is a failure as well."""
    assert done.returncode == 0, done.stderr
    assert "Warning" not in done.stderr, done.stderr
    return done.stdout


def dry_run(plane: ControlPlane, *what: str, stdin: str | None = None) -> int:
    """Have kube-apiserver validate objects strictly, admission included, and return how many it accepted."""
    lines = succeeds(
        plane.kubectl(
            "apply", "--server-side", "--dry-run=server", "--validate=strict", *what, stdin=stdin
        )
    ).splitlines()
    assert all(line.endswith("serverside-applied (server dry run)") for line in lines), lines
    return len(lines)


def text_of(things: Sequence[Object]) -> str:
    """Return objects as a text for kubectl."""
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": things})


@pytest.mark.parametrize("values", VALUE_SETS, ids=lambda file: file.stem)
def test_every_object_of_a_set_of_values_is_accepted(defined: ControlPlane, values: Path) -> None:
    """Known fields, valid values, expressions that compile; and variables stand in the order in which they are read."""
    things = render(values)
    assert dry_run(defined, "-f", "-", stdin=text_of(things)) == len(by_key(things))
    for one in things:
        if one["kind"] == "Deployment":
            check_order(one)


@pytest.mark.parametrize("overlay", OVERLAYS, ids=lambda folder: folder.name)
def test_every_object_of_an_overlay_is_accepted_and_the_chart_has_the_same(
    defined: ControlPlane, overlay: Path
) -> None:
    """`kubectl apply -k`; the namespace is Helm's own affair."""
    text = succeeds(defined.kubectl("kustomize", str(overlay)))
    built = list(yaml.load_all(text, yaml.CSafeLoader))
    assert dry_run(defined, "-k", str(overlay)) == len(by_key(built))
    (values,) = (file for file in VALUE_SETS if file.stem == overlay.name)
    chart = {key: comparable(one) for key, one in by_key(render(values)).items()}
    ours = {key: comparable(one) for key, one in by_key(built).items()}
    del ours["Namespace", "", "gang-extender"]
    assert ours == chart
    for one in built:
        if one["kind"] == "Deployment":
            check_order(one)


def test_the_objects_of_a_backup_are_accepted(defined: ControlPlane, tmp_path: Path) -> None:
    """docs/how-to/backup-and-restore.md: each object of CloudNativePG; the Cluster that names a store is that of the overlay."""
    page = (DEPLOY.parent / "docs" / "how-to" / "backup-and-restore.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```yaml\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    things = [one for block in blocks for one in yaml.safe_load_all(block)]
    cluster = yaml.safe_load(
        (DEPLOY / "kubernetes" / "cloudnative-pg" / "cluster.yaml").read_text(encoding="utf-8")
    )
    for one in things:
        if (one["kind"], one["metadata"]["name"]) == ("Cluster", cluster["metadata"]["name"]):
            one["spec"] = cluster["spec"] | one["spec"]
    assert dry_run(defined, "-f", "-", stdin=text_of(things)) == 4
    (recovered,) = (one for one in things if "recovery" in one["spec"].get("bootstrap", {}))
    for field in ("instances", "postgresql", "storage", "managed"):
        assert recovered["spec"][field] == cluster["spec"][field]
    copy = tmp_path / "deploy"
    for folder in ("kubernetes", "kustomize"):
        shutil.copytree(DEPLOY / folder, copy / folder)
    (command,) = (line for line in page.splitlines() if line.startswith("sed --in-place"))
    subprocess.run(["bash", "-euc", command], cwd=tmp_path, check=True)
    overlay = copy / "kustomize" / "overlays" / "cloudnative-pg"
    built = succeeds(defined.kubectl("kustomize", str(overlay)))
    assert built.count("@gang-extender-database-2-rw:5432/") == 2
    assert "secretName: gang-extender-database-2-ca" in built
    assert dry_run(defined, "-k", str(overlay))


REFUSED: dict[str, tuple[str, ...]] = {
    "additional properties 'replica' not allowed": ("--set", "replica=2"),
    "at '/scheduler/scope': value must be one of 'marker-resource', 'contended-resource', 'everything'": ("--set", "scheduler.scope=gpu"),
    "at '/ports/verbs': got string, want integer": ("--set-string", "ports.verbs=8888"),
    "at '/replicas': maximum: got 9, want 5": ("--set", "replicas=9"),
    "at '/settings': additional properties 'barier_timeout_s' not allowed": ("--set", "settings.barier_timeout_s=1"),
    "scheduler.scope everything needs schedulerName": ("--set", "scheduler.scope=everything"),
    "leave the scope at marker-resource": ("--set", "scheduler.form=second-scheduler,scheduler.scope=contended-resource"),
    "are for certificates.source secret": ("--set", "certificates.source=cert-manager,certificates.secretName=ours"),
    "are both 8443; give them different ports": ("--set", "ports.verbs=8443"),
    "ingress.enabled needs ingress.host": ("--set", "ingress.enabled=true"),
    "extraEnv: GANG_EXTENDER_LOG_LEVEL is a setting of the service: write it as settings.log_level": ("--set", "extraEnv[0].name=GANG_EXTENDER_LOG_LEVEL,extraEnv[0].value=debug"),
    "commonLabels: app.kubernetes.io/name is a label by which objects of the chart are found": ("--set", r"commonLabels.app\.kubernetes\.io/name=ours"),
}  # fmt: skip


@pytest.mark.parametrize("words", REFUSED)
@pytest.mark.kubernetes("1.37")
def test_helm_refuses_wrong_values_with_their_place(words: str) -> None:
    """The schema one value, the templates a combination."""
    with pytest.raises(HelmError) as refusal:
        render(None, *REFUSED[words])
    assert words in str(refusal.value)


@pytest.mark.kubernetes("1.37")
def test_helm_refuses_another_namespace() -> None:
    """The policies know the ServiceAccount of one only."""
    with pytest.raises(
        HelmError, match='the release is for namespace "default": the admission policies know'
    ):
        render(namespace="default")


def image_of(*options: str) -> set[str]:
    """Return the images that both containers of the Deployment have."""
    (deployment,) = (
        one["spec"]["template"]["spec"]
        for one in render(None, *options)
        if one["kind"] == "Deployment"
    )
    return {one["image"] for one in [*deployment["initContainers"], *deployment["containers"]]}


@pytest.mark.kubernetes("1.37")
def test_the_image_is_that_of_a_registry() -> None:
    """By a tag or a digest, with the registry of its own value or in the repository."""
    assert image_of() == {"gang-extender:0.1.0"}
    registry = "image.registry=registry.example.com:5000/team"
    assert image_of("--set", registry) == {"registry.example.com:5000/team/gang-extender:0.1.0"}
    digest = f"sha256:{'a' * 64}"
    assert image_of("--set", f"{registry},image.digest={digest}") == {
        f"registry.example.com:5000/team/gang-extender@{digest}"
    }


@pytest.mark.parametrize("values", VALUE_SETS, ids=lambda file: file.stem)
@pytest.mark.kubernetes("1.37")
def test_common_labels_are_on_each_object_and_in_no_selector(values: Path) -> None:
    """Each object of each set of values: one without would be left over by a removal by label."""
    labels = {"example.com/cost-center": "42"}
    things = render(values, "--set-string", r"commonLabels.example\.com/cost-center=42")
    assert [
        f"{one['kind']} {one['metadata']['name']}"
        for one in things
        if not labels.items() <= one["metadata"].get("labels", {}).items()
    ] == []
    plain = {
        key: one["spec"].get("selector")
        for key, one in by_key(render(values)).items()
        if "spec" in one
    }
    labelled = {
        key: one["spec"].get("selector") for key, one in by_key(things).items() if "spec" in one
    }
    assert plain == labelled
    (extender,) = (
        one
        for one in things
        if (one["kind"], one["metadata"]["name"]) == ("Deployment", "gang-extender")
    )
    assert labels.items() <= extender["spec"]["template"]["metadata"]["labels"].items()


@pytest.mark.kubernetes("1.37")
def test_a_values_file_of_the_version_before_renders_the_same() -> None:
    """It has every default of that version: none was renamed, removed or refused since."""
    assert render(VALUES_BEFORE) == render()


@pytest.mark.kubernetes("1.37")
def test_metrics_are_read_with_the_token_of_a_secret() -> None:
    """Of an account that may read /metrics only, unless another Secret is named: then there is no account."""
    monitor = ("ServiceMonitor", "gang-extender", "gang-extender")
    ours = by_key(render(None, "--set", "serviceMonitor.enabled=true"))
    (endpoint,) = ours[monitor]["spec"]["endpoints"]
    assert endpoint["authorization"]["credentials"] == {
        "name": "gang-extender-metrics",
        "key": "token",
    }
    secret = ours["Secret", "gang-extender", "gang-extender-metrics"]
    account = secret["metadata"]["annotations"]["kubernetes.io/service-account.name"]
    (subject,) = ours["ClusterRoleBinding", "", "gang-extender-metrics"]["subjects"]
    assert subject["name"] == account
    assert ours["ClusterRole", "", "gang-extender-metrics"]["rules"] == [
        {"nonResourceURLs": ["/metrics"], "verbs": ["get"]}
    ]
    named = "serviceMonitor.enabled=true,serviceMonitor.credentials.secretName=theirs"
    theirs = by_key(render(None, "--set", named))
    (endpoint,) = theirs[monitor]["spec"]["endpoints"]
    assert endpoint["authorization"]["credentials"] == {"name": "theirs", "key": "token"}
    assert ours.keys() - theirs.keys() == {
        ("Secret", "gang-extender", "gang-extender-metrics"),
        ("ServiceAccount", "gang-extender", "gang-extender-metrics"),
        ("ClusterRole", "", "gang-extender-metrics"),
        ("ClusterRoleBinding", "", "gang-extender-metrics"),
    }


@pytest.mark.kubernetes("1.37")
def test_each_alert_leads_to_a_page_of_the_operator() -> None:
    """By one value, for all of them."""
    url = "https://wiki.example.org/gangs"
    options = ("--set", f"prometheusRules.enabled=true,prometheusRules.runbookUrl={url}")
    (rule,) = (one for one in render(None, *options) if one["kind"] == "PrometheusRule")
    rules = [one for group in rule["spec"]["groups"] for one in group["rules"]]
    assert len(rules) > 20
    for one in rules:
        assert one["annotations"]["runbook_url"] == f"{url}/{one['alert']}.html"


def notes(*options: str) -> str:
    """Return what Helm prints after an installation."""
    words = ("--namespace=gang-extender", "--dry-run=client", *options)
    return helm("install", "gang-extender", str(CHART), *words).partition("\nNOTES:\n")[2]


# What kubeadm 1.37 mounts into kube-scheduler, and no more.
KUBEADM_MOUNT = "/etc/kubernetes/scheduler.conf"


@pytest.mark.parametrize("scope", ["marker-resource", "contended-resource"])
@pytest.mark.kubernetes("1.37")
def test_kube_scheduler_finds_each_file_where_the_notes_have_put_it(scope: str) -> None:
    """The file of `--config`, and those that it names, are mounted, at the path where the commands write them."""
    text = notes("--set", f"scheduler.scope={scope}")
    block = text[text.index("    spec:\n") : text.index("Without one of the files")]
    spec = yaml.safe_load(block)["spec"]
    (container,), (volume,) = spec["containers"], spec["volumes"]
    (mount,) = container["volumeMounts"]
    assert mount["name"] == volume["name"]
    assert mount["mountPath"] == volume["hostPath"]["path"]
    (flag,) = container["command"]
    file = flag.removeprefix("--config=")
    assert f"> {file}\n" in text
    config_map = by_key(render(None, "--set", f"scheduler.scope={scope}"))[
        "ConfigMap", "gang-extender", "gang-extender-scheduler-config"
    ]
    config = yaml.safe_load(config_map["data"]["config.yaml"])
    named = {word for one in config["extenders"] for word in one["tlsConfig"].values()}
    files = {file, *(str(word) for word in named if str(word).startswith("/"))}
    assert len(files) == 4
    copied = re.findall(
        r"(?:\w+\.\w+):(\w+\.\w+)", text[text.index("for file in") : text.index("; do")]
    )
    assert files == {file, *(f"{mount['mountPath']}/{name}" for name in copied)}
    assert config["clientConnection"]["kubeconfig"] == KUBEADM_MOUNT
    page = (DEPLOY.parent / "docs" / "how-to" / "install.md").read_text(encoding="utf-8")
    assert (
        yaml.safe_load(page[page.index("```yaml\nspec:") + 8 :].partition("```")[0])["spec"] == spec
    )


@pytest.mark.kubernetes("1.37")
def test_the_notes_name_what_does_not_work_yet() -> None:
    """Workloads are off until they are switched on, and links of alerts lead nowhere until pages are served."""
    plain = notes()
    assert "the label gang-extender.dev/tree has no effect until" in plain
    assert "The alerts lead to" not in plain
    more = notes(
        "--set", "workloads.enabled=true,workloads.kinds={Job},prometheusRules.enabled=true"
    )
    assert "Workloads with the label gang-extender.dev/tree become trees: Job.\n" in more
    assert "The alerts lead to pages at https://docs.example.com/gang-extender/docs/alerts" in more


async def held(api: Api) -> bool | None:
    """Return whether a new pod that names a group gets our gate; None while only one of our policies is enforced, and refuses it."""
    pod = a_pod("probe", metadata={"labels": {"gang-extender.dev/pod-group": "g"}})
    try:
        made = await api.post("/api/v1/namespaces/default/pods", pod, dryRun="All")
    except ApiError:
        return None
    return bool(made["spec"].get("schedulingGates"))


async def names(api: Api, path: str) -> set[str]:
    return {one["metadata"]["name"] for one in (await api.get(path))["items"]}


@pytest.mark.full
async def test_a_release_is_installed_upgraded_rolled_back_and_removed(
    plane: ControlPlane, api: Api, tmp_path: Path
) -> None:
    """From the archive, as the runbook has it; definitions stay when it goes, with their groups, and a second release takes them over, and kustomize after it."""
    chart, config = archive.write(tmp_path), f"--kubeconfig={plane.kubeconfig()}"
    release = ("gang-extender", str(chart), "--namespace=gang-extender", config)
    await without_leftovers(plane, api)
    succeeds(plane.kubectl("create", "namespace", "gang-extender"))
    notes = helm("install", *release)
    assert "Secret gang-extender-database with url and migrate-url is not there yet" in notes
    assert "get configmap gang-extender-scheduler-config" in notes

    async def is_held() -> bool:
        return await held(api) is True

    await eventually(is_held)
    group = {
        "apiVersion": "gang-extender.dev/v1alpha1", "kind": "PodGroup", "metadata": {"name": "g", "namespace": "default"},
        "spec": {"schedulingPolicy": {"gang": {"minCount": 4}}},
    }  # fmt: skip
    await api.create(group)
    before = await names(api, POLICY)
    helm("upgrade", *release, "--reset-then-reuse-values", "--set=workloads.enabled=true")
    helm(
        "upgrade", *release, "--reset-then-reuse-values", "--set=replicas=3"
    )  # the value before stays
    assert "gang-extender-tree-job" in await names(api, POLICY) - before
    path = "/apis/apps/v1/namespaces/gang-extender/deployments/gang-extender"
    assert (await api.get(path))["spec"]["replicas"] == 3
    helm("rollback", "gang-extender", "1", "--namespace=gang-extender", config)
    assert (await api.get(path))["spec"]["replicas"] == 2
    assert await names(api, POLICY) == before
    helm("uninstall", "gang-extender", "--namespace=gang-extender", config)

    async def is_free() -> bool:
        return await held(api) is False

    await eventually(is_free)
    assert {"podgroups.gang-extender.dev", "treeprofiles.gang-extender.dev"} <= await names(
        api, DEFINITIONS
    )
    await remove_namespace(plane, api, "gang-extender-probe")
    helm("install", *release, "--set=policies.members=false")
    assert await names(api, "/apis/gang-extender.dev/v1alpha1/podgroups") == {"g"}
    helm("uninstall", "gang-extender", "--namespace=gang-extender", config)
    await api.delete("/apis/gang-extender.dev/v1alpha1/namespaces/default/podgroups/g")
    await remove_namespace(plane, api, "gang-extender-probe")
    await remove_namespace(plane, api, "gang-extender")
    overlay = str(KUSTOMIZE / "overlays" / "marker")
    succeeds(plane.kubectl("apply", "--server-side", "-k", overlay))
    await eventually(is_held)
    rest = [
        DEPLOY / "kubernetes" / name for name in BASE if name not in ("namespace.yaml", "crds.yaml")
    ]
    files = [f"--filename={file}" for file in rest]
    succeeds(plane.kubectl("delete", "--wait=false", *files))
    await eventually(is_free)
    await until_gates_are_free(api)


async def without_leftovers(plane: ControlPlane, api: Api) -> None:
    """Delete what other tests have left of what the release owns: its namespaces and definitions."""
    kinds = ("podgroups", "compositepodgroups", "workloads", "treeprofiles")
    definitions = [f"{kind}.gang-extender.dev" for kind in kinds]
    await delete_definitions(api, *definitions)
    for name in ("gang-extender", "gang-extender-probe"):
        await remove_namespace(plane, api, name)


async def remove_namespace(plane: ControlPlane, api: Api, name: str) -> None:
    """Delete a namespace in place of the namespace controller, which does not run: its content, then its finalizer."""
    if name not in await names(api, "/api/v1/namespaces"):
        return
    plane.kubectl("delete", "namespace", name, "--wait=false")
    for collection in CONTENT:
        root, _, kind = collection.rpartition("/")
        await api.delete(f"/{root}/namespaces/{name}/{kind}")
    found: Object = await api.get(f"/api/v1/namespaces/{name}")
    found["spec"]["finalizers"] = []
    await api.put(f"/api/v1/namespaces/{name}/finalize", found)

    async def gone() -> bool:
        return name not in await names(api, "/api/v1/namespaces")

    await eventually(gone)


def test_the_definitions_of_other_projects_are_used(defined: ControlPlane) -> None:
    """A field that CloudNativePG does not know is refused: the dry runs above are no matter of form."""
    (cluster,) = yaml.safe_load_all(
        (DEPLOY / "kubernetes" / "cloudnative-pg" / "cluster.yaml").read_text()
    )
    wrong: Any = {**cluster, "spec": {**cluster["spec"], "instance": 3}}
    refused = defined.kubectl(
        "apply", "--server-side", "--dry-run=server", "-f", "-", stdin=yaml.safe_dump(wrong)
    )
    assert refused.returncode != 0
    assert (
        "field not declared in schema" in refused.stderr
        or 'unknown field "spec.instance"' in refused.stderr
    )
