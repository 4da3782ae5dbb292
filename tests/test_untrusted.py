"""Files from elsewhere are read, never run: the whole source looked through, and files that would run code if unpickled."""

from __future__ import annotations

import ast
import os
import pickle
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import make_folder

from data import cache_files
from data.folder import scan_data_dir
from data.folder_cache import cache_file

ROOT = Path(__file__).resolve().parent.parent
PRODUCT = sorted(
    [*ROOT.glob("*.py"), *(path for folder in ("data", "trainer", "scripts") for path in (ROOT / folder).rglob("*.py"))]
)
TESTS = sorted((ROOT / "tests").glob("*.py"))
UNSAFE_MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "joblib"}
UNSAFE_CALLS = {"eval", "exec", "yaml.load", "yaml.unsafe_load", "yaml.full_load", "os.system", "os.popen"}


def unsafe_in(source: str) -> list[str]:
    """What in some Python source could run code out of a file it reads."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names if alias.name.split(".")[0] in UNSAFE_MODULES]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in UNSAFE_MODULES:
            found.append(str(node.module))
        elif isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            refused = name in UNSAFE_CALLS and not safe_yaml(node)
            if refused or unsafe_load(node, name) or unsafe_image(node, name):
                found.append(ast.unparse(node))
    return found


def safe_yaml(call: ast.Call) -> bool:
    """Every loader named in the call is a safe one: C's, where there is one."""
    names = re.findall(r"\w*Loader\b", " ".join(map(ast.unparse, call.args[1:])))
    return bool(names) and set(names) <= {"CSafeLoader", "SafeLoader"}


def unsafe_load(call: ast.Call, name: str) -> bool:
    given = {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
    if name.rpartition(".")[2] == "load" and name.split(".")[0] == "torch" and "export" not in name:
        return given.get("weights_only") != "True"
    return name in ("np.load", "numpy.load") and given.get("allow_pickle") != "False"


def unsafe_image(call: ast.Call, name: str) -> bool:
    """torchvision's own loader lets Pillow start Ghostscript. Who may call Pillow: tests/test_import_rule.py."""
    return name.rpartition(".")[2] == "ImageFolder" and "loader" not in [keyword.arg for keyword in call.keywords]


@pytest.mark.parametrize("path", PRODUCT, ids=lambda path: str(path.relative_to(ROOT)))
def test_nothing_reads_a_file_in_a_way_that_could_run_it(path: Path) -> None:
    assert unsafe_in(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("path", TESTS, ids=lambda path: path.name)
def test_the_tests_show_no_unsafe_torch_load_either(path: Path) -> None:
    assert [call for call in unsafe_in(path.read_text(encoding="utf-8")) if call.startswith("torch")] == []


def test_the_documents_show_no_unsafe_torch_load_either() -> None:
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    lines = [line for page in pages for line in page.read_text(encoding="utf-8").splitlines()]
    assert [line for line in lines if "torch.load(" in line and "weights_only=True" not in line] == []


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ("torch.load(p)", 1),
        ("torch.load(p, weights_only=False)", 1),
        ("torch.load(p, weights_only=True)", 0),
        ("torch.jit.load(p)", 1),
        ("torch.export.load(p)", 0),
        ("import pickle", 1),
        ("from pickle import loads", 1),
        ("yaml.load(s, yaml.Loader)", 1),
        ("yaml.load(s, getattr(yaml, 'CLoader', yaml.SafeLoader))", 1),
        ("yaml.load(s, getattr(yaml, 'CSafeLoader', yaml.SafeLoader))", 0),
        ("yaml.safe_load(s)", 0),
        ("np.load(p)", 1),
        ("np.load(p, allow_pickle=False)", 0),
        ("datasets.ImageFolder(p, transform)", 1),
        ("ImageFolder(p, transform, loader=open_rgb)", 0),
        ("eval(s)", 1),
        ("model.eval()", 0),
    ],
)
def test_the_search_finds_what_it_looks_for(source: str, count: int) -> None:
    assert len(unsafe_in(source)) == count


class Evil:
    """Unpickled, it makes a folder."""

    def __init__(self, mark: Path) -> None:
        self._mark = mark

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self._mark),)


def write_evil(path: Path, kind: str, mark: Path) -> None:
    if kind == "bare pickle":
        path.write_bytes(pickle.dumps(Evil(mark), protocol=2))
    elif kind == "legacy file":
        torch.save({"state_dict": Evil(mark)}, path, _use_new_zipfile_serialization=False)
    else:
        torch.save({"state_dict": {"a": torch.zeros(1)}, "format": 1, "config": {"arch": Evil(mark)}}, path)


KINDS = ["bare pickle", "legacy file", "inside a checkpoint"]


@pytest.mark.parametrize("kind", KINDS)
def test_the_files_do_run_code_when_loaded_carelessly(tmp_path: Path, kind: str) -> None:
    """Else the tests below would show nothing."""
    write_evil(tmp_path / "evil.pt", kind, tmp_path / "mark")
    if kind == "bare pickle":
        pickle.loads((tmp_path / "evil.pt").read_bytes())
    else:
        careless = torch.load
        careless(tmp_path / "evil.pt", weights_only=False)
    assert (tmp_path / "mark").is_dir()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("flags", [["--resume"], ["-e", "--resume"], ["--weights"], ["-e", "--weights"]], ids=" ".join)
def test_a_malicious_pickle_is_refused_with_a_sentence(run, capsys, kind: str, flags: list[str]) -> None:
    write_evil(Path("evil.pt"), kind, Path("mark"))
    assert run(*flags, "evil.pt") == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "evil.pt" in error
    assert "could run code" in error or "damaged or of another kind" in error
    assert "weights_only" not in error, "torch's advice is to load it unsafely"
    assert "posix.mkdir" in error or kind != "inside a checkpoint"
    assert sorted(os.listdir()) == ["evil.pt"]


def test_resume_auto_does_not_run_one_either(run, capsys) -> None:
    assert run("--output-dir", "run", "--epochs", 2, "--stop-after-epochs", 1) == 0
    write_evil(Path("run/checkpoints/last.pt"), "inside a checkpoint", Path("mark"))
    run("--output-dir", "run", "--epochs", 2, "--resume", "auto")
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("skipping ")]
    assert any("last.pt" in line for line in lines)
    assert all("could run code" in line for line in lines)
    assert not Path("mark").exists()


@pytest.mark.parametrize("kind", ["pickle", "object array"])
def test_a_malicious_listing_in_the_cache_is_listed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(cache_files, "UNSETTLED_NS", -(10**12))  # the folders of a test are always new
    folder, mark = make_folder(tmp_path / "data", train=2, val=1), tmp_path / "mark"
    scan_data_dir(str(folder))
    kept = cache_file(f"{folder}/train")
    assert kept.is_file()
    if kind == "pickle":
        kept.write_bytes(pickle.dumps(Evil(mark)))
    else:
        with open(kept, "wb") as stream:
            np.savez(stream, facts=np.array([Evil(mark)], dtype=object))
    assert len(scan_data_dir(str(folder))[0]) == 4
    assert not mark.exists()


def test_yaml_that_would_run_code_is_refused(run, capsys) -> None:
    Path("evil.yaml").write_text("lr: !!python/object/apply:os.mkdir [mark]\n")
    assert run("--config", "evil.yaml") == 2
    assert "no readable YAML" in capsys.readouterr().err
    assert not Path("mark").exists()


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("config", [1]), ("resolved", 3), ("resolved", {}), ("rng", {}), ("rng", [{}]), ("step", "4"), ("step", -1),
        ("optimizer", None), ("optimizer", {0: 3}), ("epoch", -1), ("samples_in_epoch", -8), ("epoch_sums", 3),
        ("ema", 3), ("ema", {"state_dict": {}}), ("window_sums", [[1.0]]), ("left_out", [[1]]), ("classes", 4), ("skipped_steps", "x"), ("best_acc1", None),
        ("data", {"train": {}}), ("rng", [{"cpu": torch.zeros(3)}]),
    ],
)  # fmt: skip
def test_a_checkpoint_with_parts_of_another_type_is_a_sentence(run, capsys, part: str, value: object) -> None:
    assert run("--output-dir", "run") == 0
    content = torch.load("run/checkpoints/last.pt", weights_only=True)
    torch.save({**content, part: value}, "odd.pt")
    capsys.readouterr()
    assert run("--resume", "odd.pt", base="") == 2
    error = capsys.readouterr().err
    assert f"lacks {part}" in error
    assert error.count("\n") == 1


def test_the_help_says_that_a_factory_is_code() -> None:
    from trainer.cli import build_parser

    text = " ".join(build_parser().format_help().split())
    assert "package.module:factory, which imports and runs that code" in text
