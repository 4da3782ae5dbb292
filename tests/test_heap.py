"""The CPU's heap: when it is retained, and that it then really is."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from trainer.heap import _obstacle, choose_heap

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
