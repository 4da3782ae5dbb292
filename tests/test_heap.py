"""The CPU's heap: when it is retained, and that it then really is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import toy_models

from trainer.heap import _kernel_has_huge_pages, _obstacle, choose_heap
from trainer.precision import Precision

GIB = 2**30
ROOT = Path(__file__).parent.parent


@pytest.fixture
def glibc(monkeypatch):
    monkeypatch.setattr("os.confstr", lambda name: "glibc 2.36")
    for name in ("LD_PRELOAD", "GLIBC_TUNABLES"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("asked", "device", "expected", "free", "choice"),
    [
        ("auto", "cpu", 2 * GIB, 20 * GIB, "retain"),
        ("auto", "cpu", 10 * GIB, 17 * GIB, "retain"),
        ("auto", "cpu", 10 * GIB, 16 * GIB, "default"),
        ("auto", "cpu", None, 16 * GIB, "default"),
        ("auto", "cpu", GIB, None, "default"),
        ("auto", "cuda", GIB, 16 * GIB, "default"),
        ("retain", "cuda", GIB, 16 * GIB, "default"),
        ("retain", "cpu", 100 * GIB, GIB, "retain"),
        ("default", "cpu", GIB, 16 * GIB, "default"),
    ],
)
def test_the_choice(glibc, asked, device, expected, free, choice):
    assert choose_heap(asked, device, expected, free)[0] == choice


@pytest.mark.parametrize(
    ("environ", "word"),
    [
        ({"LD_PRELOAD": "/usr/lib/libjemalloc.so.2"}, "jemalloc"),
        ({"GLIBC_TUNABLES": "glibc.malloc.mmap_max=3"}, "environment"),
        ({"MALLOC_MMAP_MAX_": "3"}, "environment"),
        ({"GLIBC_TUNABLES": "glibc.cpu.x=1"}, None),
        ({}, None),
    ],
)
def test_settings_of_others_are_left_alone(glibc, environ, word):
    found = _obstacle(environ)
    assert (found is None) is (word is None)
    assert word is None or word in found


def test_another_c_library_silently_keeps_its_default(monkeypatch):
    def missing(name):
        raise ValueError("unrecognized configuration name")

    monkeypatch.setattr("os.confstr", missing)
    assert choose_heap("retain", "cpu", GIB, 16 * GIB) == ("default", "the C library is not glibc")


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's mallinfo2 is asked")
@pytest.mark.parametrize(("retained", "mapped"), [(True, False), (False, True)])
def test_a_large_block_is_mapped_or_not(retained, mapped):
    """glibc's own count of mapped blocks, in a fresh process."""
    code = f"""
import ctypes
from trainer.heap import retain_heap
class Info(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()]
libc = ctypes.CDLL(None)
libc.mallinfo2.restype = Info
libc.malloc.restype = ctypes.c_void_p
assert {retained} is False or retain_heap()
before = libc.mallinfo2().hblks
libc.malloc(ctypes.c_size_t(100 << 20))
print(libc.mallinfo2().hblks > before)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == str(mapped)


def test_choice_and_figures_are_printed_and_recorded(run, capsys, glibc):
    assert run("--output-dir", "run") == 0
    assert "CPU heap: retain (1.7 x " in capsys.readouterr().out
    recorded = json.loads(Path("run/environment.json").read_text())["cpu_heap"]
    assert recorded["choice"] == "retain"
    assert recorded["expected"] > 0
    assert run("--cpu-heap", "default", "--output-dir", "other") == 0
    assert json.loads(Path("other/environment.json").read_text())["cpu_heap"]["choice"] == "default"


@pytest.mark.skipif(not _kernel_has_huge_pages(), reason="this kernel has no transparent huge pages")
def test_huge_pages_are_asked_for_before_torch_allocates(tmp_path):
    """In a process of its own: torch reads the setting once."""
    flags = "-a toy_models:tiny --b 8 --synthetic-size 16 --image-size 32 --num-classes 4 --tensorboard false"
    done = subprocess.run(
        [sys.executable, ROOT / "train.py", *flags.split(), "--cpu-heap", "hugepages", "--output-dir", "run"],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT / "tests")}, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "CPU heap: hugepages (as asked)" in done.stdout
    assert json.loads((tmp_path / "run/environment.json").read_text())["cpu_heap"]["choice"] == "hugepages"


def test_huge_pages_that_are_not_there_are_not_claimed(run, capsys, monkeypatch):
    monkeypatch.setattr("trainer.heap._kernel_has_huge_pages", lambda: False)
    monkeypatch.setenv("THP_MEM_ALLOC_ENABLE", "0")  # put back afterwards
    assert run("--cpu-heap", "hugepages") == 0
    assert "CPU heap: default (the system grants no huge pages here)" in capsys.readouterr().out


def test_a_resumed_run_that_does_not_ask_again_is_told(run, capsys, monkeypatch):
    monkeypatch.setattr("trainer.heap._kernel_has_huge_pages", lambda: True)
    monkeypatch.setattr("trainer.heap.huge_pages_in_use", lambda: False)
    monkeypatch.setenv("THP_MEM_ALLOC_ENABLE", "0")  # put back afterwards
    assert run("--cpu-heap", "hugepages") == 0
    assert "too late: give --cpu-heap hugepages on the command line" in capsys.readouterr().out


@pytest.mark.parametrize("there", [True, False])
def test_a_run_that_cannot_retain_hears_of_huge_pages(glibc, monkeypatch, there):
    monkeypatch.setattr("trainer.heap._kernel_has_huge_pages", lambda: there)
    choice, why = choose_heap("auto", "cpu", 10 * GIB, 16 * GIB)
    assert choice == "default"
    assert ("--cpu-heap hugepages" in why) is there


def test_old_gradients_go_between_forward_and_backward_pass(run, monkeypatch):
    """Freed where the heap's end is free too, they are given back to the system and faulted in again every step."""
    held: list[tuple[str, bool]] = []
    forward, backward, models = toy_models.Tiny.forward, Precision.backward, []

    def noted_forward(self, images):
        if self.training and not images.is_meta:
            models[:] = [self]
            held.append(("forward", self.head.weight.grad is not None))
        return forward(self, images)

    def noted_backward(self, loss):
        held.append(("backward", models[0].head.weight.grad is not None))
        backward(self, loss)

    monkeypatch.setattr(toy_models.Tiny, "forward", noted_forward)
    monkeypatch.setattr(Precision, "backward", noted_backward)
    assert run("--micro-batch", 4) == 0  # two pieces a step: the second adds to the first's gradients
    assert held[:8] == [
        ("forward", False), ("backward", False), ("forward", True), ("backward", True),
        ("forward", True), ("backward", False), ("forward", True), ("backward", True),
    ]  # fmt: skip
