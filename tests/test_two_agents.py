"""Two torchrun agents, each in a network namespace of its own, as on two machines."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ADDRESSES = ("10.213.77.1", "10.213.77.2")
TIMEOUT = 10  # --dist-timeout, seconds


def ip(*words: str) -> str:
    return subprocess.run(["ip", *words], check=True, capture_output=True, text=True, timeout=30).stdout


class Machines:
    """Two namespaces and the cable between them."""

    def __init__(self) -> None:
        self.names = [f"clit-{os.getpid()}-{number}" for number in range(2)]
        self.agents: list[subprocess.Popen[str]] = []

    def connect(self) -> None:
        for name in self.names:
            ip("netns", "add", name)
        first, second = self.names
        ip("link", "add", "cable", "netns", first, "type", "veth", "peer", "name", "cable", "netns", second)
        for name, address in zip(self.names, ADDRESSES, strict=True):
            ip("-n", name, "address", "add", f"{address}/30", "dev", "cable")
            for device in ("lo", "cable"):
                ip("-n", name, "link", "set", device, "up")

    def start(self, folder: Path, *flags: object) -> None:
        """A torchrun agent with one process on each machine, both in ``folder``, their words in agent*.txt."""
        environ = {
            **os.environ,
            "GLOO_SOCKET_IFNAME": "cable",
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(ROOT / "tests"),
        }
        for number, name in enumerate(self.names):
            rendezvous = ["--nnodes", "2", "--node-rank", str(number), "--master-addr", ADDRESSES[0]]
            command = ["ip", "netns", "exec", name, sys.executable, "-m", "torch.distributed.run", *rendezvous]
            with open(folder / f"agent{number}.txt", "w") as words:
                command += ["--nproc-per-node", "1", str(ROOT / "train.py"), *map(str, flags)]
                agent = subprocess.Popen(command, cwd=folder, env=environ, stdout=words, stderr=words, text=True)
                self.agents.append(agent)

    def kill(self, number: int) -> None:
        """Everything that runs on a machine."""
        for pid in ip("netns", "pids", self.names[number]).split():
            try:
                os.kill(int(pid), signal.SIGKILL)
            except ProcessLookupError:  # ended by itself just now
                continue

    def remove(self) -> None:
        for number, name in enumerate(self.names):
            if name in ip("netns", "list"):
                self.kill(number)
                ip("netns", "delete", name)
        for agent in self.agents:
            agent.wait(timeout=30)


@pytest.fixture
def machines() -> Iterator[Machines]:
    machines = Machines()
    try:
        if shutil.which("ip") is None:
            pytest.skip("no ip command (apt-get install iproute2)")
        try:
            machines.connect()
        except subprocess.CalledProcessError as error:
            pytest.skip(f"network namespaces are not allowed here: {error.stderr.strip()}")
        yield machines
    finally:
        if shutil.which("ip") is not None:
            machines.remove()


def train(machines: Machines, folder: Path) -> None:
    """Start a run that does not end by itself; returns once it takes steps."""
    flags = "-a toy_models:sleepy --b 4 --synthetic-size 4000 --image-size 32 --num-classes 4 --tensorboard false -p 1"
    machines.start(folder, *flags.split(), "--epochs", 99, "--output-dir", "run", "--dist-timeout", TIMEOUT)
    deadline, metrics = time.monotonic() + 120, folder / "run/metrics.jsonl"
    while not (metrics.exists() and metrics.read_text().count('"kind": "step"') >= 3):
        assert time.monotonic() < deadline, (folder / "agent0.txt").read_text()[-3000:]
        assert all(agent.poll() is None for agent in machines.agents), (folder / "agent0.txt").read_text()[-3000:]
        time.sleep(0.1)


def end_of(machines: Machines, number: int, folder: Path) -> str:
    """What an agent said, which ends by itself: after the timeout, and 30 s that torchrun gives its processes."""
    assert machines.agents[number].wait(timeout=TIMEOUT + 30 + 45) == 1
    return (folder / f"agent{number}.txt").read_text()


@pytest.mark.slow
def test_a_machine_that_dies_ends_the_run_on_the_other(machines, tmp_path):
    train(machines, tmp_path)
    machines.kill(1)
    assert "error: another process of this run has ended" in end_of(machines, 0, tmp_path)
    status = json.loads((tmp_path / "run/status.json").read_text())
    assert (status["state"], status["exit_code"]) == ("failed", 1)


@pytest.mark.slow
def test_a_link_that_goes_down_ends_both_sides_within_the_timeout(machines, tmp_path):
    train(machines, tmp_path)
    ip("-n", machines.names[1], "link", "set", "cable", "down")
    for number in range(2):
        said = end_of(machines, number, tmp_path)
        assert f"error: another process of this run gave no answer for {TIMEOUT} s" in said, said[-3000:]
    assert json.loads((tmp_path / "run/status.json").read_text())["state"] == "failed"
