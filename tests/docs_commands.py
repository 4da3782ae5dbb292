"""Every command that the documents show, and the tiny command that stands for it in a test."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
CONFIGS = sorted((ROOT / "configs").rglob("*.yaml"))
# tests/test_docs_resume.py runs the fenced commands of this page one after the other and compares what they print.
IN_ORDER = "resume.md"
# First lines of indented blocks that hold something else than commands.
NO_COMMANDS = {
    "README.md": ["runs/<date-time>-<arch>-<level>-<memory format>/"],
    "CONTRIBUTING.md": ["flags + YAML --> TrainConfig --> train.py builds --> engine runs --> run_log / checkpoint"],
}
# Shown, and not run by tests/test_docs_commands.py: how they begin, and why not.
_MAY_INSTALL = "installs packages from the network"
NOT_RUN = {
    "bash scripts/quickstart.sh": f"{_MAY_INSTALL}, then runs compare.py --config cpu_quick, which is run here",
    "bash scripts/test.sh": f"{_MAY_INSTALL}, then runs these tests",
    "pip install": _MAY_INSTALL,
    "tensorboard --logdir": "a server without an end; tests/test_train_e2e.py reads the files that it shows",
    "torchrun --help": "another project's text",
    "torchrun --max-restarts": "a flag's name in a sentence; tests/test_elastic.py restarts a run",
    "sbatch scripts/launch/slurm.sbatch": "needs Slurm; tests/test_launch.py runs the file with stand-ins",
    "kubectl create -f scripts/launch/trainjob.yaml": "needs a cluster; tests/test_launch.py checks the fields",
    "NNODES=2 MASTER_ADDR=FIRST_MACHINE bash scripts/launch/torchrun_multinode.sh": "needs two machines; tests/test_launch.py "
    "starts two agents with it",
    "python scripts/doc_tables.py": "writes into the documents; tests/test_doc_tables.py runs it on a copy",
}
# Of commands that take over about five seconds when they are small already.
SLOW = (
    "torchrun",
    "--compile",
    "--nproc-per-node",
    "drill.py",
    "sweep.py",
    "precision_matrix",
    "check_parity.py",
    "-b 16 --png",
)
# Programs whose name begins an inline command.
_INLINE = re.compile(r"`((?:python|torchrun|bash|pip|sbatch|kubectl|tensorboard) [^`]+)`")
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_INDENTED = re.compile(r"(?:(?<=\n\n)|\A)(?: {4}[^\n]*\n)(?:(?: {4}[^\n]*)?\n)*")
_LARGE = {"resnet50", "resnext50_32x4d", "timm:resnet50", "NAME"}  # resnet18 does for what these show
_ARCH = ("-a", "--arch", "--model")
SIZES = "-j 0 --tensorboard false -p 1"
SHAPE = "--image-size 32 --val-image-size 32 --val-resize 36"
# What makes each script's command small; of a flag given twice the later counts.
SMALL = {
    "audit_layout.py": "--num-classes 4 --image-size 64",
    "bench_loader.py": "-b 4 -j 1 --image-size 32 --rounds 1 --warmup-rounds 0 --batches 2 --json out.json",
    "check_parity.py": "-b 8 --image-size 64 --num-classes 4",
    "compare.py": "--rounds 1 --steps 2 --timing-warmup-steps 1 --no-plots",
    "drill.py": "--kills 1",
    "layout_cost.py": "-b 2 --image-size 32 --rounds 2 --warmup-rounds 0 --min-time-ms 1 --cpu-heap default --json out.json",
    "prepare_folder.py": "--workers 1",
    "profile_layers.py": "-b 2 --image-size 32 --num-classes 4 --rounds 2 --warmup-rounds 0 --min-time-ms 1 --cpu-heap default "
    "--json out.json",
    "sweep.py": "--models resnet18 --rounds 1 --steps 2 --timing-warmup-steps 1",
}
# Flags of train.py after a script's own: what its runs get.
_RUN = f"-b 8 --image-size 32 --synthetic-size 400 --lr 0.0001 --cpu-heap default {SIZES}"
RUN = {"compare.py": f"{_RUN} -a toy_models:tiny", "sweep.py": _RUN}


class Command(NamedTuple):
    """Where it stands, and its words as the shell sees them, without comment."""

    where: str
    text: str

    @property
    def words(self) -> list[str]:
        return shlex.split(self.text)

    @property
    def script(self) -> str:
        """The file that is run, without folders; ``train.py`` under torchrun too."""
        return next((Path(word).name for word in self.words if word.endswith(".py")), "")

    @property
    def why_not(self) -> str:
        """The beginning in ``NOT_RUN`` that it has."""
        return next((beginning for beginning in NOT_RUN if self.text.startswith(beginning)), "")

    @property
    def slow(self) -> bool:
        return any(part in self.text for part in SLOW)

    @property
    def launched(self) -> bool:
        return self.words[0] == "torchrun"


def commands() -> list[Command]:
    """All of them, each text once, at its first place."""
    found = [command for page in PAGES for command in of_page(page.read_text(encoding="utf-8"), page.name)]
    found += [command for path in CONFIGS for command in of_config(path)]
    first: dict[str, Command] = {}
    for command in found:
        first.setdefault(command.text, command)
    return list(first.values())


def of_page(text: str, name: str) -> Iterator[Command]:
    """The lines of indented blocks and of ``sh`` fences, and inline code that begins with a program's name."""
    fences = [block for language, block in _FENCE.findall(text) if language in ("sh", "bash", "console")]
    prose = _FENCE.sub("", text)
    blocks = [re.sub(r"^ {4}", "", block, flags=re.MULTILINE) for block in _INDENTED.findall(prose)]
    for block in [*blocks, *(fences if name != IN_ORDER else [])]:
        if block.splitlines()[0].strip() not in NO_COMMANDS.get(name, ()):
            yield from of_lines(block, name)
    for inline in _INLINE.findall(prose):
        if "-c " not in inline[:12]:  # `python -c` is code; tests/test_doc_tables.py runs the one that is shown
            yield from of_lines(inline, name)


def of_config(path: Path) -> Iterator[Command]:
    lines = [
        line[4:] for line in path.read_text(encoding="utf-8").splitlines() if re.match(r"#   (python|torchrun) ", line)
    ]
    return of_lines("\n".join(lines), str(path.relative_to(ROOT)))


def of_lines(block: str, where: str) -> Iterator[Command]:
    for line in block.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        while words and words[-1] == "...":
            words.pop()
        if words:
            assignments = sum(bool(re.match(r"[A-Z_]+=", word)) for word in words)
            yield Command(where, " ".join([*words[:assignments], shlex.join(words[assignments:])]))


def small(command: Command) -> list[str]:
    """The arguments of its script, with what makes it quick."""
    words = [_of_one_shard(word) for word in command.words]
    words = words[next(place for place, word in enumerate(words) if word.endswith(".py")) + 1 :]
    if command.script == "train.py":
        return small_training(words)
    own, bar, flags = _split(words)
    if not {"--from", "--resume"} & set(own):
        large = _arch_of(own) in _LARGE
        own += [*shlex.split(SMALL.get(command.script, "")), *(["-a", "resnet18"] if large else [])]
        if command.script in RUN:
            bar, flags = ["--"], [*flags, *shlex.split(RUN[command.script])]
    elif "--rounds" in own:
        own += ["--rounds", "2"]
    if "--input-shape" in own:
        own = own[: own.index("--image-size", own.index("--input-shape"))]
    if "--shape" in own:
        own[own.index("--shape") + 1] = "2,16,8,8"
    return [*own, *bar, *flags]


def small_training(words: list[str]) -> list[str]:
    if "--help" in words:
        return words
    found = [*words, *shlex.split(SIZES)]
    if "--resume" in words and "auto" not in words:  # the checkpoint says the rest
        return found
    if "--check-data" in words:
        return words
    if "--bench-data" in words:
        return [*found, "--bench-data", "2", "-b", "8"]
    found += ["--global-batch-size" if "--global-batch-size" in words else "-b", "8", "--synthetic-size", "32"]
    found += shlex.split(SHAPE if "configs/resnet50_16.yaml" not in words else "--progressive 32:0,48:0.5")
    found += ["-a", "resnet18"] if _arch_of(words) in _LARGE else []
    scheduled = {"-c", "--epochs", "--lr-warmup-epochs"} & set(words)
    found += shlex.split("--stop-after-steps 2" if scheduled else "--epochs 1 --steps-per-epoch 2")
    return found


def launcher_options(command: Command, port: str) -> list[str]:
    """torchrun's own flags: two processes of one machine."""
    words = command.words[1:]
    words = words[: next(place for place, word in enumerate(words) if word.endswith("train.py"))]
    for flag, value in (("--nproc-per-node", "2"), ("--nnodes", "1"), ("--rdzv-endpoint", f"127.0.0.1:{port}")):
        if flag in words:
            words[words.index(flag) + 1] = value
    return words if "--rdzv-endpoint" in words else ["--standalone", *words]


def _of_one_shard(word: str) -> str:
    """A pattern of shards as it is for a toy folder."""
    word = re.sub(r"\{(0+)\.\.\d+\}", r"{\1..\1}", word)
    return word.replace("s3://bucket/", "SHARDS/")


def _split(words: list[str]) -> tuple[list[str], list[str], list[str]]:
    place = words.index("--") if "--" in words else len(words)
    return words[:place], words[place : place + 1], words[place + 1 :]


def _arch_of(words: list[str]) -> str:
    return next((words[place + 1] for place, word in enumerate(words[:-1]) if word in _ARCH), "")
