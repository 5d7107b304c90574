"""The chart and the kustomizations are those of deploy/kubernetes, without Helm: what is written, values, names, the archive."""

from __future__ import annotations

import functools
import io
import json
import re
import tarfile
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from deploy.packaging import archive, manifests, templates, values, written
from extender.settings import all_settings
from tests.chart.goldens import file_of
from tests.chart.helm import VALUE_SETS, VALUES_BEFORE

OVERLAYS = sorted((written.KUSTOMIZE / "overlays").iterdir())
# Read by programs or changed first; what is not a resource stands in no kustomization.
NO_RESOURCES = {
    "scheduler-config.yaml",
    "quota-example.yaml",
    "scopes/contended-resource.yaml",
    "scopes/everything.yaml",
    "scopes/marker-resource.yaml",
    "second-scheduler/extender-patch.yaml",
    "second-scheduler/leaf-policy.yaml",
    "cloudnative-pg/extender-patch.yaml",
}


def test_chart_and_copies_are_written_from_deploy_kubernetes() -> None:
    """`make chart` would change nothing."""
    assert [str(path.relative_to(manifests.ROOT)) for path in written.stale()] == []


def test_an_edit_that_does_not_find_its_text_is_an_error() -> None:
    """With the file and the text, so that a change of the source is not left out silently."""
    with pytest.raises(
        templates.StaleEdit,
        match=r"deploy/kubernetes/x.yaml: 'replicas: 3' is there 0 times, not 1",
    ):
        templates.edited("replicas: 2\n", [templates.Edit("replicas: 3", "")], "x.yaml")


def test_braces_of_a_source_are_not_read_by_helm() -> None:
    """They are quoted before values are put in."""
    edit = templates.Edit("size", "{{ .Values.size }}")
    assert (
        templates.edited("a: {{ b }} size", [edit], "x") == 'a: {{ "{{" }} b }} {{ .Values.size }}'
    )


def test_the_file_of_values_has_the_defaults_and_its_schema_takes_them() -> None:
    """Every value is in the file, with the default of the schema."""
    shipped = yaml.safe_load((written.CHART / "values.yaml").read_text(encoding="utf-8"))
    assert shipped == values.values()
    check(shipped)


@functools.cache
def validator() -> jsonschema.Draft202012Validator:
    schema = json.loads((written.CHART / "values.schema.json").read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


@functools.cache
def default_values() -> dict[str, Any]:
    return values.values()


def check(given: dict[str, Any]) -> None:
    """Validate values as Helm does: the given ones over the defaults."""

    def merged(under: Any, over: Any) -> Any:
        if isinstance(under, dict) and isinstance(over, dict):
            return {**under, **{k: merged(under.get(k), v) for k, v in over.items()}}
        return over

    validator().validate(merged(default_values(), given))


def test_each_set_of_values_fits_the_schema_and_has_its_golden_file(
    subtests: pytest.Subtests,
) -> None:
    """What it changes is recorded (`make chart` compares)."""
    for file in VALUE_SETS:
        with subtests.test(file.stem):
            check(yaml.safe_load(file.read_text(encoding="utf-8")))
            assert file_of(file).is_file()


def test_the_values_file_of_the_version_before_is_not_refused() -> None:
    """`helm upgrade --values` with it: no value was renamed or removed."""
    check(yaml.safe_load(VALUES_BEFORE.read_text(encoding="utf-8")))


WRONG: dict[str, dict[str, Any]] = {
    "'replica' was unexpected": {"replica": 2},
    "'8888' is not of type 'integer'": {"ports": {"verbs": "8888"}},
    "80 is less than the minimum": {"ports": {"https": 80}},
    "'gpu' is not one of": {"scheduler": {"scope": "gpu"}},
    "'Deployment' is not one of": {"workloads": {"kinds": ["Deployment"]}},
    "'barier_timeout_s' was unexpected": {"settings": {"barier_timeout_s": 1}},
    "'listen' was unexpected": {"settings": {"listen": "0.0.0.0:1"}},
    "'nvidia' does not match": {"scheduler": {"contendedResource": "nvidia"}},
    "'sha256:1' does not match": {"image": {"digest": "sha256:1"}},
    "'mysql' is not one of": {"database": {"source": "mysql"}},
    "'wiki/' does not match": {"prometheusRules": {"runbookUrl": "wiki/"}},
    "'registry.example.com/' does not match": {"image": {"registry": "registry.example.com/"}},
    "'20' does not match": {"database": {"cloudnativePG": {"storage": {"size": "20"}}}},
}


def test_a_wrong_value_is_refused_by_the_schema(subtests: pytest.Subtests) -> None:
    """With the value and what is expected."""
    for words, given in WRONG.items():
        with (
            subtests.test(words),
            pytest.raises(jsonschema.ValidationError, match=re.escape(words)),
        ):
            check(given)


def test_settings_are_those_of_the_service() -> None:
    """Each is a value, but for those that the Deployment derives; a setting that is new is one without a change here."""
    names = {one.name for one in all_settings()}
    assert names >= values.FIXED_SETTINGS
    schema = values.schema()["properties"]["settings"]["properties"]
    assert {*schema} == names - values.FIXED_SETTINGS
    written_by_templates = (written.CHART / "templates" / "deployment.yaml").read_text(
        encoding="utf-8"
    )
    for name in schema:
        assert f"GANG_EXTENDER_{name.upper()}," not in written_by_templates


def test_the_name_of_the_image_is_that_of_the_package_everywhere() -> None:
    """pyproject.toml is the one place; `make chart` and compose/generate.py repeat it."""
    files = [
        manifests.ROOT / name
        for name in ("docker-compose.yml", "README.md", *manifests.NAMING_IMAGE)
    ]
    files += [
        p
        for folder in ("deploy", "docs")
        for p in (manifests.ROOT / folder).rglob("*")
        if p.suffix in (".md", ".yaml", ".py")
    ]
    found = {
        name
        for file in files
        for name in manifests.IMAGE_IN_TEXT.findall(file.read_text(encoding="utf-8"))
    }
    assert found == {manifests.IMAGE}
    for name in manifests.NAMING_IMAGE:
        assert manifests.IMAGE in (manifests.ROOT / name).read_text(encoding="utf-8"), name


def test_the_archive_is_the_same_twice_and_has_the_chart_only() -> None:
    """No times, owners or order of a file system in it; the sets of values of the tests stay outside."""
    first = archive.packed()
    assert first == archive.packed()
    with tarfile.open(fileobj=io.BytesIO(first)) as packed:
        names = packed.getnames()
        assert {(one.mtime, one.uid, one.uname, one.mode) for one in packed.getmembers()} == {
            (0, 0, "", 0o644)
        }
    assert names == sorted(names)
    assert {
        "gang-extender/Chart.yaml",
        "gang-extender/values.schema.json",
        "gang-extender/README.md",
    } <= {*names}
    assert not [name for name in names if "/ci/" in name]


def test_artifact_hub_finds_version_definitions_and_changes() -> None:
    """As its documentation of annotations in Chart.yaml asks."""
    chart = yaml.safe_load((written.CHART / "Chart.yaml").read_text(encoding="utf-8"))
    assert chart["version"] == chart["appVersion"] == manifests.TAG
    notes = {name: yaml.safe_load(text) for name, text in chart["annotations"].items()}
    crds = {one["name"]: one["kind"] for one in notes["artifacthub.io/crds"]}
    assert crds == {
        d["metadata"]["name"]: d["spec"]["names"]["kind"]
        for d in manifests.documents_of("crds.yaml")
    }
    assert {one["kind"] for one in notes["artifacthub.io/changes"]} <= {
        "added",
        "changed",
        "deprecated",
        "removed",
        "fixed",
        "security",
    }
    assert all(one["description"] for one in notes["artifacthub.io/changes"])
    assert notes["artifacthub.io/images"][0]["image"] == manifests.IMAGE


# --- kustomize


def kustomization(folder: Path) -> dict[str, Any]:
    """Return the kustomization of a folder."""
    (file,) = (
        folder / name
        for name in ("kustomization.yaml", "Kustomization")
        if (folder / name).is_file()
    )
    found: dict[str, Any] = yaml.safe_load(file.read_text(encoding="utf-8"))
    return found


def test_every_manifest_is_a_resource_of_one_kustomization() -> None:
    """Or stands in the list of those that are none; so a new file is not forgotten."""
    resources = [
        str((file.parent / name).relative_to(manifests.SOURCE))
        for file in manifests.SOURCE.rglob("Kustomization")
        for name in kustomization(file.parent)["resources"]
    ]
    manifests_there = {
        str(p.relative_to(manifests.SOURCE)) for p in manifests.SOURCE.rglob("*.yaml")
    }
    assert len(resources) == len(set(resources))
    assert set(resources) == manifests_there - NO_RESOURCES


def test_no_kustomization_is_applied_by_the_name_of_its_folder() -> None:
    """`kubectl apply -f deploy/kubernetes/workloads` reads *.yaml, *.yml and *.json, and would refuse a kustomization among them."""
    assert list(manifests.SOURCE.rglob("kustomization.y*ml")) == []


def test_each_overlay_has_a_set_of_values_of_its_name() -> None:
    """The end-to-end tests compare both."""
    assert {one.name for one in OVERLAYS} <= {one.stem for one in VALUE_SETS}
    for folder in OVERLAYS:
        found = kustomization(folder)
        for name in [*found["resources"], *found.get("components", [])]:
            kustomization((folder / name).resolve())
