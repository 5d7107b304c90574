"""Split a module into several: every top-level name goes to the module that a list gives, importers follow.

    python tools/refactor/split_module.py extender.ports.protocols assignment.txt

The list has lines "name module" (module dotted). Imports of the new modules are what their code uses.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[2]


def segment_names(node: ast.stmt) -> list[str]:
    if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
        return [node.name]
    if isinstance(node, ast.Assign):
        return [t.id for t in node.targets if isinstance(t, ast.Name)]
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        return [node.target.id]
    return []


def used(node: ast.AST) -> set[str]:
    names = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
    for n in ast.walk(node):  # annotations as strings are not used here
        if isinstance(n, ast.Attribute):
            base = n
            while isinstance(base, ast.Attribute):
                base = base.value
            if isinstance(base, ast.Name):
                names.add(base.id)
    return names


def main() -> None:
    module, listing = sys.argv[1], Path(sys.argv[2])
    target = dict(line.split() for line in listing.read_text().splitlines() if line.strip() and line[0] != "#")
    path = ROOT.joinpath(*module.split(".")).with_suffix(".py")
    text = path.read_text()
    lines = text.splitlines(keepends=True)
    tree = ast.parse(text)
    imports: dict[str, str] = {}
    parts: dict[str, list[str]] = defaultdict(list)
    uses: dict[str, set[str]] = defaultdict(set)
    last_end = 0
    for node in tree.body:
        start = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))]) - 1
        if isinstance(node, ast.ImportFrom):
            if node.module != "__future__":
                for alias in node.names:
                    imports[alias.asname or alias.name] = f"from {node.module} import {alias.name}" + (
                        f" as {alias.asname}" if alias.asname else ""
                    )
        elif isinstance(node, ast.Import):
            for alias in node.names:
                imports[alias.asname or alias.name.split(".")[0]] = f"import {alias.name}" + (
                    f" as {alias.asname}" if alias.asname else ""
                )
        elif names := segment_names(node):
            while start > last_end and lines[start - 1].startswith("#"):
                start -= 1
            goes = target[names[0]]
            parts[goes].append("".join(lines[start : node.end_lineno]))
            uses[goes] |= used(node)
        last_end = node.end_lineno or last_end
    for goes, segments in parts.items():
        needed = [imports[n] for n in sorted(uses[goes]) if n in imports]
        needed += [f"from {target[n]} import {n}" for n in sorted(uses[goes]) if n in target and target[n] != goes]
        new = ROOT.joinpath(*goes.split(".")).with_suffix(".py")
        head = f'"""{HEADS.get(goes, "")}"""\n\nfrom __future__ import annotations\n\n'
        new.write_text(head + "\n".join(needed) + "\n\n\n" + "\n\n".join(s.rstrip("\n") + "\n" for s in segments))
    listed = subprocess.run(["git", "ls-files", "*.py"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for line in listed.splitlines():
        other = ROOT / line
        source = other.read_text()
        if module not in source or other == path:
            continue
        edits = []
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.ImportFrom) and node.module == module:
                grouped: dict[str, list[str]] = defaultdict(list)
                for alias in node.names:
                    grouped[target[alias.name]].append(alias.name + (f" as {alias.asname}" if alias.asname else ""))
                indent = " " * node.col_offset
                statement = f"\n{indent}".join(f"from {m} import {', '.join(n)}" for m, n in grouped.items())
                edits.append((node.lineno - 1, node.end_lineno, indent + statement + "\n"))
        rows = source.splitlines(keepends=True)
        for begin, end, statement in sorted(edits, reverse=True):
            rows[begin:end] = [statement]
        other.write_text("".join(rows))
    subprocess.run(["git", "rm", "-q", "-f", str(path.relative_to(ROOT))], cwd=ROOT, check=True)


HEADS = {
    "extender.ports.log_ports": "Ports to the event log and what lies beside it: lease, snapshots, decision inputs, read models, clock.",
    "extender.ports.cluster_ports": "Ports to the cluster: the view, and every write that follows from the log.",
    "extender.ports.query_ports": "Ports of read-only questions to the log.",
}

if __name__ == "__main__":
    main()
