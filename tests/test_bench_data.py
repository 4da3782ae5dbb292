"""--bench-data: the training loader alone, what is counted and said. Never how fast."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import make_folder

from data.bench import EndlessSampler, TooFewImages, measure_loader
from data.build import LoaderOptions
from data.dataset import ImageDataset
from data.decode import Decoder
from data.facts import jpeg_decoder, look_at_files
from data.folder import scan_data_dir
from data.loaders import fail_on_bad
from data.sampler import StepSampler
from data.transforms import TrainTransform

ROOT = Path(__file__).parent.parent
FLAGS = "-b 4 --image-size 16 -j 0 --bench-data 5"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_folder(tmp_path / "set", train=5, val=1, size=24)


def options(batch_size: int = 4, workers: int = 0) -> LoaderOptions:
    return LoaderOptions(batch_size, 4, 1, None, workers, 0, 0.0, 0.0, 2)


def train_set(folder: Path) -> ImageDataset:
    transform = TrainTransform(16, (0.1, 1.0), 0.5, "bilinear", 0)
    return ImageDataset(scan_data_dir(str(folder))[0], Decoder(), transform)


@pytest.mark.parametrize(("workers", "warmup"), [(0, 1), (2, 4)])
def test_batches_go_on_over_the_end_of_an_epoch(folder: Path, workers: int, warmup: int) -> None:
    """Ten images are batches of 4, 4 and 2."""
    found = measure_loader(train_set(folder), 16, options(workers=workers), "cpu", 6, fail_on_bad)
    assert (found.batches, found.warmup_batches, found.workers, found.left_out) == (6, warmup, workers, 0)
    assert found.images == 20
    assert found.images_per_sec == found.images / found.seconds
    assert found.images_per_sec_per_worker == found.images_per_sec / max(1, workers)
    assert found.files.read == 10
    assert (found.files.width, found.files.height) == (24, 24)
    assert found.files.formats == {"JPEG": 10}


def test_epochs_differ() -> None:
    keys = iter(EndlessSampler(StepSampler(4, 4)))
    first, second = next(keys), next(keys)
    assert {epoch for epoch, _ in first} == {0}
    assert {epoch for epoch, _ in second} == {1}
    assert sorted(number for _, number in first) == sorted(number for _, number in second) == [0, 1, 2, 3]


def test_too_few_images(folder: Path) -> None:
    for path in sorted(folder.glob("train/*/*"))[1:]:
        path.unlink()
    index, _ = scan_data_dir(str(make_folder(folder / "one", classes=("a",), train=1, val=1, size=8)))
    single = ImageDataset(index, Decoder(), TrainTransform(16, (0.1, 1.0), 0.5, "bilinear", 0))
    with pytest.raises(TooFewImages, match="1 training image is too few"):
        measure_loader(single, 16, options(), "cpu", 1, fail_on_bad)


def test_facts_of_files_leave_unreadable_ones_out(folder: Path) -> None:
    index, _ = scan_data_dir(str(folder))
    Path(index.name(0)).write_bytes(b"")
    found = look_at_files(index)
    sizes = [Path(index.name(number)).stat().st_size for number in range(1, 10)]
    assert (found.read, found.mean_bytes) == (9, sum(sizes) / 9)
    assert look_at_files(index, most=3).read == 2
    for number in range(10):
        Path(index.name(number)).write_bytes(b"")
    assert look_at_files(index).read == 0
    assert jpeg_decoder().split()[0] in ("simplejpeg", "Pillow")


def test_the_command_prints_its_facts_and_makes_no_run_folder(run, capsys, folder: Path) -> None:
    assert run(folder, *FLAGS.split(), base="") == 0
    captured = capsys.readouterr()
    speed, sizes, files, cpu = captured.out.splitlines()
    assert speed.startswith("loader alone: ")
    assert speed.endswith("in the process itself (-j 0)")
    assert "5 batches of 4 at 16 pixels, after 1 that were not timed" in sizes
    assert files.startswith("files: ")
    assert cpu.startswith("CPU: ")
    assert not Path("runs").exists()


def test_json_is_one_object_and_nothing_else(run, capsys, folder: Path) -> None:
    assert run(folder, *FLAGS.split(), "--json", base="") == 0
    content = json.loads(capsys.readouterr().out)
    assert (content["batches"], content["batch_size"], content["image_size"], content["workers"]) == (5, 4, 16, 0)
    assert content["images_per_sec"] > 0
    assert content["files"]["mean_bytes"] > 0
    assert {"cpu", "usable_cores", "decoder", "images_per_sec_per_worker", "data"} <= set(content)


def test_made_up_images_and_launchers_are_refused(run, capsys, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run("--bench-data", base="") == 2
    assert "--bench-data needs images" in capsys.readouterr().err
    assert run("--bench-data", "5", "--synthetic", base="") == 2
    assert "--bench-data needs images" in capsys.readouterr().err
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert run(folder, *FLAGS.split(), base="") == 2
    assert "--bench-data runs in one process, and 2 were started" in capsys.readouterr().err


def test_a_bad_image_ends_it_with_exit_5(run, capsys, folder: Path) -> None:
    (folder / "train/b/002.jpg").write_bytes(b"no image")
    assert run(folder, *FLAGS.split(), base="") == 5
    captured = capsys.readouterr()
    assert "train/b/002.jpg (class b): not an image" in captured.err
    assert captured.out == ""


def test_a_bad_image_is_left_out_on_request(run, capsys, folder: Path) -> None:
    (folder / "train/b/002.jpg").write_bytes(b"no image")
    assert run(folder, *FLAGS.split(), "--bad-images", "skip", "--json", base="") == 0
    content = json.loads(capsys.readouterr().out)
    assert content["left_out"] == 1
    assert run(folder, *FLAGS.split(), "--bad-images", "skip", "--max-bad-images", 0, base="") == 5
    assert "more than the 0 that --max-bad-images allows" in capsys.readouterr().err


def test_it_raises_no_warning_and_needs_no_model(folder: Path, tmp_path: Path) -> None:
    flags = f"{folder} -b 4 --image-size 16 -j 2 --bench-data 5 -a no_such_module:model".split()
    command = [sys.executable, "-W", "error", str(ROOT / "train.py"), *flags]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=200, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "per worker (2 workers)" in done.stdout
