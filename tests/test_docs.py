"""The code in docs/: run in order, its output compared; translations hold the same code."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

DOCS = Path(__file__).parent.parent / "docs"
RUN = ["memory_format.md", "memory_format.ko.md"]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    """A fenced block: what follows its first three backquotes, its text, and the line in the file where that begins."""

    language: str
    text: str
    line: int


def blocks(text: str) -> list[Block]:
    return [Block(found[1], found[2], text.count("\n", 0, found.start(2)) + 1) for found in FENCE.finditer(text)]


def run_code(path: Path) -> int:
    """Run the ``python`` blocks of one document in one namespace; each must print what the ``output`` block
    directly after it holds, and nothing where there is none. Returns how many were run."""
    found = blocks(path.read_text(encoding="utf-8"))
    namespace: dict[str, object] = {"__name__": path.stem}
    ran = 0
    for block, after in zip(found, [*found[1:], Block("", "", 0)], strict=True):
        if block.language != "python":
            continue
        printed = io.StringIO()
        code = compile("\n" * (block.line - 1) + block.text, str(path), "exec")
        with contextlib.redirect_stdout(printed):
            exec(code, namespace)
        expected = after.text if after.language == "output" else ""
        # What a line ends with in blanks cannot be seen in a document.
        lines = [line.rstrip() for line in printed.getvalue().splitlines()]
        assert lines == expected.splitlines(), f"{path.name}, the block at line {block.line}"
        ran += 1
    return ran


@pytest.mark.parametrize("name", RUN)
def test_every_block_prints_what_the_document_says(name: str):
    """Own random state, so that ``manual_seed`` in a document reaches no other test."""
    with torch.random.fork_rng(devices=[]):
        assert run_code(DOCS / name) >= 25


@pytest.mark.parametrize("name", RUN)
def test_no_block_escapes_the_tests(name: str):
    text = (DOCS / name).read_text(encoding="utf-8")
    found = blocks(text)
    assert {block.language for block in found} == {"python", "output"}
    assert len(re.findall(r"^\s*(```|~~~)", text, re.MULTILINE)) == 2 * len(found)
    for before, block in zip([Block("", "", 0), *found], found, strict=False):
        assert block.language == "python" or before.language == "python", f"{name}, line {block.line}"


def test_both_languages_hold_the_same_code_and_headings():
    english, korean = ((DOCS / name).read_text(encoding="utf-8") for name in RUN)
    assert [block[:2] for block in blocks(english)] == [block[:2] for block in blocks(korean)]
    shell = re.compile(r"^    \S.*$", re.MULTILINE)
    for pattern in (shell, re.compile(r"https?://[^)\s]+"), re.compile(r"^#+ ", re.MULTILINE)):
        outside = [pattern.findall(FENCE.sub("", text)) for text in (english, korean)]
        assert outside[0] == outside[1]
        assert outside[0]


def test_both_languages_tell_the_same_figures():
    """Numbers with a decimal point, outside the code: a translation that lags behind shows here."""
    texts = (FENCE.sub("", (DOCS / name).read_text(encoding="utf-8")) for name in RUN)
    english, korean = (sorted(re.findall(r"\d+\.\d+", text)) for text in texts)
    assert english == korean
    assert "1.086" in english


@pytest.mark.parametrize(
    "document", [*sorted(DOCS.rglob("*.md")), *DOCS.parent.glob("*.md")], ids=lambda path: path.name
)
def test_links_between_documents_lead_somewhere(document: Path):
    for target in re.findall(r"\]\(([^)#:]+)\)", document.read_text(encoding="utf-8")):
        assert (document.parent / target).exists(), target


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("```python\nx = 1\nprint(x)\n```\n\n```output\n1\n```\n\n```python\nx += 1\n```\n", None),
        ("```python\nprint(1)\n```\n\n```output\n2\n```\n", "line 2"),
        ("one\n\n```python\nprint(1)\n```\n\nno output\n", "line 4"),
        ("```python\nx = 1\n```\n\n```output\n1\n```\n", "line 2"),
    ],
)
def test_the_runner_finds_a_wrong_output(tmp_path: Path, text: str, error: str | None):
    (tmp_path / "page.md").write_text(text)
    if error is None:
        assert run_code(tmp_path / "page.md") == 2
    else:
        with pytest.raises(AssertionError, match=f"page.md, the block at {error}"):
            run_code(tmp_path / "page.md")
