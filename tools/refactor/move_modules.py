"""Move modules by a map and rewrite every import and every mention of them.

    python tools/refactor/move_modules.py tools/refactor/modules.txt

Reads pairs "old new" of dotted module names. Moves the files with `git mv`, rewrites imports (a name bound by
`from package import module` follows where that is safe, otherwise `as` keeps it), and replaces dotted names and
paths in texts: docstrings, strings, Markdown, TOML, YAML, SQL.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
TEXTS = {".md", ".toml", ".yaml", ".yml", ".sql", ".txt", ".mako", ".js", ".html", ""}
KEEP_LOCAL = {"extender.cluster.api": "api"}
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


def read_map(path: Path) -> dict[str, str]:
    """Return old -> new dotted names."""
    lines = (line.split("#")[0].split() for line in path.read_text().splitlines())
    return {line[0]: line[1] for line in lines if line}


def file_of(module: str, *, package: bool) -> Path:
    base = ROOT.joinpath(*module.split("."))
    return base / "__init__.py" if package else base.with_suffix(".py")


def git(*args: str) -> str:
    return subprocess.run(["git", *args], cwd=ROOT, check=True, capture_output=True, text=True).stdout


def binds(function: ast.AST, name: str) -> bool:
    """Whether a function binds a name itself: a parameter or an assignment."""
    for node in ast.walk(function):
        if isinstance(node, ast.arg) and node.arg == name:
            return True
        if isinstance(node, ast.Name) and node.id == name and not isinstance(node.ctx, ast.Load):
            return True
    return False


def uses(tree: ast.AST, name: str) -> list[ast.Name]:
    found: list[ast.Name] = []

    def walk(node: ast.AST) -> None:
        if isinstance(node, FUNCTIONS) and binds(node, name):
            return
        if isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Load):
            found.append(node)
        for child in ast.iter_child_nodes(node):
            walk(child)

    walk(tree)
    return found


def rewrite_python(text: str, moves: dict[str, str]) -> str:
    tree = ast.parse(text)
    lines = text.splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    raw = [line.encode() for line in lines]

    def offset(line: int, column: int) -> int:  # ast columns are bytes
        return starts[line - 1] + len(raw[line - 1][:column].decode())

    identifiers = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)} | {
        n.arg for n in ast.walk(tree) if isinstance(n, ast.arg)
    }
    edits: list[tuple[int, int, str]] = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.ImportFrom) or node.module is None:
            continue
        module = moves.get(node.module, node.module)
        stay, moved = [], []
        for alias in node.names:
            target = moves.get(f"{node.module}.{alias.name}")
            if target is None:
                stay.append(alias.name + (f" as {alias.asname}" if alias.asname else ""))
                continue
            parent, _, base = target.rpartition(".")
            local = alias.asname or alias.name
            if alias.asname is None and f"{node.module}.{alias.name}" not in KEEP_LOCAL and base not in identifiers:
                edits.extend(
                    (offset(n.lineno, n.col_offset), offset(n.end_lineno, n.end_col_offset), base)
                    for n in uses(tree, local)
                )
                local = base
            moved.append(f"from {parent} import {base}" + (f" as {local}" if local != base else ""))
        if not moved and module == node.module:
            continue
        begin, end = offset(node.lineno, node.col_offset), offset(node.end_lineno, node.end_col_offset)
        indent = " " * node.col_offset
        if not moved:  # keep the layout of the names
            head = re.match(rf"from\s+{re.escape(node.module)}\s", text[begin:end])
            edits.append((begin, begin + head.end() - 1, f"from {module}"))
            continue
        statements = ([f"from {module} import {', '.join(stay)}"] if stay else []) + moved
        edits.append((begin, end, f"\n{indent}".join(statements)))
    for begin, end, new in sorted(edits, reverse=True):
        text = text[:begin] + new + text[end:]
    return text


def text_rewriter(moves: dict[str, str]):
    """Return a function that replaces dotted names and paths of modules in a text."""
    slashed = {}
    short = {}
    for old, new in moves.items():
        slashed[old.replace(".", "/")] = new.replace(".", "/")
        if old.startswith("extender.") and old.count(".") >= 2:
            slashed[old.replace(".", "/").removeprefix("extender/")] = new.replace(".", "/").removeprefix("extender/")
            short[old.removeprefix("extender.")] = new.removeprefix("extender.")

    def one(name: str, separator: str) -> str:
        """Match a name, but not where it is already the folder of a moved module."""
        prefix = name + separator
        inside = {new.removeprefix(prefix) for new in [*moves.values(), *slashed.values(), *short.values()] if new.startswith(prefix)}
        return re.escape(name) + (f"(?!{re.escape(separator)}(?:{'|'.join(sorted(inside))}))" if inside else "")

    def any_of(names, separator: str = ".") -> str:
        return "(" + "|".join(one(k, separator) for k in sorted(names, key=len, reverse=True)) + ")"

    dotted = re.compile(r"(?<![\w./])" + any_of(moves) + r"(?!\w)")
    slashes = re.compile(r"(?<![\w./-])((?:\.\.?/)*)" + any_of(slashed, "/") + r"(?![\w/-])")
    shorts = re.compile(r"(?<=`)" + any_of(short) + r"(?![\w/-])")

    def replace(text: str) -> str:
        text = dotted.sub(lambda m: moves[m[1]], text)
        text = slashes.sub(lambda m: m[1] + slashed[m[2]], text)
        return shorts.sub(lambda m: short[m[1]], text) if short else text

    return replace


def deeper(text: str, by: int) -> str:
    """Follow a move to a folder that is deeper: `Path(__file__).parents[n]` counts folders."""
    text = re.sub(
        r"(Path\(__file__\)(?:\.resolve\(\))?)\.parents\[(\d+)\]", lambda m: f"{m[1]}.parents[{int(m[2]) + by}]", text
    )
    return re.sub(r"(Path\(__file__\)(?:\.resolve\(\))?)\.parent(?= / \"golden)", rf"\1.parents[{by}]", text)


def main() -> None:
    moves = read_map(Path(sys.argv[1]))
    packages = {m for m in moves if file_of(m, package=True).exists() and not file_of(m, package=False).exists()}
    missing = [m for m in moves if m not in packages and not file_of(m, package=False).exists()]
    for module in missing:
        print("no such module:", module)
        del moves[module]
    in_texts = text_rewriter(moves)
    rewritten = 0
    for line in git("ls-files").splitlines():
        path = ROOT / line
        if not path.is_file() or line.startswith("tools/refactor") or "golden" in path.parts:
            continue
        if path.suffix != ".py" and path.suffix not in TEXTS:
            continue
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue
        new = in_texts(text)  # first: `from package import module` names no module in full
        new = rewrite_python(new, moves) if path.suffix == ".py" else new
        if new != text:
            path.write_text(new)
            rewritten += 1
    for old, new in sorted(moves.items(), key=lambda pair: -pair[0].count(".")):
        source, target = file_of(old, package=old in packages), file_of(new, package=old in packages)
        target.parent.mkdir(parents=True, exist_ok=True)
        if (by := new.count(".") - old.count(".")) and "__file__" in (text := source.read_text()):
            source.write_text(deeper(text, by))
        git("mv", str(source.relative_to(ROOT)), str(target.relative_to(ROOT)))
    print(f"{len(moves)} modules moved, {rewritten} files rewritten")


if __name__ == "__main__":
    main()
