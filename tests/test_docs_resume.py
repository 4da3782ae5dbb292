"""The commands in docs/resume.md, run in order in one folder: their exit codes, and the lines that the page shows."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from test_docs import DOCS, Block, blocks

PAGE = DOCS / "resume.md"
sys.path[:0] = [str(DOCS.parent / "scripts"), str(DOCS.parent / "scripts" / "bench")]

import export_weights  # noqa: E402


def command_of(block: Block) -> list[str]:
    python, script, *arguments = shlex.split(block.text)
    assert python == "python"
    assert (DOCS.parent / script).is_file()
    return [Path(script).stem, *arguments]


def lacking(shown: Block, output: str) -> list[str]:
    """The lines of the page that no line of the output is; ``...`` stands for anything."""
    patterns = {line: ".*".join(map(re.escape, line.split("..."))) for line in shown.text.splitlines()}
    return [line for line, pattern in patterns.items() if not re.search(f"^{pattern}", output, re.MULTILINE)]


def test_every_command_does_what_the_page_says(run: Callable[..., int], capsys: pytest.CaptureFixture[str]) -> None:
    starts: dict[str, Callable[..., int]] = {
        "train": lambda *flags: run("--tensorboard", "false", "--print-freq", 4, *flags, base=""),
        "export_weights": lambda *flags: export_weights.main(flags),
    }
    found = blocks(PAGE.read_text(encoding="utf-8"))
    assert {block.language for block in found} == {"sh", "output"}
    pairs = list(zip(found[::2], found[1::2], strict=True))
    assert len(pairs) >= 8
    for block, shown in pairs:
        assert (block.language, shown.language) == ("sh", "output"), block.line
        script, *flags = command_of(block)
        code = starts[script](*flags)
        printed = capsys.readouterr()
        output = f"{printed.out}{printed.err}exit code {code}\n"
        assert lacking(shown, output) == [], f"line {block.line}: {output[-2000:]}"
        assert code == 0 or f"exit code {code}" in shown.text, f"line {block.line}: {output[-2000:]}"


def test_a_line_that_is_not_printed_is_found() -> None:
    assert lacking(Block("output", "a ... c\nexit code 2\n", 1), "a b c\nexit code 0\n") == ["exit code 2"]
