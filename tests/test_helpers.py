"""What the tests themselves rely on: a process that hangs ends with all that it started, and says what it printed."""

from __future__ import annotations

import os
import re
import sys
import time
from pathlib import Path

import pytest
import torch
import toy_models
from helpers import run_bounded

# A minute, should the test fail to end them.
CHILD = "import os, sys, time; sys.stdout.write(f'child {os.getpid()}\\n'); sys.stdout.flush(); time.sleep(60)"
PARENT = f"""
import subprocess, sys
children = [subprocess.Popen([sys.executable, "-c", {CHILD!r}], start_new_session=own) for own in (False, True)]
print("an error", file=sys.stderr, flush=True)
children[0].wait()
"""


def is_running(pid: int) -> bool:
    """A process that nobody has waited for yet has ended all the same."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    status = Path(f"/proc/{pid}/stat")
    return not status.exists() or status.read_text().rpartition(")")[2].split()[0] not in "ZX"


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="no /proc, where a child's group is looked up")
def test_a_process_that_hangs_ends_with_its_children_and_says_what_it_printed(tmp_path: Path):
    """Those in a group of their own too, as torchrun's ranks are."""
    with pytest.raises(pytest.fail.Exception) as caught:
        run_bounded([sys.executable, "-c", PARENT], tmp_path, dict(os.environ), 6)
    text = str(caught.value)
    assert "not over after 6 s" in text
    assert "an error" in text
    children = [int(pid) for pid in re.findall(r"^child (\d+)$", text, re.MULTILINE)]
    assert len(children) == 2
    # A killed process closes its pipes a moment before it is gone.
    deadline = time.monotonic() + 20
    while any(map(is_running, children)) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not any(map(is_running, children))


def test_a_process_that_ends_is_handed_back(tmp_path: Path):
    code = "import os, sys; print(os.getcwd(), os.environ['WORD']); print('err', file=sys.stderr); sys.exit(3)"
    done = run_bounded([sys.executable, "-c", code], tmp_path, {**os.environ, "WORD": "w"}, 60)
    assert (done.returncode, done.stdout, done.stderr) == (3, f"{tmp_path.resolve()} w\n", "err\n")


def test_what_forbids_to_wait_for_the_device_allows_it_again(monkeypatch: pytest.MonkeyPatch):
    modes: list[str] = []
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", modes.append)
    model = toy_models.sync_watched(2)
    for _ in range(5):
        model(torch.zeros(2, 3, 8, 8))
    assert modes == ["error"]
    toy_models.SyncWatched.allow_waiting()
    assert modes == ["error", "default"]
    for _ in range(7):
        model(torch.zeros(2, 3, 8, 8))
    assert modes == ["error", "default", "default"]
