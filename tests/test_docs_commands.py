"""Every command of README, docs/, CONTRIBUTING and the headers of configs/, run in a folder where its placeholders exist."""

from __future__ import annotations

import importlib
import shlex
import shutil
import socket
import sys
from collections.abc import Callable
from pathlib import Path

import docs_commands
import pytest
import torch
from docs_commands import NOT_RUN, ROOT, Command, launcher_options, of_page, small
from helpers import make_folder, run_bounded

from trainer.cli import parse

sys.path[:0] = [str(ROOT / "scripts"), str(ROOT / "scripts" / "bench"), str(ROOT / "scripts" / "parity")]

import compare  # noqa: E402
import make_shards  # noqa: E402

import train  # noqa: E402

COMMANDS = docs_commands.commands()
RUN = [command for command in COMMANDS if not command.why_not]
# What a script writes is not there before.
OUTPUT = {"make_shards.py": "SHARDS", "prepare_folder.py": "DIR", "make_digits.py": "digits"}
MODEL = "from toy_models import tiny as my_model\n"
QUICK = "--in-process --rounds 1 --steps 2 --timing-warmup-steps 1 --no-plots".split()
TINY = "-a toy_models:tiny -b 8 --image-size 32 -j 0".split()


@pytest.fixture(scope="module")
def toys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which every placeholder of the documents stands for something small."""
    root = tmp_path_factory.mktemp("toys")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        make_folder(Path("DIR"), train=16, val=4)
        for name in ("SRC", "IMAGES", "digits"):
            shutil.copytree("DIR", name)
        _make_flat(Path("FLAT"))
        assert make_shards.main(["DIR", "SHARDS"]) == 0
        assert train.main([*TINY, "DIR", "--epochs", "1", "--output-dir", "runs/NAME"]) == 0
        for name in ("A", "B"):
            shutil.copytree("runs/NAME", f"runs/{name}")
        common = ["--", *TINY, "--synthetic-size", "64", "--cpu-heap", "default"]
        assert compare.main([*QUICK, "--output-dir", "runs/compare-NAME", *common]) == 0
        torch.save(_resnet18().state_dict(), "weights.pth")
        for name in ("my_package/my_module.py", "my_module.py"):
            Path(name).parent.mkdir(exist_ok=True)
            Path(name).write_text(MODEL)
        for name in ("configs", "scripts", "train.py"):
            Path(name).symlink_to(ROOT / name)
    return root


def _make_flat(folder: Path) -> None:
    """A val/ without class folders, and ``labels.csv`` beside the folder."""
    make_folder(folder, train=16, val=4)
    lines = []
    for path in sorted(folder.glob("val/*/*.jpg")):
        name = f"{path.parent.name}_{path.name}"
        lines.append(f"{name},{path.parent.name}\n")
        path.rename(folder / "val" / name)
    for name in ("a", "b"):
        (folder / "val" / name).rmdir()
    Path("labels.csv").write_text("".join(lines))


def _resnet18() -> torch.nn.Module:
    from torchvision.models import resnet18

    return resnet18(num_classes=4)


@pytest.fixture
def sandbox(toys: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the toys, so that no command sees what another left; also where Python looks for models."""
    shutil.copytree(toys, tmp_path, symlinks=True, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "tests"))  # of runs in processes of their own
    return tmp_path


def prepare(command: Command, sandbox: Path) -> None:
    """Take away what the command makes, and put the flat folder where it is the subject."""
    if command.script in OUTPUT:
        shutil.rmtree(sandbox / OUTPUT[command.script])
    if "--val-labels" in command.words:
        shutil.rmtree(sandbox / "DIR")
        (sandbox / "FLAT").rename(sandbox / "DIR")


def test_commands_are_found() -> None:
    by_page = {command.where for command in COMMANDS}
    assert {"README.md", "CONTRIBUTING.md", "comparing.md", "data.md", "precision.md", "training.md"} <= by_page
    assert {"scale_out.md", "migrating.md", "configs/cpu_small.yaml", "configs/ab/resnet50_o2.yaml"} <= by_page
    assert len(COMMANDS) >= 80
    assert sum(command.launched for command in RUN) >= 10


def test_both_languages_show_the_same_commands() -> None:
    texts = [(ROOT / "docs" / name).read_text(encoding="utf-8") for name in ("memory_format.md", "memory_format.ko.md")]
    english, korean = ({command.text for command in of_page(text, "memory_format")} for text in texts)
    assert english == korean != set()


@pytest.mark.parametrize("beginning", NOT_RUN)
def test_what_is_not_run_is_still_shown_and_has_a_reason(beginning: str) -> None:
    assert [command for command in COMMANDS if command.why_not == beginning]
    assert len(NOT_RUN[beginning]) > 20


@pytest.mark.parametrize("command", RUN, ids=lambda command: command.text)
def test_a_command_that_is_not_listed_starts_a_script_of_ours(command: Command) -> None:
    assert command.words[0] in ("python", "torchrun"), f"{command.where}: run it, or list it in NOT_RUN with a reason"
    path = next(word for word in command.words if word.endswith(".py"))
    assert (ROOT / path).is_file()


@pytest.mark.parametrize(
    "text",
    ["A block:\n\n    make all\n\nText.\n", "Inline `python scripts/gone.py DIR`.\n", "```sh\nmake all  # why\n```\n"],
)
def test_a_new_command_is_found_wherever_it_stands(text: str) -> None:
    (found,) = of_page(text, "page.md")
    assert found.text in ("make all", "python scripts/gone.py DIR")
    assert not found.why_not


def trainings() -> list[Command]:
    """Those of train.py, whoever starts it."""
    launchers = ("train.py", "torchrun_multinode.sh", "slurm.sbatch")
    return [command for command in COMMANDS if any(word.endswith(launchers) for word in command.words)]


@pytest.mark.parametrize("command", trainings(), ids=lambda command: command.text)
def test_every_flag_of_a_training_exists(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """As written, with the sizes it is shown with."""
    monkeypatch.chdir(ROOT)
    place = next(place for place, word in enumerate(command.words) if word.endswith((".py", ".sh", ".sbatch")))
    flags = command.words[place + 1 :]
    if "--help" not in flags:
        assert parse(flags).notices == []


def marked(commands: list[Command]) -> list[object]:
    return [
        pytest.param(command, marks=[pytest.mark.slow] if command.slow else [], id=command.text) for command in commands
    ]


@pytest.mark.parametrize("command", marked([command for command in RUN if not command.launched]))
def test_it_runs(
    command: Command, sandbox: Path, run: Callable[..., int], start: Callable[..., int], monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(command, sandbox)
    argv = small(command)
    if command.script == "train.py":
        assert _code(lambda: run(*argv, base="")) == 0
    elif command.script == "compare.py":
        monkeypatch.setattr("ab.settings.fast_bfloat16", lambda: True)  # elsewhere resnet50_o2 says that it has none
        assert compare.main(argv, None if "--nproc-per-node" in argv else start) == 0
    elif command.script == "sweep.py":
        assert _sweep(argv, start) == 0
    else:
        module = importlib.import_module(command.script.removesuffix(".py"))
        assert _code(lambda: module.main(argv)) == 0


def _code(call: Callable[[], int]) -> object:
    """--help leaves by SystemExit."""
    try:
        return call()
    except SystemExit as left:
        return left.code


def _sweep(argv: list[str], start: Callable[..., int]) -> int:
    import sweep

    def measure(words: list[str], log: Path) -> int:
        return compare.main(words, start)

    if "--from" in argv:
        folder = argv[argv.index("--from") + 1]
        assert sweep.main([*"--models resnet18 --in-process --rounds 1 --steps 2".split(), "--output-dir", folder, "--",
                           *shlex.split(docs_commands.RUN["sweep.py"])], measure) == 0  # fmt: skip
    return sweep.main(argv, measure)


@pytest.mark.slow
@pytest.mark.parametrize("command", marked([command for command in RUN if command.launched]))
def test_it_runs_on_two_processes(command: Command, sandbox: Path) -> None:
    import os

    launcher = [sys.executable, "-m", "torch.distributed.run", *launcher_options(command, _free_port())]
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "tests")}
    done = run_bounded([*launcher, str(ROOT / "train.py"), *small(command)], sandbox, environ, 240)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "x 2 processes" in done.stdout


def _free_port() -> str:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return str(taken.getsockname()[1])
