"""Figures of the program's structure: how large its parts are, and how they hang together.

`make figures` prints them; `docs/contributing.md` has them with what they shall become, and `test_structure.py` keeps
them from getting worse.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import grimp
import networkx
from radon.complexity import cc_visit
from radon.visitors import Class, Function
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).parents[2]
PACKAGES = ("server", "engine", "catalog", "sql", "headwater")

OPTIONS = "server/commands"
"""Functions here are as long as the options that they declare."""


@dataclass(frozen=True)
class Figures:
    """What is counted."""

    largest_folder: tuple[str, int]
    """The folder with the most modules, `__init__.py` not counted."""

    circles: list[list[str]]
    """Modules that import one another, imports within functions counted."""

    circles_of_types: list[list[str]]
    """The same, with the imports that only the type checker follows."""

    complexity: dict[str, int]
    """Cyclomatic complexity, as radon counts it, of each function over 15."""

    longest_function: tuple[str, int]
    """The function with the most lines, its docstring counted, outside of `server/commands`."""

    modules_with_tests: tuple[int, int]
    """How many modules have a test file that is named after them, and how many there are."""

    def over(self, complexity: int) -> list[str]:
        """The functions that are more complex than that, the worst first."""
        worst = sorted(self.complexity.items(), key=lambda item: -item[1])
        return [f"{name} ({count})" for name, count in worst if count > complexity]


def modules() -> Iterator[Path]:
    """The files of the program, relative to the root of the repository."""
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            if path.name != "__init__.py":
                yield path.relative_to(ROOT)


def measure() -> Figures:
    """Count everything; it takes some seconds."""
    files = list(modules())
    return Figures(
        largest_folder=Counter(str(path.parent) for path in files).most_common(1)[0],
        circles=circles(types=False),
        circles_of_types=circles(types=True),
        complexity=complexity(files),
        longest_function=max(lengths(files), key=lambda found: found[1]),
        modules_with_tests=(len(tested(files)), len(files)),
    )


def circles(types: bool) -> list[list[str]]:
    """The strongly connected components of more than one module, the largest first."""
    graph = grimp.build_graph(*PACKAGES, exclude_type_checking_imports=not types, cache_dir=None)
    imports = networkx.DiGraph(
        (module, imported) for module in graph.modules for imported in graph.find_modules_directly_imported_by(module)
    )
    found = (sorted(component) for component in networkx.strongly_connected_components(imports) if len(component) > 1)
    return sorted(found, key=lambda component: (-len(component), component))


def complexity(files: list[Path]) -> dict[str, int]:
    """The functions over 15, by file and name."""
    found: dict[str, int] = {}
    for path in files:
        for block in cc_visit((ROOT / path).read_text()):
            functions = [block] if isinstance(block, Function) else block.methods if isinstance(block, Class) else []
            found |= {f"{path}:{f.fullname}": f.complexity for f in functions if f.complexity > 15}
    return found


def lengths(files: list[Path]) -> Iterator[tuple[str, int]]:
    """Each function with its number of lines."""
    for path in files:
        if str(path).startswith(OPTIONS):
            continue
        for node in ast.walk(ast.parse((ROOT / path).read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield f"{path}:{node.name}", (node.end_lineno or node.lineno) - node.lineno + 1


def tested(files: list[Path]) -> set[Path]:
    """The modules `a/b/c.py` for which there is a file `test_c.py` or `test_b_c.py`."""
    names = {path.name for path in (ROOT / "tests").rglob("test_*.py")}
    return {
        path for path in files if f"test_{path.stem}.py" in names or f"test_{path.parent.name}_{path.stem}.py" in names
    }


def main() -> None:
    """Print a table, and below it what stands out."""
    figures = measure()
    folder, most = figures.largest_folder
    function, lines = figures.longest_function
    done, all_modules = figures.modules_with_tests
    table = Table("what", "now", "where", box=None)
    table.add_row("modules in one folder, at most", str(most), folder)
    table.add_row("import circles", str(len(figures.circles)), _sizes(figures.circles))
    table.add_row(
        "import circles, with TYPE_CHECKING", str(len(figures.circles_of_types)), _sizes(figures.circles_of_types)
    )
    table.add_row("functions with a complexity over 20", str(len(figures.over(20))), "")
    table.add_row("functions with a complexity over 15", str(len(figures.over(15))), "")
    table.add_row("longest function, in lines", str(lines), function)
    table.add_row("modules with a test file named after them", f"{done} of {all_modules}", "")
    console = Console(width=140, highlight=False)
    console.print(table)
    console.print("\n[bold]Import circles, with TYPE_CHECKING[/bold]")
    for circle in figures.circles_of_types:
        console.print("  " + ", ".join(circle))
    console.print("\n[bold]Functions with a complexity over 15[/bold]")
    for name in figures.over(15):
        console.print("  " + name)


def _sizes(found: list[list[str]]) -> str:
    return f"of {', '.join(str(len(circle)) for circle in found)} modules" if found else ""


if __name__ == "__main__":
    main()
