"""CEL expressions over workloads and their pod templates, for the admission policies of workload kinds.

A pod template is at a path such as `spec.replicatedJobs[].template.spec.template`. Items of a list have a `name` or a
`groupName`; an item of an updated object is compared with the item of that name.
"""

from __future__ import annotations

from collections.abc import Sequence

from extender.core.workloads.tree_policy import KEY_PREFIX_MAX, LABEL_KEY
from extender.core.workloads.workload_kind import WorkloadKind
from extender.core.workloads.workload_object import (
    EXCLUSIVE_ANNOTATION,
    GROUP_LABELS,
    LEAF_LABEL,
    NAMESPACE,
    OFF,
    OTHER_SCHEDULERS,
    SOURCE_ANNOTATION,
    TREE_LABEL,
)

_ITEM_NAMES = ("name", "groupName")
_LIST = "[]"
LABELS, ANNOTATIONS = '"/metadata/labels/"', '"/metadata/annotations/"'  # of the object, in CEL


def text(value: str) -> str:
    """Return a CEL string."""
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"


def texts(values: Sequence[str]) -> str:
    """Return a CEL list of strings."""
    return f"[{', '.join(text(value) for value in values)}]"


def labels_of(expression: str, field: str = "labels") -> str:
    """Return the labels (or annotations) of an object or a pod template as a map, which may be empty."""
    return f"(has({expression}.metadata) && has({expression}.metadata.{field}) ? {expression}.metadata.{field} : {{}})"


def value_of(labels: str, key: str) -> str:
    """Return a list with the value of a label, or an empty list."""
    return f"({text(key)} in {labels} ? [{labels}[{text(key)}]] : [])"


def all_there(root: str, fields: Sequence[str]) -> str:
    """Return the condition that each field of a path below `root` is set."""
    paths = [".".join((root, *fields[: n + 1])) for n in range(len(fields))]
    return " && ".join(f"has({path})" for path in paths) or "true"


def has_other_scheduler(pod: str) -> str:
    """Return the condition that a pod, or a pod template, is placed by a scheduler that does not know groups of ours."""
    return (
        f"(has({pod}.spec.schedulerName) && {pod}.spec.schedulerName in {texts(OTHER_SCHEDULERS)})"
    )


# --- pod templates


def templates(kind: WorkloadKind) -> str:
    """Return the list of the pod templates of a workload.

    Each is a map: `path` (a JSON pointer), `item` (what has the template), `template`, its `labels`, and `before`: the
    labels of the same template of the object that is updated, in a list that is empty on CREATE and for a new template.
    """
    return "\n+ ".join(_templates_at(path) for path in kind.template_paths)


def _templates_at(path: str) -> str:
    head, _, tail = path.partition(_LIST)
    if _LIST in tail:
        raise ValueError(f"{path}: a path of a pod template has at most one {_LIST}")
    fields, below = head.split("."), [field for field in tail.split(".") if field]
    if not tail:
        return _single(fields)
    items, old_items = (".".join((root, *fields)) for root in ("object", "oldObject"))
    item = f"{items}[i]"
    pointer = f"{text('/' + '/'.join(fields) + '/')} + string(i) + {text('/' + '/'.join(below))}"
    before = (
        f"request.operation != 'UPDATE' || !({all_there('oldObject', fields)}) ? []\n"
        f": (i < size({old_items}) && {_same(f'{old_items}[i]', item)} ? [{old_items}[i]]\n"
        f": {old_items}.filter(o, {_same('o', item)}))\n"
        f".filter(o, {all_there('o', below)}).map(o, {labels_of('.'.join(('o', *below)))})"
    )
    return (
        f"({all_there('object', fields)}\n"
        f"? lists.range(size({items})).filter(i, {all_there(item, below)})\n"
        f".map(i, {_template(pointer, item, '.'.join((item, *below)), before)})\n"
        ": [])"
    )


def _single(fields: Sequence[str]) -> str:
    template, old = (".".join((root, *fields)) for root in ("object", "oldObject"))
    before = (
        f"request.operation == 'UPDATE' && {all_there('oldObject', fields)}\n"
        f"? [{labels_of(old)}] : []"
    )
    return (
        f"({all_there('object', fields)}\n"
        f"? [{_template(text('/' + '/'.join(fields)), 'object', template, before)}]\n"
        ": [])"
    )


def _template(pointer: str, item: str, template: str, before: str) -> str:
    return (
        f"{{'path': dyn({pointer}), 'item': dyn({item}),\n"
        f"'template': dyn({template}),\n"
        f"'labels': dyn({labels_of(template)}),\n"
        f"'before': dyn({before})}}"
    )


def _same(first: str, second: str) -> str:
    pairs = [
        f"(has({first}.{name}) && has({second}.{name}) && {first}.{name} == {second}.{name})"
        for name in _ITEM_NAMES
    ]
    return f"({' || '.join(pairs)})"


# --- profile


def asked_profile() -> str:
    """Return a list with the profile that a workload has, of its own or of its namespace; empty: none, or off."""
    return (
        f"({text(TREE_LABEL)} in variables.own ? [variables.own[{text(TREE_LABEL)}]]\n"
        f": {value_of('variables.inherited', TREE_LABEL)})\n"
        f".filter(profile, profile != {text(OFF)})"
    )


def kept_out(kind: WorkloadKind) -> str:
    """Return the condition that a workload is scheduled by something else; the twin of `kept_out` in the table."""
    conditions = [
        "(has(object.spec) && has(object.spec.scheduling) && size(object.spec.scheduling) > 0)"
    ]
    if kind.manager:
        path = ("spec", *kind.manager_path)
        conditions.append(
            f"({all_there('object', path)} "
            f"&& !({'.'.join(('object', *path))} in {texts(('', kind.manager))}))"
        )
    conditions.append(
        f"variables.templates.exists(t, {texts(GROUP_LABELS)}.exists(key, key in t.labels)\n"
        "|| (has(t.template.spec) && ((has(t.template.spec.schedulingGroup) && size(t.template.spec.schedulingGroup) > 0)\n"
        f"|| {has_other_scheduler('t.template')})))"
    )
    return "\n|| ".join(conditions)


def controlled_by(kinds: Sequence[str]) -> str:
    """Return the condition that an object is controlled by one of some kinds."""
    return (
        "(has(object.metadata.ownerReferences) && object.metadata.ownerReferences.exists(o,\n"
        f"has(o.controller) && o.controller && o.kind in {texts(kinds)}))"
    )


# --- labels to add


def profile_to_add() -> str:
    """Return a list with the profile for templates that are new; on UPDATE it is that of the other templates."""
    stamped = (
        f"variables.templates.filter(t, t.before.exists(old, {text(TREE_LABEL)} in old && old[{text(TREE_LABEL)}] != {text(OFF)}))\n"
        f".map(t, t.before[0][{text(TREE_LABEL)}])"
    )
    return (
        f"request.operation != 'UPDATE' ? (variables.ours ? variables.asked : [])\n"
        f": size({stamped}) > 0\n? {stamped}.slice(0, 1)\n: []"
    )


def stamps(kind: WorkloadKind) -> str:
    """Return what to write into each template: `tree` and `leaf` are lists with one value or none."""
    tree = (
        f"{text(TREE_LABEL)} in t.labels ? []\n"
        f": size(t.before) > 0 ? {value_of('t.before[0]', TREE_LABEL)}\n"
        ": variables.profile"
    )
    return (
        "variables.templates.map(t, {'path': t.path, 'template': t.template,\n"
        f"'tree': dyn({tree}),\n'leaf': dyn({_leaf(kind)})}})"
    )


def _leaf(kind: WorkloadKind) -> str:
    if not kind.leaf_label_cel:
        return "[]"
    return (
        f"{text(LEAF_LABEL)} in t.labels || !variables.ours ? []\n"
        f": size(t.before) > 0 ? {value_of('t.before[0]', LEAF_LABEL)}\n"
        f": ({text(TREE_LABEL)} in t.labels ? t.labels[{text(TREE_LABEL)}] != {text(OFF)} : size(variables.profile) > 0)\n"
        f"? [t.item].map(item, {kind.leaf_label_cel}).filter(leaf, leaf != '')\n"
        ": []"
    )


def add_stamps() -> str:
    """Return the JSON patch that writes the labels into the templates."""
    template_labels = 's.path + "/metadata/labels/"'
    return (
        "variables.stamps.filter(s, size(s.tree) + size(s.leaf) > 0).map(s,\n"
        '(has(s.template.metadata) ? [] : [JSONPatch{op: "add", path: s.path + "/metadata", value: {}}])\n'
        "+ (has(s.template.metadata) && has(s.template.metadata.labels)\n"
        '? [] : [JSONPatch{op: "add", path: s.path + "/metadata/labels", value: {}}])\n'
        f"+ {add('s.tree', template_labels, TREE_LABEL)}\n"
        f"+ {add('s.leaf', template_labels, LEAF_LABEL)}\n"
        ").flatten()"
    )


def add(values: str, parent: str, key: str) -> str:
    """Return the JSON patch that sets a label or an annotation to each of the values."""
    return (
        f'{values}.map(value, JSONPatch{{op: "add", path: {parent} + jsonpatch.escapeKey("{key}"), '
        "value: value})"
    )


def source() -> str:
    """Return a list with the value of SOURCE_ANNOTATION to set, or an empty list."""
    return (
        f"{text(SOURCE_ANNOTATION)} in variables.annotations ? []\n"
        f": request.operation == 'UPDATE' ? {value_of('variables.oldAnnotations', SOURCE_ANNOTATION)}\n"
        f": size(variables.profile) > 0 && !({text(TREE_LABEL)} in variables.own) ? [{text(NAMESPACE)}]\n"
        ": []"
    )


def add_source() -> str:
    """Return the JSON patch that notes on a workload that its profile is that of its namespace."""
    return (
        "(size(variables.source) > 0 && !has(object.metadata.annotations)\n"
        '? [JSONPatch{op: "add", path: "/metadata/annotations", value: {}}] : [])\n'
        f"+ {add('variables.source', ANNOTATIONS, SOURCE_ANNOTATION)}"
    )


# --- exclusive domains


def exclusive(kind: WorkloadKind) -> str:
    """Return a list with the EXCLUSIVE_ANNOTATION that is the same as that of the controller, or an empty list.

    The value must be the key of a label: ours reads commas, colons and equals signs in it. An update that has the annotation of the controller again is that of a manifest whose object has ours instead.
    What the user wrote into ours stays: a value that is changed by the update, or that is not of the form that is written here.
    """
    theirs, ours = text(kind.exclusive_annotation), text(EXCLUSIVE_ANNOTATION)
    conditions = [
        "variables.ours && size(variables.profile) > 0",
        f"{theirs} in variables.annotations && [variables.annotations[{theirs}]].exists(key,\n"
        f"key.matches({text(f'^(?:{LABEL_KEY.pattern})$')}) && key.indexOf('/') <= {KEY_PREFIX_MAX})",
        "(request.operation == 'UPDATE'\n"
        f"? {ours} in variables.oldAnnotations && !({theirs} in variables.oldAnnotations)\n"
        f": !({ours} in variables.annotations) && !variables.templates.exists(t, {text(TREE_LABEL)} in t.labels))",
    ]
    if kind.policy_from:
        conditions.append(f"!{controlled_by(kind.policy_from)}")
    before = f"variables.oldAnnotations[{ours}]"
    kept = (
        f"request.operation == 'UPDATE'\n&& ({ours} in variables.annotations && variables.annotations[{ours}] != {before}\n"
        f"|| !{before}.matches('^(leaf|root)=[^,:]+$'))\n"
        f"? ({ours} in variables.annotations ? variables.annotations[{ours}] : {before})"
    )
    return (
        "\n&& ".join(conditions) + f"\n? [{kind.exclusive_level_cel}].filter(level, level != '')\n"
        f".map(level, {kept}\n: level + '=' + variables.annotations[{theirs}])\n: []"
    )


def replace_exclusive(kind: WorkloadKind) -> str:
    """Return the JSON patch that writes EXCLUSIVE_ANNOTATION in place of the annotation of the controller."""
    remove = f'JSONPatch{{op: "remove", path: {ANNOTATIONS} + jsonpatch.escapeKey("{kind.exclusive_annotation}")}}'
    return (
        f"variables.exclusive.map(value, {remove})\n"
        f"+ {add('variables.exclusive', ANNOTATIONS, EXCLUSIVE_ANNOTATION)}"
    )
