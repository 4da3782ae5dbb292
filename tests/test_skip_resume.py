"""--bad-images skip: a run stopped inside an epoch ends as the one that was not; validation over two ranks."""

from __future__ import annotations

from pathlib import Path

import pytest
from dirty_files import ALL_KINDS, spoil, write_empty
from helpers import assert_same_end, launch, make_folder, rows

from data.sampler import StepSampler, rank_share


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """40 images to train on in steps of 8. In the first epoch the second step has one readable image,
    which a dummy replaces, and the third has four."""
    folder = make_folder(tmp_path / "set", train=20, val=5)
    paths = sorted(folder.glob("train/*/*.jpg"))
    order = StepSampler(40, 8).order()
    for index in [*order[9:16], *order[20:24]]:
        write_empty(paths[index])
    spoil(folder / "val/b", kinds=ALL_KINDS)
    return folder


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("steps", [1, 2, 4])
def test_a_stop_inside_an_epoch_changes_no_bit_and_no_count(run, folder: Path, steps: int, workers: int):
    base = (
        "-a toy_models:dropping -b 8 --image-size 32 --tensorboard false -p 1 --epochs 2 --channels-last true "
        "--bad-images skip --max-bad-images 11"
    )
    assert run(folder, "-j", 0, "--output-dir", "straight", base=base) == 0
    assert run(folder, "-j", workers, "--output-dir", "halves", "--stop-after-steps", steps, base=base) == 0
    assert run("--resume", "halves", "-j", workers, base=None) == 0
    assert_same_end("straight", "halves")
    counts = "images_seen", "train_loss", "train_acc1", "val_loss", "val_acc1", "val_images"
    straight, halves = (
        [[row[key] for key in counts] for row in rows(name, "epoch")] for name in ("straight", "halves")
    )
    assert straight == halves
    assert straight[0][0] == 40 - 8 - 4
    assert [row[-1] for row in straight] == [10, 10]
    found = [sorted(Path(name, "bad_images.txt").read_text().splitlines()) for name in ("straight", "halves")]
    assert found[0] == found[1]
    assert len(found[0]) == 11 + 6


@pytest.mark.parametrize("broken", ["one batch", "every batch"])
def test_one_rank_validates_without_a_readable_image(tmp_path: Path, broken: str):
    """R03, R64: the other one's images are all that count."""
    folder = make_folder(tmp_path / "set", train=8, val=5)
    paths = sorted(folder.glob("val/*/*.jpg"))
    batches = rank_share(10, 2, 1, 2)
    assert [len(batch) for batch in batches] == [2, 2, 1]
    bad = [index for batch in batches[1:2] if broken == "one batch" for _, index in batch]
    bad += [index for batch in batches if broken == "every batch" for _, index in batch]
    for index in bad:
        write_empty(paths[index])
    flags = "-a toy_models:tiny -b 4 --val-batch-size 2 --num-classes 2 -j 1 --bad-images skip --output-dir run"
    done = launch(tmp_path, 2, folder, *flags.split(), timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    (epoch,) = rows(tmp_path / "run", "epoch")
    readable = 10 - len(bad)
    assert epoch["val_images"] == readable
    right = epoch["val_acc1"] * readable / 100
    assert right == pytest.approx(round(right), abs=1e-3)
    assert epoch["val_loss"] > 0
    assert f"{len(bad)} of 10 val images cannot be read" in done.stdout
