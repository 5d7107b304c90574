"""What stands in deploy/ agrees with itself, with the code, and with the schemas of others."""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import re
import subprocess
import sys
import tomllib
from importlib.metadata import metadata, requires
from pathlib import Path
from types import ModuleType
from typing import Any

import jsonschema
import pytest
import yaml
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from kubernetes_asyncio.config import incluster_config
from packaging.specifiers import SpecifierSet

from deploy import sbom
from deploy.render import render_confinement, render_crds, render_limits
from extender.cli.certificates.certificate_folder import NAMES, SERVER_NAME
from extender.cluster.write import pod_writer
from extender.composition import DRAIN_S, TAKEN_WITHIN_S
from extender.control.verbs.extender_service import HANDOVER_MS
from extender.listener_settings import HTTP1_SERVER_NAME
from extender.ports import written_names
from extender.settings import Settings
from tests.compose import shipped_file

ROOT = Path(__file__).resolve().parents[2]
KUBERNETES = ROOT / "deploy" / "kubernetes"


def load(path: str) -> ModuleType:
    """Import a script of deploy/, which is no package."""
    file = ROOT / path
    spec = importlib.util.spec_from_file_location(file.stem + "_script", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def documents_of(file: Path) -> list[Any]:
    text = file.read_text(encoding="utf-8")
    return [one for one in yaml.load_all(text, Loader=yaml.CSafeLoader) if one]


def documents(name: str) -> list[Any]:
    return documents_of(KUBERNETES / f"{name}.yaml")


def test_the_crds_are_rendered_from_the_types() -> None:
    """python -m deploy.render.render_crds > deploy/kubernetes/crds.yaml"""
    assert (KUBERNETES / "crds.yaml").read_text(encoding="utf-8") == render_crds.render()


def test_the_policies_are_rendered_from_the_names() -> None:
    """The first lines of each file have the command that writes it."""
    for name, rendered in {
        "confinement": render_confinement.render(),
        "group-limits": render_limits.render(),
    }.items():
        assert (KUBERNETES / f"{name}.yaml").read_text(encoding="utf-8") == rendered


def test_every_policy_is_bound_and_denies() -> None:
    """A policy without its binding, or one that only warns, refuses nothing."""
    for name in ("admission-policy", "group-limits", "confinement"):
        found = documents(name)
        policies = {one["metadata"]["name"] for one in found if one["kind"].endswith("Policy")}
        bindings = [one for one in found if one["kind"].endswith("Binding")]
        assert {one["spec"]["policyName"] for one in bindings} == policies
        for one in bindings:
            if one["kind"].startswith("Validating"):
                assert one["spec"]["validationActions"] == ["Deny"]


def test_the_account_in_the_policies_is_that_of_the_role() -> None:
    """Another name or namespace of the ServiceAccount would leave it without confinement."""
    (account,) = (one["metadata"] for one in documents("rbac") if one["kind"] == "ServiceAccount")
    name = f"system:serviceaccount:{account['namespace']}:{account['name']}"
    assert name == written_names.SERVICE_ACCOUNT
    for one in documents("confinement"):
        if one["kind"] == "ValidatingAdmissionPolicy":
            conditions = " ".join(c["expression"] for c in one["spec"]["matchConditions"])
            assert f"request.userInfo.username == '{name}'" in conditions


def test_the_page_about_security_names_tests_that_exist() -> None:
    """Each line of a table in docs/security.md has one; a test that is renamed or removed is noticed."""
    defined: set[str] = set()
    for file in (ROOT / "tests").rglob("*.py"):
        defined.add(file.name)
        defined |= set(
            re.findall(r"^(?:async )?def (\w+)", file.read_text(encoding="utf-8"), re.MULTILINE)
        )
    lines = (ROOT / "docs" / "security.md").read_text(encoding="utf-8").splitlines()
    rows = [
        line
        for line in lines
        if line.startswith("| ") and not line.endswith(("shown by |", "| | |"))
    ]
    for row in rows:
        named = re.findall(r"`(?:[\w/]+/)?(test_\w+(?:\.py)?|_\w+)`", row.split(" | ")[-1])
        assert named, row
        assert set(named) <= defined, row


def test_the_schemas_are_structural() -> None:
    """No references, no titles, a bound on every list and text that a rule may look at."""
    for kind in render_crds.KINDS:
        seen = json.dumps(render_crds.definition(kind))
        assert "$ref" not in seen
        assert '"title"' not in seen
    spec = render_crds.structural_schema(render_crds.KINDS[0].spec)
    below = spec["properties"]["compositePodGroupTemplates"]
    for _ in range(3):
        assert below["maxItems"] == 8
        below = below["items"]["properties"]["compositePodGroupTemplates"]
    assert below["maxItems"] == 0


def test_compose_is_rendered_from_the_table_of_flags() -> None:
    """python deploy/compose/generate.py > docker-compose.yml"""
    text = (ROOT / "docker-compose.yml").read_text(encoding="utf-8")
    assert text == load("deploy/compose/generate.py").render()


def compose_file() -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    return document


def test_compose_is_valid() -> None:
    """The schema of the Compose specification takes it; one service builds our image, and `up` shows the demo."""
    assert shipped_file.faults_of(compose_file()) == []


COMPOSE_FAULTS: dict[str, tuple[str, str, object]] = {
    "$.services.etcd: Unevaluated properties are not allowed ('attached' was unexpected)": ("etcd", "attached", False),
    "2 services build gang-extender:": ("setup", "build", {"context": "."}),
    "setup: pull_policy is missing: gang-extender:": ("setup", "pull_policy", "missing"),
    "etcd: attach is True: only the lines of demo are shown": ("etcd", "attach", True),
    "demo: attach is False: only the lines of demo are shown": ("demo", "attach", False),
    "etcd: ./data:/data:ro needs ro,z": ("etcd", "volumes", ["./data:/data:ro"]),
    "network: port 8443:8443 is not 127.0.0.1:${VARIABLE:-DEFAULT}:PORT": ("network", "ports", ["8443:8443"]),
}  # fmt: skip


@pytest.mark.parametrize("words", COMPOSE_FAULTS)
def test_what_fails_in_a_current_compose_is_refused_in_the_file(words: str) -> None:
    """With the service and the value; `make compose` looks at the same before it starts anything."""
    document = compose_file()
    service, field, value = COMPOSE_FAULTS[words]
    document["services"][service][field] = value
    (fault,) = shipped_file.faults_of(document)
    assert words in fault


def test_the_demo_prints_the_port_that_is_published() -> None:
    """By the same variable with the same default."""
    services = compose_file()["services"]
    for environment, port in (({}, 8443), ({"PAGE_PORT": "9443"}, 9443)):
        (published,) = services["network"]["ports"]
        assert shipped_file.replaced(published, environment) == f"127.0.0.1:{port}:8443"
        page = shipped_file.replaced(services["demo"]["environment"]["PAGE"], environment)
        assert page == f"https://127.0.0.1:{port}/ui/"


def test_compose_pins_its_images_and_shares_one_network() -> None:
    """A demo with fixed tokens must not be found by others."""
    compose = compose_file()
    for name, service in compose["services"].items():
        assert re.search(r":v?\d", service["image"]), name
        if name != "network":
            assert service["network_mode"] == "service:network"
            assert "network" in service["depends_on"], "not every tool takes it from network_mode"
        for other in service.get("depends_on", {}):
            assert other in compose["services"]


def test_compose_setup_writes_the_files_that_the_flags_name(tmp_path: Path) -> None:
    """Every file named on a command line is made by setup.py or by kube-apiserver itself."""
    setup, generate = load("deploy/compose/setup.py"), load("deploy/compose/generate.py")
    setup.main(tmp_path)
    setup.main(tmp_path)
    for key in ("tokens", "service_account_key", "service_account_public_key", "certificates"):
        assert (tmp_path / generate.VALUES[key].removeprefix("/etc/kubernetes/")).exists()
    for line in (tmp_path / "tokens.csv").read_text(encoding="utf-8").splitlines():
        assert re.fullmatch(r'[^,]+,[^,]+,[^,]+(,"[^"]+")?', line)
    config = yaml.safe_load((tmp_path / "scheduler.conf").read_text(encoding="utf-8"))
    assert config["clusters"][0]["cluster"]["server"] == "https://127.0.0.1:6443"


def test_every_placeholder_in_the_table_of_flags_has_a_value() -> None:
    """A missing value fails here and not in a container."""
    generate = load("deploy/compose/generate.py")
    for program in ("etcd", "kube-apiserver", "kube-scheduler"):
        for flag in generate.flags_of(program, generate.VALUES, native="1.37"):
            assert "{" not in flag


def test_the_image_is_built_from_all_that_the_package_includes() -> None:
    """What pyproject.toml takes into the wheel is copied before pip builds it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    wheel = project["tool"]["hatch"]["build"]["targets"]["wheel"]
    lines = (ROOT / "deploy" / "Dockerfile").read_text(encoding="utf-8").splitlines()
    copied = {word for line in lines if line.startswith("COPY ") for word in line.split()[1:-1]}
    assert {*wheel["packages"], *wheel["force-include"]} <= copied


def test_the_image_installs_by_hash_and_leaves_no_installer() -> None:
    """Every `pip install` of packages from an index requires hashes, before the code is copied; pip is removed at the end."""
    text = (ROOT / "deploy" / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    build, _, final = text.partition("\nFROM ")[2].partition("\nFROM ")
    steps = re.findall(r"pip (?:install|wheel) [^&\n]*", build)
    assert len(steps) == 4
    for step in steps:
        assert "--require-hashes" in step or "--no-deps" in step, step
    assert text.index("--require-hashes") < text.index("COPY extender")
    assert "pip uninstall --yes pip setuptools" in build
    assert "rm -rf /usr/local/bin/pip*" in final
    assert not re.findall(r"pip (?:install|wheel) ", final)


@functools.cache
def locked_requirements_of_the_image() -> str:
    """Return what the script prints in the image."""
    script = ROOT / "deploy" / "locked_requirements.py"
    return subprocess.run(
        [sys.executable, str(script), str(ROOT / "pyproject.toml"), str(ROOT / "requirements.lock")],
        check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip


def test_the_locked_requirements_of_the_image_are_all_that_the_package_needs() -> None:
    """As the installed metadata have it; each with hashes, and no tool of developers among them."""
    printed = locked_requirements_of_the_image()
    entries = re.split(r"^(?=[A-Za-z0-9._-]+==)", printed, flags=re.MULTILINE)[1:]
    names = {entry.partition("==")[0] for entry in entries}
    assert all("--hash=sha256:" in entry for entry in entries)
    assert {"aiohttp", "msgspec", "ortools", "numpy", "cryptography", "yarl"} <= names
    assert not names & {"pytest", "mypy", "ruff", "hatchling", "hypothesis", "selenium"}
    for name in names:
        for text in requires(name) or ():
            needed, _, marker = text.partition(";")
            if not marker:
                found = re.match(r"[A-Za-z0-9._-]+", needed)
                assert found is not None
                assert re.sub(r"[-_.]+", "-", found[0]).lower() in names, f"{name} needs {needed}"


def test_the_bill_of_materials_has_the_locked_packages_of_the_image() -> None:
    """Valid by the schema of CycloneDX 1.6; its packages are those that the image installs, with what the installed metadata need."""
    text = sbom.FILE.read_text(encoding="utf-8")
    assert text == sbom.render(), "make sbom"
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    locked = re.findall(
        r"^([A-Za-z0-9._-]+)==([^\s;]+)", locked_requirements_of_the_image(), re.MULTILINE
    )
    found = json.loads(text)
    assert {(one["name"], one["version"]) for one in found["components"]} == set(locked)
    assert [one["purl"] for one in found["components"]] == [
        f"pkg:pypi/{name}@{version}" for name, version in sorted(locked)
    ]
    needs = {one["ref"]: one.get("dependsOn", []) for one in found["dependencies"]}
    assert {"pkg:pypi/multidict", "pkg:pypi/idna"} <= {
        ref.partition("@")[0]
        for key in needs
        if key.startswith("pkg:pypi/yarl@")
        for ref in needs[key]
    }
    assert {ref.partition("@")[0] for ref in needs["gang-extender"]} > {"pkg:pypi/ortools"}


def test_the_image_has_its_bill_of_materials() -> None:
    final = (ROOT / "deploy" / "Dockerfile").read_text(encoding="utf-8").rpartition("\nFROM ")[2]
    assert re.search(
        r"^COPY deploy/sbom\.cdx\.json /usr/share/doc/gang-extender/", final, re.MULTILINE
    )


@pytest.mark.parametrize(
    ("base", "release", "accepted"),
    [
        ("python:3.12.12-slim-bookworm", "false", True),
        ("python:3.12.12-slim-bookworm", "true", False),
        ("python@sha256:abc", "true", False),
        (f"python:3.12.12@sha256:{'0' * 64}", "true", True),
        (f"python:3.12.12@sha256:{'0' * 64}", "false", True),
    ],
)
def test_a_release_is_built_on_a_digest_only(base: str, release: str, accepted: bool) -> None:
    """All stages are on the image of the argument, and the first step is the check; `make image` asks for a release."""
    text = (ROOT / "deploy" / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    assert re.findall(r"^FROM (\S+)", text, re.MULTILINE) == ["${BASE}", "${BASE}"]
    check = re.findall(r"^RUN (.*)", text, re.MULTILINE)[0]
    done = subprocess.run(
        ["/bin/sh", "-c", check], env={"BASE": base, "RELEASE": release, "PATH": os.environ["PATH"]},
        check=False, capture_output=True, text=True,
    )  # fmt: skip
    assert (done.returncode == 0) is accepted, done
    assert ("has no digest" in done.stderr) is not accepted
    assert "--build-arg RELEASE=true" in (ROOT / "Makefile").read_text(encoding="utf-8")


def test_every_manifest_starts_with_a_comment(subtests: pytest.Subtests) -> None:
    """A comment stands in front, and no name is used twice."""
    for file in sorted(KUBERNETES.glob("*.yaml")):
        with subtests.test(file.name):
            assert file.read_text(encoding="utf-8").startswith("# ")
            names = [(d["kind"], d.get("metadata", {}).get("name")) for d in documents(file.stem)]
            assert len(names) == len(set(names))


def test_names_in_manifests_are_those_of_the_code() -> None:
    """Gate, markers, profile, port, group: written in several places, meant once."""
    (config,) = documents("scheduler-config")
    policy = (KUBERNETES / "admission-policy.yaml").read_text(encoding="utf-8")
    assert pod_writer.GATE in policy
    profiles = [profile["schedulerName"] for profile in config["profiles"]]
    assert profiles == ["default-scheduler", "gang-scheduler"]
    assert '"gang-scheduler"' in policy
    for entry in config["extenders"]:
        (managed,) = entry["managedResources"]
        assert managed["ignoredByScheduler"] is True
        assert managed["name"] in policy
        assert entry["urlPrefix"] == "https://127.0.0.1:8888/scheduler"
        assert entry["nodeCacheCapable"] is True
        assert entry["ignorable"] is False
    verbs, binder = config["extenders"]
    assert (verbs["httpTimeout"], binder["httpTimeout"]) == ("2s", "60s")
    assert "bindVerb" not in verbs
    assert set(binder) & {"filterVerb", "prioritizeVerb", "preemptVerb"} == set()


SCHEDULER_FILES = {"certFile": "client.crt", "keyFile": "client.key", "caFile": "ca.crt"}
SECRET_KEYS = {"certFile": "tls.crt", "keyFile": "tls.key", "caFile": "ca.crt"}
NODE_FOLDER = "/etc/kubernetes/gang-extender"


CONFIGURATIONS = (
    "scheduler-config",
    "scopes/marker-resource",
    "scopes/contended-resource",
    "scopes/everything",
)


def test_kube_scheduler_calls_with_a_certificate_and_checks_ours(subtests: pytest.Subtests) -> None:
    """K05: enableHTTPS without a CA would check no certificate, and insecure none either.

    Only bind calls, which wait for one another, are better off with HTTP/2.
    """
    tls = {field: f"{NODE_FOLDER}/{file}" for field, file in SCHEDULER_FILES.items()}
    for name in CONFIGURATIONS:
        (config,) = documents(name)
        for entry in config["extenders"]:
            with subtests.test(name, verbs=sorted(key for key in entry if key.endswith("Verb"))):
                server_name = SERVER_NAME if "bindVerb" in entry else HTTP1_SERVER_NAME
                assert entry["urlPrefix"].startswith("https://")
                assert entry["enableHTTPS"] is True
                assert entry["tlsConfig"] == tls | {"serverName": server_name}
                assert server_name in NAMES


CONFIG_FILE = "/etc/kubernetes/gang-extender/scheduler-config.yaml"


def test_the_file_of_kube_scheduler_has_one_path_on_every_page() -> None:
    """In the folder that is mounted: where one page writes it, kube-scheduler is given it by all others."""
    pages = [ROOT / "README.md", *(ROOT / "deploy" / "chart" / "templates").iterdir()]
    pages += [file for folder in ("docs", "deploy") for file in (ROOT / folder).rglob("*.md")]
    named = {
        page.name: {
            *re.findall(r"/etc/kubernetes/[\w./-]*config\.yaml", page.read_text(encoding="utf-8"))
        }
        for page in pages
    }
    assert {name for name, files in named.items() if files} >= {"install.md", "NOTES.txt"}
    assert {file for files in named.values() for file in files} == {CONFIG_FILE}


def test_the_extender_mounts_what_its_settings_name() -> None:
    """Certificates from the Secret that `certs` and cert-manager make; only the service has a token, that of kube-apiserver."""
    pod = documents("deployment")[0]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    environment = {one["name"]: one.get("value") for one in container["env"]}
    mounts = {one["name"]: one["mountPath"] for one in container["volumeMounts"]}
    volumes = {one["name"]: one for one in pod["volumes"]}
    for setting, key in {
        "TLS_CERT_FILE": "tls.crt", "TLS_PRIVATE_KEY_FILE": "tls.key", "CLIENT_CA_FILE": "ca.crt"
    }.items():  # fmt: skip
        assert environment[f"GANG_EXTENDER_{setting}"] == f"{mounts['tls']}/{key}"
    assert volumes["tls"]["secret"] == {"secretName": "gang-extender-tls", "defaultMode": 0o440}
    assert pod["securityContext"]["fsGroup"] == pod["securityContext"]["runAsGroup"]
    assert environment["GANG_EXTENDER_LISTEN"].endswith(":8888")
    assert environment["GANG_EXTENDER_API_LISTEN"].endswith(":8443")
    assert environment["GANG_EXTENDER_AUTHENTICATION"] == "kubernetes"
    assert environment["GANG_EXTENDER_TLS_SERVER_NAME"] == SERVER_NAME
    check_token(pod, container)
    (migrate,) = pod["initContainers"]
    assert {one["name"] for one in migrate["volumeMounts"]} == {"data", "tmp"}


def test_no_token_is_mounted_that_is_not_asked_for() -> None:
    """By no account and no pod of deploy/kubernetes; what a pod has instead ends after an hour."""
    found = [
        one
        for file in KUBERNETES.rglob("*.yaml")
        for one in documents_of(file)
        if isinstance(one, dict)  # not a list of patches
    ]
    accounts = [one for one in found if one["kind"] == "ServiceAccount"]
    pods = [one["spec"]["template"]["spec"] for one in found if one["kind"] == "Deployment"]
    assert (len(accounts), len(pods)) == (3, 2)  # one account is for Prometheus, and has no pod
    assert [one["automountServiceAccountToken"] for one in (*accounts, *pods)] == [False] * 5
    tokens = [
        source["serviceAccountToken"]
        for pod in pods
        for volume in pod["volumes"]
        for source in volume.get("projected", {}).get("sources", ())
        if "serviceAccountToken" in source
    ]
    assert [one["expirationSeconds"] for one in tokens] == [3600, 3600]


def check_token(pod: dict[str, Any], container: dict[str, Any]) -> None:
    """Check that a token with an end is where the client libraries look for it."""
    assert pod["automountServiceAccountToken"] is False
    (volume,) = (one for one in pod["volumes"] if one["name"] == "token")
    token, authority, namespace = volume["projected"]["sources"]
    assert token == {"serviceAccountToken": {"path": "token", "expirationSeconds": 3600}}
    assert authority["configMap"]["items"] == [{"key": "ca.crt", "path": "ca.crt"}]
    assert namespace["downwardAPI"]["items"][0]["path"] == "namespace"
    (mount,) = (one for one in container["volumeMounts"] if one["name"] == "token")
    assert f"{mount['mountPath']}/token" == incluster_config.SERVICE_TOKEN_FILENAME
    assert f"{mount['mountPath']}/ca.crt" == incluster_config.SERVICE_CERT_FILENAME
    assert mount["readOnly"] is True


def test_cert_manager_makes_the_same_secrets() -> None:
    """By the schemas of cert-manager; with the names, uses and holders of `gang-extender certs`."""
    schemas = json.loads((ROOT / "tests/golden/cert_manager/specs.v1.21.2.json").read_text())
    found = documents("cert-manager/certificates")
    for one in found:
        assert one["apiVersion"] == "cert-manager.io/v1"
        assert one["metadata"]["namespace"] == "gang-extender"
        jsonschema.validate(one["spec"], _closed(schemas[one["kind"]]))
    specs = {one["metadata"]["name"]: one["spec"] for one in found if one["kind"] == "Certificate"}
    assert {name: spec["secretName"] for name, spec in specs.items()} == {
        name: name for name in specs
    }
    server, client = specs["gang-extender-tls"], specs["gang-extender-scheduler-client"]
    assert (server["commonName"], client["commonName"]) == (SERVER_NAME, "system:kube-scheduler")
    assert {*server["dnsNames"], *server["ipAddresses"]} == set(NAMES)
    assert server["usages"] == ["digital signature", "server auth", "client auth"]
    assert client["usages"] == ["digital signature", "client auth"]
    assert "dnsNames" not in client
    (issuer,) = (one["spec"] for one in found if one["spec"].get("ca"))
    assert issuer["ca"]["secretName"] == specs["gang-extender-ca"]["secretName"]


def _closed(schema: Any) -> Any:
    """Return a schema that takes no field that it does not name, as kube-apiserver with strict validation."""
    if isinstance(schema, list):
        return [_closed(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {name: _closed(one) for name, one in schema.items()}
    if isinstance(schema.get("properties"), dict) and schema.get("type") == "object":
        closed.setdefault("additionalProperties", False)
    return closed


def test_the_barrier_fits_between_back_off_and_timeout() -> None:
    """K33: longer than podMaxBackoffSeconds + 10 s, shorter than the bind timeout."""
    (config,) = documents("scheduler-config")
    (container,) = documents("deployment")[0]["spec"]["template"]["spec"]["containers"]
    environment = {one["name"]: one.get("value") for one in container["env"]}
    barrier_s = float(environment["GANG_EXTENDER_BARRIER_TIMEOUT_S"])
    bind_s = float(config["extenders"][1]["httpTimeout"].removesuffix("s"))
    assert config["podMaxBackoffSeconds"] + 10 < barrier_s < bind_s - 10


def test_a_replica_that_ends_has_time_to_send_its_calls_on() -> None:
    """Held binds outlast the barrier, and the process outlasts them; updates take one replica at a time."""
    deployment, budget = documents("deployment")
    spec, pod = deployment["spec"], deployment["spec"]["template"]["spec"]
    environment = {one["name"]: one.get("value") for one in pod["containers"][0]["env"]}
    grace_s = float(environment["GANG_EXTENDER_SHUTDOWN_GRACE_S"])
    assert float(environment["GANG_EXTENDER_BARRIER_TIMEOUT_S"]) < grace_s
    assert grace_s < pod["terminationGracePeriodSeconds"]
    assert environment["GANG_EXTENDER_ADVERTISE_URL"] == "https://$(POD_IP):8888"
    assert spec["replicas"] >= 2
    assert spec["strategy"]["rollingUpdate"] == {"maxSurge": 0, "maxUnavailable": 1}
    assert spec["minReadySeconds"] > DRAIN_S, "found by callers before the next one ends"
    assert grace_s > DRAIN_S + TAKEN_WITHIN_S, "callers find another replica before it ends"
    assert "lifecycle" not in pod["containers"][0], "a sleep before SIGTERM keeps the lease"
    assert budget["spec"]["maxUnavailable"] == 1
    assert budget["spec"]["unhealthyPodEvictionPolicy"] == "AlwaysAllow"
    assert budget["spec"]["selector"] == spec["selector"]


def test_probes_and_places_of_the_replicas() -> None:
    """Ready is who answers or sends on; alive is who serves; each on a control plane node of its own; the Service finds them all."""
    spec = documents("deployment")[0]["spec"]
    pod = spec["template"]["spec"]
    (container,) = pod["containers"]
    paths = {
        probe: container[f"{probe}Probe"]["httpGet"]
        for probe in ("startup", "liveness", "readiness")
    }
    assert paths == {
        "startup": {"path": "/livez", "port": "https", "scheme": "HTTPS"},
        "liveness": {"path": "/livez", "port": "https", "scheme": "HTTPS"},
        "readiness": {"path": "/readyz", "port": "https", "scheme": "HTTPS"},
    }
    readiness, liveness = container["readinessProbe"], container["livenessProbe"]
    unready_s = readiness["periodSeconds"] * readiness.get("failureThreshold", 3)
    lease_s = Settings().lease_duration_s
    assert HANDOVER_MS / 1000 < unready_s < lease_s, "ready while a lease changes hands, not longer"
    assert liveness["periodSeconds"] * liveness["failureThreshold"] > lease_s
    (apart,) = pod["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    labels = spec["template"]["metadata"]["labels"]
    assert apart["topologyKey"] == "kubernetes.io/hostname"
    assert apart["labelSelector"]["matchLabels"] == spec["selector"]["matchLabels"] == labels
    (service,) = documents("service")
    assert service["spec"]["selector"] == labels
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports == {"verbs": 8888, "https": 8443}
    assert {port["targetPort"]: port["port"] for port in service["spec"]["ports"]} == ports


def test_the_role_asks_for_no_star() -> None:
    """Least privilege: named groups, resources and verbs; nothing is created or deleted but these."""
    role = next(
        d for d in documents("rbac") if d["metadata"]["name"] == "gang-extender" and "rules" in d
    )
    found: dict[str, set[str]] = {"create": set(), "delete": set()}
    for rule in role["rules"]:
        assert "*" not in rule["apiGroups"] + rule["resources"] + rule["verbs"]
        for verb in found.keys() & set(rule["verbs"]):
            found[verb] |= set(rule["resources"])
    assert found["create"] == {"pods/binding", "pods/eviction", "events"}
    assert found["delete"] == {"pods"}


SECOND = KUBERNETES / "second-scheduler"


def of_kind(file: str, kind: str) -> Any:
    (found,) = (d for d in documents_of(SECOND / file) if d["kind"] == kind)
    return found


def test_manifests_of_the_second_scheduler_start_with_a_comment(subtests: pytest.Subtests) -> None:
    """A comment stands in front; what kubectl applies is in our namespace, but for one role of kube-system."""
    for file in sorted(SECOND.glob("*.yaml")):
        with subtests.test(file.name):
            assert file.read_text(encoding="utf-8").startswith("# ")
            for one in documents_of(file):
                where = one["metadata"].get("namespace") if isinstance(one, dict) else None
                assert where in (None, "gang-extender") or one["roleRef"]["name"].startswith(
                    "extension-"
                )


def test_the_second_scheduler_serves_the_members_as_the_first_does() -> None:
    """The same profile and entries but for the address; never the profile of ordinary pods, never the same lease."""
    (first,) = documents("scheduler-config")
    second = yaml.safe_load(of_kind("scheduler.yaml", "ConfigMap")["data"]["config.yaml"])
    (profile,) = second["profiles"]
    (added,) = profile.pop("pluginConfig")
    assert profile == first["profiles"][1]
    for entry, ours in zip(second["extenders"], first["extenders"], strict=True):
        assert entry | {"urlPrefix": ours["urlPrefix"]} == ours
    assert second["leaderElection"]["resourceName"] == "gang-scheduler"
    assert second["podMaxBackoffSeconds"] == first["podMaxBackoffSeconds"]
    role = of_kind("scheduler.yaml", "Role")
    assert role["rules"][0]["resourceNames"] == ["gang-scheduler"]
    service = documents("service")[0]
    name, port = service["metadata"]["name"], service["spec"]["ports"][1]["port"]
    host = f"{name}.{service['metadata']['namespace']}.svc"
    assert host in NAMES
    url = f"https://{host}:{port}/scheduler"
    assert {entry["urlPrefix"] for entry in second["extenders"]} == {url}
    assert "gang-extender.dev/pool" in json.dumps(added)


def test_the_second_scheduler_presents_the_certificate_of_kube_scheduler() -> None:
    """Its Secret has the files under the names that the configuration has; only its own token, with an end."""
    pod = of_kind("scheduler.yaml", "Deployment")["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    mounts = {one["name"]: one["mountPath"] for one in container["volumeMounts"]}
    assert mounts["client"] == NODE_FOLDER
    (volume,) = (one["secret"] for one in pod["volumes"] if one["name"] == "client")
    assert volume["secretName"] == "gang-extender-scheduler-client"
    items = [{"key": SECRET_KEYS[name], "path": file} for name, file in SCHEDULER_FILES.items()]
    assert volume["items"] == items
    assert pod["securityContext"]["fsGroup"] == pod["securityContext"]["runAsGroup"]
    check_token(pod, container)


def test_the_second_scheduler_is_placed_by_the_first_and_outside_of_the_pool() -> None:
    """Else it would wait for itself; its program is that of the control plane we test with."""
    pod = of_kind("scheduler.yaml", "Deployment")["spec"]["template"]["spec"]
    assert pod["schedulerName"] == "default-scheduler"
    assert "tolerations" not in pod
    assert pod["priorityClassName"] == "system-cluster-critical"
    terms = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    expression = {"key": "gang-extender.dev/pool", "operator": "DoesNotExist"}
    assert terms["nodeSelectorTerms"] == [{"matchExpressions": [expression]}]
    image = load("deploy/compose/generate.py").IMAGES["kube-scheduler"]
    assert [container["image"] for container in pod["containers"]] == [image]


def test_every_locked_package_installs_on_the_python_of_debian_12():
    """Which is 3.11.2: newer releases of some packages need a later 3.11."""
    text = (ROOT / "requirements.lock").read_text()
    names = re.findall(r"^([A-Za-z0-9._-]+)==\S+ \\$", text, re.MULTILINE)  # without a marker
    assert len(names) > 50
    for name in names:
        needed = metadata(name)["Requires-Python"] or ""
        assert SpecifierSet(needed).contains("3.11.2"), f"{name} needs Python {needed}"
