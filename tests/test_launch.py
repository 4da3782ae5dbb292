"""scripts/launch: two torchrun agents for real, the Slurm file with a stand-in for Slurm, the TrainJob's form."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from helpers import rows

from trainer.cli import parse

ROOT = Path(__file__).resolve().parent.parent
LAUNCH = ROOT / "scripts/launch"
MULTINODE, SBATCH, TRAINJOB = LAUNCH / "torchrun_multinode.sh", LAUNCH / "slurm.sbatch", LAUNCH / "trainjob.yaml"
TOY = "--b 4 --image-size 32 --num-classes 4 --tensorboard false -p 1 --device cpu -j 0".split()


def environ(**variables: str) -> dict[str, str]:
    own = {key: value for key, value in os.environ.items() if not key.startswith(("NNODES", "MASTER_", "SLURM_"))}
    python = {"PYTHON": sys.executable, "PYTHONPATH": str(ROOT / "tests"), "OMP_NUM_THREADS": "1"}
    here = {"NPROC_PER_NODE": "1", "LOCAL_ADDR": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo"}
    return {**own, **python, **here, **variables}


def free_port() -> str:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return str(taken.getsockname()[1])


@pytest.mark.parametrize("script", [MULTINODE, SBATCH], ids=lambda path: path.name)
def test_bash_can_parse_it(script: Path) -> None:
    done = subprocess.run(["bash", "-n", script], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_help_names_every_variable_that_is_read() -> None:
    done = subprocess.run(["bash", MULTINODE, "--help"], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.startswith("Usage: NNODES=N MASTER_ADDR=HOST bash scripts/launch/torchrun_multinode.sh")
    for name in "NNODES MASTER_ADDR MASTER_PORT NPROC_PER_NODE RDZV_ID MAX_RESTARTS LOCAL_ADDR PYTHON".split():
        assert f"\n  {name} " in done.stdout
        assert f"${{{name}:" in MULTINODE.read_text()


@pytest.mark.parametrize(
    ("variables", "words"),
    [({}, "NNODES must be"), ({"NNODES": "two"}, "got 'two'"), ({"NNODES": "2"}, "MASTER_ADDR must name")],
)
def test_what_is_missing_is_told_before_anything_starts(variables: dict[str, str], words: str) -> None:
    done = subprocess.run(
        ["bash", MULTINODE], env=environ(**variables), capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2
    assert words in done.stderr


@pytest.fixture
def processes() -> Iterator[list[subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []
    yield started
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(timeout=30)


def start(processes, folder: Path, words: Path, command: list[object], env: dict[str, str]) -> subprocess.Popen[str]:
    with open(words, "a") as output:
        process = subprocess.Popen(
            list(map(str, command)),
            cwd=folder,
            env=env,
            stdout=output,
            stderr=output,
            text=True,
            start_new_session=True,
        )
    processes.append(process)
    return process


@pytest.mark.slow
def test_two_agents_on_loopback_make_one_run(tmp_path: Path, processes) -> None:
    """R66: two "machines" with one process each, started with the same line; one of them writes."""
    env = environ(NNODES="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=free_port(), MAX_RESTARTS="0")
    flags = [*TOY, "-a", "toy_models:tiny", "--synthetic-size", 36, "--epochs", 1, "--output-dir", "run"]
    for number in range(2):
        start(processes, tmp_path, tmp_path / f"agent{number}.txt", ["bash", MULTINODE, *flags], env)
    said = [
        (process.wait(timeout=120), (tmp_path / f"agent{number}.txt").read_text())
        for number, process in enumerate(processes)
    ]
    assert [code for code, _ in said] == [0, 0], said
    assert sum(words.count("saved step_") for _, words in said) == 1
    assert sorted(words.count("Epoch: [0]") > 0 for _, words in said) == [False, True]
    (epoch,) = rows(tmp_path / "run", "epoch")
    assert (epoch["step"], epoch["images_seen"]) == (5, 36)  # one process alone would take 9 steps
    assert json.loads((tmp_path / "run/status.json").read_text())["state"] == "done"


STAND_INS = {
    # As the real one (src/srun/signals.c): SIGTERM becomes a SIGKILL of the task, unless it is told to ignore it.
    "srun": """
[[ $1 != --help ]] || { echo "  --ignore-signals=SIGNALS"; exit; }
on_term='kill -KILL $task'
while [[ $1 == --* ]]; do [[ $1 != --ignore-signals=SIGTERM ]] || on_term=:; shift; done
"$@" & task=$!
echo $task > "$TASK"
trap "$on_term" TERM
while kill -0 $task 2>/dev/null; do wait $task; code=$?; done
exit $code
""",
    "scancel": '[[ $* == "--signal=TERM 77.0" ]] && kill -TERM "$(cat "$TASK")"\n',
    "scontrol": 'if [[ $1 == show ]]; then echo 127.0.0.1; else echo "$@" >> "$REQUEUED"; fi\n',
}


@pytest.mark.slow
def test_the_slurm_job_saves_is_queued_again_and_goes_on(tmp_path: Path, processes) -> None:
    for name, body in STAND_INS.items():
        (tmp_path / name).write_text(f"#!/usr/bin/env bash\n{body}")
        (tmp_path / name).chmod(0o755)
    spooled = shutil.copy(SBATCH, tmp_path / "slurm_script")  # Slurm runs a copy
    queue = tmp_path / "queue.txt"
    slurm = {"SLURM_JOB_ID": "77", "SLURM_JOB_NODELIST": "node1", "SLURM_JOB_NUM_NODES": "1"}
    env = environ(
        PATH=f"{tmp_path}:{os.environ['PATH']}",
        REQUEUED=str(queue),
        TASK=str(tmp_path / "task"),
        MASTER_PORT=free_port(),
        **slurm,
    )
    command = ["bash", spooled, *TOY, "-a", "toy_models:sleepy", "--synthetic-size", 4000, "--epochs", 99]
    run, words = tmp_path / "runs/slurm-77", tmp_path / "slurm-77.txt"
    seen = 0
    for number, (sent, queued) in enumerate([(signal.SIGUSR1, "requeue 77\n"), (signal.SIGTERM, "requeue 77\n")]):
        job = start(processes, tmp_path, words, command, {**env, "REPOSITORY": str(ROOT)})
        wait_for_steps(run, seen + 3, job, words)
        if sent == signal.SIGTERM:  # Slurm's own goes to the script, to srun and to the tasks
            os.killpg(job.pid, sent)
        else:
            os.kill(job.pid, sent)
        assert job.wait(timeout=60) == 1, words.read_text()[-3000:]
        assert queue.read_text() == queued, "SIGTERM is a cancellation or Slurm's own preemption"
        assert json.loads((run / "status.json").read_text())["state"] == "preempted"
        assert words.read_text().count("=> loading checkpoint") == number
        steps = [row["step"] for row in rows(run)]
        assert steps == sorted(set(steps))
        seen = len(steps)


def wait_for_steps(run: Path, count: int, job: subprocess.Popen[str], words: Path) -> None:
    deadline = time.monotonic() + 120
    while not (
        (run / "metrics.jsonl").exists() and (run / "metrics.jsonl").read_text().count('"kind": "step"') >= count
    ):
        assert time.monotonic() < deadline, words.read_text()[-3000:]
        assert job.poll() is None, words.read_text()[-3000:]
        time.sleep(0.1)


def test_the_slurm_header_asks_for_what_the_script_counts_on() -> None:
    header = dict(
        line.removeprefix("#SBATCH --").partition("=")[::2]
        for line in SBATCH.read_text().splitlines()
        if line.startswith("#SBATCH ")
    )
    assert header["ntasks-per-node"] == "1"  # one torchrun a node
    assert header["signal"] == "B:USR1@180"  # to this script, which traps it
    assert header["open-mode"] == "append"
    assert "requeue" in header


def test_the_trainjob_has_the_form_of_kubeflow_trainer_v2() -> None:
    """Fields of trainer.kubeflow.org/v1alpha1; an unknown one would be pruned or refused by the cluster."""
    job = yaml.safe_load(TRAINJOB.read_text())
    assert (job["apiVersion"], job["kind"]) == ("trainer.kubeflow.org/v1alpha1", "TrainJob")
    assert set(job["spec"]) <= {"runtimeRef", "trainer", "runtimePatches", "suspend", "initializer", "managedBy"}
    assert job["spec"]["runtimeRef"] == {
        "apiGroup": "trainer.kubeflow.org", "kind": "ClusterTrainingRuntime", "name": "torch-distributed",
    }  # fmt: skip
    node = job["spec"]["trainer"]
    assert set(node) <= {"image", "command", "args", "env", "numNodes", "numProcPerNode", "resourcesPerNode"}
    assert node["resourcesPerNode"]["limits"]["nvidia.com/gpu"] == node["numProcPerNode"]
    assert all(isinstance(word, str) for word in [*node["command"], *node["args"]])
    assert all(isinstance(variable["value"], str) for variable in node["env"])
    (patch,) = job["spec"]["runtimePatches"]
    assert set(patch) == {"manager", "trainingRuntimeSpec"}
    (replicas,) = patch["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]
    assert replicas["name"] == "node"
    pod = replicas["template"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert set(container) == {"name", "volumeMounts"}  # env of this container belongs to trainer.env
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert set(mounts) == {volume["name"] for volume in pod["volumes"]}
    timeout = {variable["name"]: variable["value"] for variable in node["env"]}["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"]
    assert int(timeout) < pod["terminationGracePeriodSeconds"]


def test_the_trainjob_starts_train_py_on_torchrun_with_flags_that_exist() -> None:
    node = yaml.safe_load(TRAINJOB.read_text())["spec"]["trainer"]
    assert node["command"] == ["torchrun"]
    at = node["args"].index("/workspace/train.py")
    config = parse(node["args"][at + 1 :]).config
    assert (config.resume, config.data_dir, config.output_dir) == (
        "auto",
        "/data/imagenet",
        "/runs/channels-last-resnet50",
    )
