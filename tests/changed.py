"""Which test files can see a change: `./run test --changed [--since=REV] [-v] [PYTEST ARGS]`.

A test file depends on what it imports, and on what that imports, lazy imports too; on the
`conftest.py` files above it and the fixtures that it names; on the commands that it starts; and on
the files that it reads by name. What is changed is what differs from the merge base with main (or
from REV), in commits, in the working tree and in untracked files. A file that no test is known to
read selects all tests.
"""

import argparse
import ast
import fnmatch
import functools
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from tests.imports import imports_of, module_of

ROOT = Path(__file__).parents[1]
#: Every test depends on these, and on `tests/conftest.py` with what it imports.
OF_ALL = ("pyproject.toml", "constraints.txt", "run")
#: What no test reads.
OF_NONE = (
    ".ci/*",
    ".gitignore",
    ".pre-commit-config.yaml",
    "CHANGELOG.md",
    "CITATION.cff",
    "LICENSE",
)
#: A test file's line `STARTS = "train", "eval"` names the commands that it starts, where their
#: names do not stand in it; `READS = "docs/*.md", ...` files that it does not name one by one. A
#: test file with `READS = "*"`, which looks at every committed file, sees every change.
LINES = ("STARTS", "READS")


class Graph:
    """Edges from each file of a checkout to the files that it depends on, by their paths."""

    def __init__(self, root: Path, files: Iterable[str]):
        self.root = root
        self.files = sorted(files)
        python = [name for name in self.files if name.endswith(".py")]
        self._modules = {module_of(root / name, root): name for name in python}
        commands = {name.replace("/__init__.py", ".py"): name for name in python}
        self._commands = {
            Path(as_file).stem: name
            for as_file, name in commands.items()
            if Path(as_file).parent.as_posix() == "transformer_jax/commands"
        }
        self._public = self._public_names()
        self._all = set(self.files)
        self._by_name: dict[str, list[str]] = {}
        self._others = self._all - set(python)
        for name in self._others:
            self._by_name.setdefault(Path(name).name, []).append(name)
        folders = {parent.as_posix() for name in self.files for parent in Path(name).parents}
        self._folders = folders - {".", "tests", "transformer_jax"}
        self.edges: dict[str, set[str]] = {}
        #: Files that are read as text, so that what they import does not matter.
        self.read: dict[str, set[str]] = {}
        for name in python:
            self._add(name)

    @property
    def tests(self) -> list[str]:
        """The test files."""
        return [name for name in self.files if fnmatch.fnmatch(name, "tests/*test_*.py")]

    def reads_all(self, test: str) -> bool:
        """Whether it looks at every committed file."""
        return "*" in _line(self._tree(test), "READS")

    def reached_from(self, start: str) -> dict[str, str | None]:
        """What a file depends on, directly or not, each with the file that depends on it."""
        reached: dict[str, str | None] = {start: None}
        waiting = [start]
        while waiting:
            here = waiting.pop()
            for there in sorted(self.edges.get(here, set()) - reached.keys()):
                reached[there] = here
                waiting.append(there)
        for here in list(reached):
            for there in self.read.get(here, set()):
                reached.setdefault(there, here)
        return reached

    def _public_names(self) -> dict[str, str]:
        """The names of `transformer_jax` -> their files, from the imports for editors."""
        name = self._modules.get("transformer_jax")
        if name is None:
            return {}
        named = imports_of(self._tree(name), "transformer_jax")
        return {each.rpartition(".")[2]: file for _, each in named if (file := self._file_of(each))}

    @functools.cache  # noqa: B019  # one graph a process
    def _tree(self, name: str) -> ast.Module:
        return ast.parse((self.root / name).read_text(encoding="utf-8"))

    def _file_of(self, module: str) -> str | None:
        """The file of `a.b.c`, where c is a module or a name in one."""
        return self._modules.get(module) or self._modules.get(module.rpartition(".")[0])

    def _add(self, name: str) -> None:
        """Adds the edges of a file, and of the fixtures of a conftest.py one by one."""
        tree = self._tree(name)
        if name == self._modules.get("transformer_jax"):
            return  # its names are for those who use them
        if name.endswith("conftest.py"):
            for fixture in filter(_is_fixture, tree.body):
                self._add_node(f"{name}::{fixture.name}", fixture, name)
            rest = [node for node in tree.body if not _is_fixture(node)]
            tree = ast.Module(rest, [])
        self._add_node(name, tree, name)

    def _add_node(self, node: str, tree: ast.AST, name: str) -> None:
        found = set(self._imported(tree, ".".join(Path(name).parts[:-1])))
        found |= set(self._named(tree, name))
        # Who imports a file runs the packages that it is in, too.
        packages = {f"{parent.as_posix()}/__init__.py" for parent in Path(name).parents}
        found |= packages & self._all - {self._modules.get("transformer_jax")}
        self.read[node] = set(self._read(tree, name))
        if name.startswith("tests/"):
            parents = [f"{parent.as_posix()}/conftest.py" for parent in Path(name).parents][:-1]
            arguments = {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
            arguments |= set(_texts(tree))  # usefixtures("name")
            for file in set(parents) & set(self.files):
                fixtures = [node for node in self._tree(file).body if _is_fixture(node)]
                used = [f for f in fixtures if f.name in arguments or "autouse" in ast.unparse(f)]
                found |= {file, *(f"{file}::{fixture.name}" for fixture in used)}
            found |= set(self._started(tree))
        self.edges[node] = found - {name}

    def _imported(self, tree: ast.AST, package: str) -> Iterator[str]:
        root_names = set()  # what the file calls `transformer_jax`
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    if alias.name == "transformer_jax":
                        root_names.add(alias.asname or alias.name)
        for _, module in imports_of(tree, package):
            base, _, last = module.rpartition(".")
            if base == "transformer_jax" and last in self._public:
                yield self._public[last]
            elif file := self._file_of(module):
                yield file
        used = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
        names = {n.attr for n in used if isinstance(n.value, ast.Name) and n.value.id in root_names}
        if names - self._public.keys():  # such as tj.__all__
            names = self._public.keys()
        yield from (self._public[name] for name in names)

    def _named(self, tree: ast.AST, name: str) -> Iterator[str]:
        """Files that are named by their path, and other files than Python's by their name."""
        here = Path(name).parent.as_posix()
        for text in {*_texts(tree)}:
            path = text.strip("/")
            yield from (f for f in (path, f"{here}/{path}") if f in self._all)
            yield from self._by_name.get(path, ())

    def _read(self, tree: ast.AST, name: str) -> Iterator[str]:
        """Files of folders that are named, and of the line READS."""
        here = Path(name).parent.as_posix()
        for text in {each.strip("/") for each in _texts(tree)} - {""}:
            if text in self._folders:
                yield from (f for f in self.files if f.startswith(f"{text}/"))
            yield from (f for f in self._others if f.startswith(f"{here}/{text}/"))
        for pattern in set(_line(tree, "READS")) - {"*"}:
            yield from fnmatch.filter(self.files, pattern)

    def _started(self, tree: ast.AST) -> Iterator[str]:
        """The commands that a test file starts: all, if it does not say which."""
        texts = set(_texts(tree))
        main = self._commands.get("main")
        modules = {name for _, name in imports_of(tree, "tests")}
        marks = ("transformer-jax", "train.py", "eval.py")
        starts = any(m.startswith("transformer_jax.commands.main") for m in modules) or any(
            mark in text for mark in marks for text in texts
        )
        named = set(_line(tree, "STARTS"))
        if not (named or starts) or main is None:
            return
        words = {text.split()[0] for text in texts if text.split()}
        words |= {w for t in texts for w in re.findall(r"transformer-jax (\w+)", t)}
        words |= {w for t in texts for w in re.findall(r"\b(train|eval)\.py\b", t)}
        named = named or words & self._commands.keys() or self._commands.keys()
        yield from (self._commands[each] for each in ("main", *named))


def _is_fixture(node: ast.AST) -> bool:
    return isinstance(node, ast.FunctionDef) and any(
        "fixture" in ast.unparse(each) for each in node.decorator_list
    )


def _texts(tree: ast.AST) -> Iterator[str]:
    """The strings of a module, but for docstrings."""
    skipped = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            skipped.add(id(node.value))
        is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
        if is_text and id(node) not in skipped:
            yield node.value


def _line(tree: ast.AST, name: str) -> list[str]:
    """The strings of the line `NAME = "a", "b"` at the top of a module."""
    for node in getattr(tree, "body", []):
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name:
            value = ast.literal_eval(node.value)
            return [value] if isinstance(value, str) else list(value)
    return []


def selected(graph: Graph, changed: Iterable[str]) -> dict[str, list[str]]:
    """Test file -> the way from it to a changed file, for those that can see the change."""
    changed = set(changed)
    ways = {test: [test, "every file"] for test in graph.tests if graph.reads_all(test)}
    ways = ways if changed else {}
    changed = {name for name in changed if not _matches(name, OF_NONE)}
    seen: set[str] = set()
    for test in graph.tests:
        reached = graph.reached_from(test)
        hits = sorted(changed & reached.keys())
        seen.update(hits)
        if hits:
            way: list[str] = []
            at: str | None = hits[0]
            while at is not None:
                way.insert(0, at)
                at = reached[at]
            ways[test] = way
    of_all = sorted(name for name in changed if name in OF_ALL or name not in seen)
    if of_all:
        return {test: ways.get(test, [test, of_all[0]]) for test in graph.tests}
    return ways


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatch.fnmatch(name, pattern) for pattern in patterns)


def git(*words: str) -> list[str]:
    """The lines that git prints."""
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"error: git {' '.join(words)}: {done.stderr.strip()}")
    return done.stdout.splitlines()


def changed_files(since: str | None) -> list[str]:
    """What differs from REV, or from where this branch left main, untracked files included."""
    if since is None:
        names = git("branch", "--all", "--format=%(refname:short)")
        main = next((name for name in ("main", "origin/main") if name in names), "HEAD")
        since = git("merge-base", "HEAD", main)[0]
    untracked = git("ls-files", "--others", "--exclude-standard")
    return sorted({*git("diff", "--name-only", "--no-renames", since), *untracked})


def main() -> None:
    """Writes the test files, and pytest's arguments, to the file --output, one a line."""
    parser = argparse.ArgumentParser(prog="./run test --changed", allow_abbrev=False)
    parser.add_argument("--since", metavar="REV", help="what differs from this commit")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("-v", "--verbose", action="store_true", help="say why each file is run")
    arguments, rest = parser.parse_known_args()
    names = git("ls-files", "--cached", "--others", "--exclude-standard")
    graph = Graph(ROOT, [name for name in names if (ROOT / name).is_file()])
    ways = selected(graph, changed_files(arguments.since))
    if arguments.verbose:
        for way in ways.values():
            print(" -> ".join(way))
    print(f"{len(ways)} of {len(graph.tests)} files")
    lines = [*ways, *rest] if ways else []
    arguments.output.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


if __name__ == "__main__":
    main()
