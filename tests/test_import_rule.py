"""Who may import whom, read off the source: the rule that keeps the packages apart and --help fast."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FILES = sorted(path for package in ("data", "trainer") for path in (ROOT / package).rglob("*.py"))
WITHOUT_TORCH = (
    "trainer",
    "trainer.checks",
    "trainer.cli",
    "trainer.coerce",
    "trainer.config",
    "trainer.config_file",
    "trainer.errors",
    "trainer.flags",
    "trainer.peer_flags",
)
SIBLINGS = ("models", "precision", "memory_format", "optim", "metrics", "timing", "distributed")
MAY_USE = {"metrics": {"trainer.distributed"}}


def name_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(source: str, module: str, is_package: bool = False) -> set[str]:
    """Every name imported anywhere in ``source``, absolute: ``from a import b`` gives ``a`` and ``a.b``."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = module.split(".")[: len(module.split(".")) - node.level + is_package]
                base = ".".join([*above, *filter(None, [node.module])])
            found.add(base)
            found.update(f"{base}.{alias.name}" for alias in node.names)
    return found


def imports_from(path: Path) -> set[str]:
    return imports_of(path.read_text(encoding="utf-8"), name_of(path), path.name == "__init__.py")


def within(names: set[str], *roots: str) -> set[str]:
    return {name for name in names if any(name == root or name.startswith(f"{root}.") for root in roots)}


def test_there_are_modules_to_check() -> None:
    assert {"trainer.cli", "trainer.config"} <= {name_of(path) for path in FILES}


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_data_and_trainer_are_strangers_and_nobody_imports_what_is_above(path: Path) -> None:
    other = {"data": "trainer", "trainer": "data"}[name_of(path).split(".")[0]]
    assert within(imports_from(path), other, "train", "scripts", "tests") == set()


@pytest.mark.parametrize("module", WITHOUT_TORCH)
def test_the_command_line_needs_the_standard_library_and_yaml_only(module: str) -> None:
    path = ROOT.joinpath(*module.split(".")).with_suffix(".py")
    names = imports_from(path if path.is_file() else path.with_suffix("") / "__init__.py")
    ours = within(names, "trainer")
    assert ours - within(ours, *WITHOUT_TORCH[1:]) - {"trainer"} == set()
    outside = {name.split(".")[0] for name in names - ours}
    assert outside - sys.stdlib_module_names - {"yaml"} == set()


@pytest.mark.parametrize("module", SIBLINGS)
def test_siblings_do_not_import_one_another(module: str) -> None:
    path = ROOT / "trainer" / f"{module}.py"
    names = imports_from(path) if path.is_file() else set()
    siblings = {f"trainer.{other}" for other in SIBLINGS if other != module} - MAY_USE.get(module, set())
    assert within(names, *siblings) == set()


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("import data.folder as f", {"data.folder"}),
        ("from data import folder", {"data", "data.folder"}),
        ("from . import cli", {"trainer", "trainer.cli"}),
        ("from .cli import parse", {"trainer.cli", "trainer.cli.parse"}),
        ("def f():\n    import train", {"train"}),
        ("if TYPE_CHECKING:\n    from trainer.optim import x", {"trainer.optim", "trainer.optim.x"}),
        ("'import torch'", set()),
    ],
)
def test_the_reader_sees_every_form_of_import(line: str, found: set[str]) -> None:
    assert imports_of(line, "trainer.metrics") == found
    assert imports_of("from . import cli", "trainer", is_package=True) == {"trainer", "trainer.cli"}
    assert within({"training", "train.py", "data", "database"}, "train", "data") == {"train.py", "data"}


def test_only_the_decoder_opens_images() -> None:
    """With the formats it allows: Pillow alone would start Ghostscript for an EPS file, whatever its suffix."""
    files = {path for folder in ("data", "trainer", "scripts") for path in (ROOT / folder).rglob("*.py")}
    calls = {
        path.relative_to(ROOT).as_posix(): [keyword.arg for keyword in node.keywords]
        for path in files
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("Image.open", "PIL.Image.open")
    }
    assert calls == {"data/decode.py": ["formats"]}
