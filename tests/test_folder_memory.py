"""What the index of a large folder costs in loader processes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
WORKERS = 4

# A process of its own: forking pytest would measure pytest, and torch's threads with it.
MEASURE = """
import json, multiprocessing, sys
import numpy as np
from data.folder import FolderIndex
from data.index import Names


def private_bytes():
    with open("/proc/self/smaps_rollup") as lines:
        fields = dict(line.split(":", 1) for line in lines if ":" in line and line.startswith("Private_"))
    return 1024 * sum(int(fields[key].split()[0]) for key in ("Private_Clean", "Private_Dirty"))


def touch(index, go, growth):
    def once():
        return sum(len(index.name(i)) + int(index.labels[i]) for i in order)

    order = range(0)
    once()
    go.wait()  # nobody reads before everybody is there
    before = private_bytes()
    order = range(len(index))
    once()
    growth.put(private_bytes() - before)
    go.wait()  # or a page that only we still hold counts as ours


class Listed:
    def __init__(self, index):
        self.paths = [index.name(i) for i in range(len(index))]
        self.labels = index.labels.tolist()
        self.name = self.paths.__getitem__

    def __len__(self):
        return len(self.paths)


if __name__ == "__main__":
    count, workers, as_list = map(int, sys.argv[1:])
    names = Names(f"n{i // 300:08d}/n{i // 300:08d}_{i:08d}.JPEG" for i in range(count))
    labels = (np.arange(count) // 300).astype(np.int32)
    index = FolderIndex("/data/imagenet/train", tuple(f"n{i:08d}" for i in range(1 + count // 300)), names, labels)
    index = Listed(index) if as_list else index
    fork = multiprocessing.get_context("fork")
    go, growth = fork.Barrier(workers), fork.Queue()
    children = [fork.Process(target=touch, args=(index, go, growth)) for _ in range(workers)]
    for child in children:
        child.start()
    found = [growth.get() for _ in children]
    for child in children:
        child.join()
    print(json.dumps(found))
"""


def growth_in_mb(as_list: bool) -> float:
    command = [sys.executable, "-c", MEASURE, "300000", str(WORKERS), str(int(as_list))]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    grown = json.loads(done.stdout)
    assert len(grown) == WORKERS
    return sum(grown) / 1e6


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="Linux counts private memory here")
def test_names_are_shared_by_loader_processes():
    """R100: the processes together grow by under 20 MB over 300,000 files; with a list of strings they do not."""
    assert growth_in_mb(as_list=False) < 20
    assert growth_in_mb(as_list=True) > 20
