"""Rename classes, functions and constants of modules, in the module and wherever it is imported.

    python tools/refactor/rename_symbols.py tools/refactor/classes.txt

Each line: module, old name, new name. Renamed are the NAME tokens of the defining module and of every file that imports
the name from there (or reads it as an attribute of the imported module), and the name in backticks in docstrings and
Markdown where no other definition has it. A line with module `*` renames every NAME token in all files.
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[2]


def files() -> list[Path]:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return [ROOT / line for line in listed.splitlines() if not line.startswith("tools/refactor")]


def module_of(path: Path) -> str:
    name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    return name.removesuffix(".__init__")


def rename_tokens(text: str, names: dict[str, str], attributes_of: dict[str, dict[str, str]]) -> str:
    lines = text.splitlines(keepends=True)
    edits = []
    # inside f-strings of Python 3.11 names are part of a string: they are handled by their expression syntax below
    tokens = list(tokenize.generate_tokens(io.StringIO(text).readline))
    for index, token in enumerate(tokens):
        if token.type != tokenize.NAME:
            if token.type == tokenize.STRING and re.match(r"(?i)[rb]*f", token.string):
                new = rename_in_fstring(token.string, names)
                if new != token.string:
                    edits.append((token.start, token.end, new))
            continue
        after_dot = index > 0 and tokens[index - 1].string == "."
        new = None
        if after_dot:
            base = tokens[index - 2].string if index > 1 else ""
            new = attributes_of.get(base, {}).get(token.string)
            if new is None and "*" in attributes_of:
                new = attributes_of["*"].get(token.string)
        else:
            new = names.get(token.string)
        if new is not None:
            edits.append((token.start, token.end, new))
    for (row, begin), (end_row, end), new in sorted(edits, reverse=True):
        if row == end_row:
            line = lines[row - 1]
            lines[row - 1] = line[:begin] + new + line[end:]
        else:
            lines[row - 1 : end_row] = [lines[row - 1][:begin] + new + lines[end_row - 1][end:]]
    return "".join(lines)


def rename_in_fstring(text: str, names: dict[str, str]) -> str:
    def inside(match: re.Match[str]) -> str:
        return re.sub(r"(?<![\w.])([A-Za-z_]\w*)\b", lambda m: names.get(m[1], m[1]), match[0])

    return re.sub(r"\{[^{}]*\}", inside, text)


def main() -> None:
    by_module: dict[str, dict[str, str]] = defaultdict(dict)
    everywhere: dict[str, str] = {}
    for path in sys.argv[1:]:
        for line in Path(path).read_text().splitlines():
            parts = line.split("#")[0].split()
            if not parts:
                continue
            module, old, new = parts
            if module == "*":
                everywhere[old] = new
            else:
                by_module[module][old] = new
    sources = {p: p.read_text() for p in files() if p.suffix == ".py"}
    defined: dict[str, list[str]] = defaultdict(list)
    for path, text in sources.items():
        if path.is_relative_to(ROOT / "extender"):
            for node in ast.parse(text).body:
                if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
                    defined[node.name].append(module_of(path))
    for module, names in by_module.items():
        for old in names:
            if module not in defined[old]:
                print(f"{module} does not define {old}")
    unique = {old: new for names in by_module.values() for old, new in names.items() if len(defined[old]) == 1}
    unique = {old: new for old, new in unique.items() if not old.islower() and len(old) > 5}
    changed = 0
    for path, text in sources.items():
        module = module_of(path)
        names = dict(by_module.get(module, {}))
        attributes: dict[str, dict[str, str]] = {}
        tree = ast.parse(text)
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module:
                for alias in node.names:
                    if alias.name in by_module.get(node.module, {}):
                        if alias.asname is None:
                            names[alias.name] = by_module[node.module][alias.name]
                        else:
                            names.setdefault(alias.name, by_module[node.module][alias.name])
                    full = f"{node.module}.{alias.name}"
                    if full in by_module:
                        attributes[alias.asname or alias.name] = by_module[full]
        names.update(everywhere)
        if everywhere:
            attributes["*"] = everywhere
        new = rename_tokens(text, names, attributes) if names or attributes else text
        new = in_backticks(new, {**unique, **everywhere})
        new = re.sub(r"(?s)(?<=__all__ = \[)[^\]]*", lambda m: re.sub(r"\w+", lambda w: names.get(w[0], w[0]), m[0]), new)
        if new != text:
            path.write_text(new)
            changed += 1
    for path in files():
        if path.suffix in (".md", ".yaml", ".toml") and path.is_file() and "golden" not in path.parts:
            text = path.read_text()
            new = in_backticks(text, {**unique, **everywhere})
            if new != text:
                path.write_text(new)
                changed += 1
    print(f"{sum(map(len, by_module.values())) + len(everywhere)} names, {changed} files")


def in_backticks(text: str, names: dict[str, str]) -> str:
    def inside(match: re.Match[str]) -> str:
        return re.sub(r"(?<![\w/.-])([A-Za-z_]\w*)\b", lambda m: names.get(m[1], m[1]), match[0])

    return re.sub(r"`[^`\n]+`", inside, text)


if __name__ == "__main__":
    main()
