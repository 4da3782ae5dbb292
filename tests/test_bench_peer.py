"""scripts/bench/bench_peer.py and runs.py: what is read off logs, what each peer is given, heaps and exit codes."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
from helpers import make_folder

BENCH = Path(__file__).resolve().parent.parent / "scripts" / "bench"
sys.path.insert(0, str(BENCH))

import bench_peer  # noqa: E402
import runs  # noqa: E402

from trainer.errors import RunError  # noqa: E402

# Recorded lines: of pytorch/examples main.py, of timm's train.py (before and after 1.0), of ours.
EXAMPLES = (
    "=> creating model 'resnet18'\n"
    "Epoch: [0][  1/125]\tTime  8.000 ( 8.000)\tData  1.1 ( 1.1)\tLoss 7.1e+00 (7.1e+00)\tAcc@1   0.00 (  0.00)\n"
    "Epoch: [0][  2/125]\tTime  0.500 ( 4.250)\tData  0.1 ( 0.6)\tLoss 7.1e+00 (7.1e+00)\tAcc@1   0.00 (  0.00)\n"
    "Epoch: [0][ 10/125]\tTime  0.866 ( 0.900)\tData  0.1 ( 0.6)\tLoss 7.1e+00 (7.1e+00)\tAcc@1   0.00 (  0.00)\n"
    "Epoch: [0][124/125]\tTime  1.000 ( 0.900)\tData  0.1 ( 0.6)\tLoss 7.1e+00 (7.1e+00)\tAcc@1   0.00 (  0.00)\n"
    "Epoch: [0][125/125]\tTime  0.001 ( 0.900)\tData  0.1 ( 0.6)\tLoss 7.1e+00 (7.1e+00)\tAcc@1   0.00 (  0.00)\n"
    "Test: [ 1/10]\tTime  0.100 ( 0.100)\tLoss 6.9e+00 (6.9e+00)\tAcc@1   0.00 (  0.00)\n"
)
TIMM = (
    "Train: 0 [   0/125 (  0%)]  Loss: 6.948 (6.95)  Time: 9.100s,    1.76/s  (9.100s,    1.76/s)  LR: 1.000e-04  Data: 1.1 (1.1)\n"
    "Train: 0 [  10/125 (  9%)]  Loss: 6.94 (6.95)  Time: 0.866s,  230.95/s  (0.900s,  222.20/s)  LR: 1.000e-04  Data: 0.1 (0.1)\n"
    "Train: 0 [ 124/125 (100%)]  Loss: 6.94 (6.95)  Time: 0.8s,  250.05/s  (0.900s,  222.20/s)  LR: 1.000e-04  Data: 0.1 (0.1)\n"
    "Test: [   0/9]  Time: 0.866 (0.866)  Loss:  6.9 ( 6.9)  Acc@1:  0.0 ( 0.0)\n"
)
OURS = (
    "Epoch: [0][1/125]\tTime 9.000 (9.000)\tSpeed 1.778 (1.778)\tLoss 6.9 (6.9)\tPrec@1 0.000 (0.000)\tData wait 9.0 %\n"
    "Epoch: [0][10/125]\tTime 0.866 (0.866)\tSpeed 230.949 (228.000)\tLoss 0.6735125184 (0.6735)\tPrec@1 61.000 (61.000)\n"
    "Test: [1/9]\tTime 0.100 (0.100)\tSpeed 999.000 (999.000)\tLoss 6.9 (6.9)\tPrec@1 0.000 (0.000)\n"
    "Epoch 0: 228.0 img/s total, 228.0 per device (120 steps timed, the first 5 left out); whole epoch 200.0 img/s\n"
)


def test_the_log_of_pytorch_examples() -> None:
    # The first line is warm-up, the last of the epoch may be a smaller batch.
    found = runs.read_speed(EXAMPLES, runs.EXAMPLES, batch_size=16, warmup_steps=1)
    assert found.steps == 3
    assert found.median == pytest.approx(16 / 0.866)
    assert found.mean == pytest.approx(3 * 16 / (0.5 + 0.866 + 1.0))


def test_the_log_of_timm() -> None:
    found = runs.read_speed(TIMM, runs.TIMM, batch_size=16, warmup_steps=1)
    assert (found.steps, found.median) == (2, pytest.approx(240.5))


def test_our_own_log() -> None:
    found = runs.read_speed(OURS, runs.OURS, batch_size=16, warmup_steps=1)
    assert (found.steps, found.median) == (1, 230.949)


def test_the_pattern_fits_the_line_we_print() -> None:
    from trainer.metrics import Means
    from trainer.progress import train_line

    keys = ("step_s", "mean_step_s", "images_per_sec", "mean_images_per_sec", "data_wait_share")
    speed = dict(zip(keys, (0.25, 0.5, 64.0, 32.0, 0.1), strict=True))
    means = Means(1.0, 50.0, 100.0, 16)
    line = train_line(3, 7, 20, speed, means, means)
    assert runs.read_speed(line, runs.OURS, 16, 0).median == 64.0


@pytest.mark.parametrize("log", ["", "nothing to see\n", EXAMPLES])
def test_a_log_with_too_few_steps_says_what_to_do(log: str) -> None:
    with pytest.raises(RunError, match="--warmup-steps"):
        runs.read_speed(log, runs.EXAMPLES, 16, 4)


def test_a_run_that_fails_is_named_with_its_last_line(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="exit code 3: it broke"):
        runs.run_process([sys.executable, "-c", "import sys; print('it broke'); sys.exit(3)"], {}, tmp_path)
    with pytest.raises(RunError, match="cannot start"):
        runs.run_process([str(tmp_path / "none")], {}, tmp_path)


def test_the_summary_of_a_run(tmp_path: Path) -> None:
    (tmp_path / "summary.csv").write_text("epoch,images_per_sec_total,val_loss\n0,1.5,\n1,2.5,\n")
    assert runs.read_summary(tmp_path) == {"epoch": 1.0, "images_per_sec_total": 2.5}
    (tmp_path / "summary.csv").write_text("epoch,images_per_sec_total\n")
    with pytest.raises(RunError, match="holds no epoch"):
        runs.read_summary(tmp_path)


# --- what each side is given


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_folder(tmp_path / "photos", train=1, val=1, size=8)


def script(folder: Path, name: str, text: str = "") -> str:
    path = folder.parent / name
    path.write_text(text)
    return str(path)


def test_each_peer_gets_its_own_flags(folder: Path) -> None:
    for name, kind in (("main.py", "examples"), ("train.py", "timm")):
        args = bench_peer.parse([str(folder), "--peer-script", script(folder, name), "--peer-args", "--wd", "0"])
        assert args.peer_kind == kind
        command = bench_peer.peer_command(args, Path("OUT"))
        text = " ".join(command[2:])
        if kind == "examples":
            assert text == f"-a mobilenet_v2 -b 16 -j 2 --epochs 1 -p 1 --wd 0 {folder}"
        else:
            assert text.startswith(
                f"--model mobilenetv2_100 -b 16 -j 2 --data-dir {folder} --num-classes 1000 --epochs 1"
            )
            assert "--channels-last --wd 0" in text
            assert "--output OUT" in text
    ours = " ".join(bench_peer.our_command(args, Path("OUT")))
    assert "-a mobilenet_v2 -b 16 -j 2 --num-classes 1000" in ours
    assert ours.endswith(str(folder))


def test_a_custom_peer_gets_what_it_is_given(folder: Path) -> None:
    argv = [
        "--peer-kind",
        "custom",
        "--peer-regex",
        "speed (?P<rate>.*)",
        "--peer-args",
        "--net={arch}",
        "-n",
        "{batch}",
    ]
    args = bench_peer.parse([str(folder), "--peer-script", script(folder, "x.py"), *argv])
    assert bench_peer.peer_command(args, Path("OUT"))[2:] == ["--net=mobilenet_v2", "-n", "16"]


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--peer-kind", "custom"], "needs --peer-regex"),
        (["--peer-regex", "("], "no regular expression"),
        (["--peer-regex", "a"], "a group named"),
        (["--num-classes", "5"], "1000 outputs"),
        (["--peer-script", "none.py"], "no script"),
    ],
)
def test_mistakes_are_one_sentence(
    folder: Path, flags: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench_peer.main([str(folder), "--peer-script", script(folder, "main.py"), *flags]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert says in line


def test_a_folder_without_photos_is_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench_peer.main([str(folder / "train"), "--peer-script", script(folder, "main.py")]) == 2
    assert "make_photos.py" in capsys.readouterr().err


# Prints steps of 1 s with the default heap, of 0.5 s with the retained one, and leaves a file where it stands.
FAKE_PEER = """
import os
retained = "mmap_max=0" in os.environ.get("GLIBC_TUNABLES", "")
assert os.environ["CUDA_VISIBLE_DEVICES"] == ""
open("checkpoint.pth.tar", "w").close()
for step in range(1, 9):
    print(f"Epoch: [0][{step}/8]\\tTime  {0.5 if retained else 1.0:.3f} ( 1.000)\\tData  0.0 ( 0.0)")
"""
FAKE_OURS = "import sys; [print(f'Epoch: [0][{n}/8]\\tTime 0.5 (0.5)\\tSpeed 32.0 (32.0)\\tLoss') for n in range(8)]"


def test_whole_processes_take_turns_and_the_heap_stands_beside(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder.parent)
    monkeypatch.setattr(bench_peer, "our_command", lambda args, output: [sys.executable, "-c", FAKE_OURS])
    argv = [str(folder), "--peer-script", script(folder, "main.py", FAKE_PEER), "--rounds", "2", "--json", "peer.json"]
    assert bench_peer.main([*argv, "--require", "1.9"]) == 0
    content = json.loads(Path("peer.json").read_text())
    found = {comparison["baseline"]: comparison["ratio"] for comparison in content["comparisons"]}
    assert found == {"peer, default heap": 2.0, "peer, retain heap": 1.0}
    assert content["commands"]["peer"][1].endswith("main.py")
    assert [speed["steps"] for speed in content["speeds"]["ours"]] == [3, 3]
    assert not Path("checkpoint.pth.tar").exists()
    assert re.search(r"ours / peer, default heap +2\.000", capsys.readouterr().out)
    assert bench_peer.main([*argv, "--require", "2.1"]) == 1
    assert bench_peer.main([*argv, "--require", "1.9", "--peer-heap", "retain"]) == 1


def test_a_peer_that_breaks_ends_the_benchmark(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench_peer, "our_command", lambda args, output: [sys.executable, "-c", FAKE_OURS])
    peer = script(folder, "main.py", "raise SystemExit('no such model')")
    assert bench_peer.main([str(folder), "--peer-script", peer, "--peer-heap", "default"]) == 1
    assert "no such model" in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.slow
def test_train_py_against_itself(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = BENCH.parents[1]
    monkeypatch.chdir(folder.parent)
    monkeypatch.setenv("PYTHONPATH", str(root / "tests"))
    photos = make_folder(folder.parent / "more", train=8, val=2, size=40)
    peer = "-a {arch} --b {batch} -j 0 -p 1 --epochs 1 --image-size 32 --output-dir {output}/run {data}"
    argv = [
        *(str(photos), "--peer-script", str(root / "train.py"), "--peer-kind", "custom"),
        *("--peer-regex", runs.OURS.pattern, "-a", "toy_models:tiny", "-b", "4", "-j", "0", "--num-classes", "2"),
        *("--our-args=--image-size 32", "--warmup-steps", "1", "--rounds", "1", "--peer-heap", "default"),
        *("--json", "peer.json", "--peer-args", *peer.split()),
    ]
    assert bench_peer.main(argv) == 0
    speeds = json.loads(Path("peer.json").read_text())["speeds"]
    assert [speed["steps"] for side in speeds.values() for speed in side] == [3, 3]
