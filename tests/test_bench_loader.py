"""scripts/bench/bench_loader.py: all arms load the same images; sizes, facts and exit codes. Never a time."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch

BENCH = Path(__file__).resolve().parent.parent / "scripts" / "bench"
sys.path.insert(0, str(BENCH))

import bench_loader  # noqa: E402
import make_photos  # noqa: E402


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("loader") / "photos"
    assert make_photos.main([str(folder), *"--classes 2 --train 5 --val 1".split()]) == 0
    return folder


@pytest.mark.parametrize("workers", ["0", "2"])
def test_three_arms_and_two_ratios(photos: Path, workers: str, tmp_path: Path, capsys) -> None:
    argv = [str(photos), *f"-b 4 -j {workers} --image-size 32 --rounds 2 --json {tmp_path / 'loader.json'}".split()]
    assert bench_loader.main([*argv, "--require", "1e-9"]) == 0
    content = json.loads((tmp_path / "loader.json").read_text())
    first, second = content["comparisons"]
    assert (first["candidate"], first["baseline"], first["required"]) == ("ours", "reference", True)
    assert (second["candidate"], second["baseline"], second["required"]) == ("ours", "fast collate", False)
    assert all(len(values) == 2 for comparison in content["comparisons"] for values in comparison["values"].values())
    batches = content["batches"]
    assert batches["ours"]["bytes"] == 4 * 3 * 32 * 32
    assert batches["reference"]["bytes"] == 4 * batches["ours"]["bytes"]
    assert batches["fast collate"]["bytes"] == batches["ours"]["bytes"]
    assert batches["ours"] == {"shape": [4, 3, 32, 32], "dtype": "torch.uint8", "channels_last": True, "bytes": 12288}
    assert batches["reference"]["channels_last"] is batches["fast collate"]["channels_last"] is False
    assert (content["files"]["width"], content["files"]["height"], content["files"]["read"]) == (500, 375, 10)
    assert content["jpeg_decoder"]
    out = capsys.readouterr().out
    assert "ours / reference" in out
    assert "12288 bytes a batch" in out
    assert bench_loader.main([*argv, "--require", "1e9"]) == 1


def test_a_round_shows_every_arm_the_same_images_and_another_round_others(photos: Path) -> None:
    args = bench_loader.parse([str(photos), *"-b 4 -j 0 --image-size 32 --batches 2".split()])
    arms, _ = bench_loader.build_arms(args)
    for arm in arms.values():
        assert arm() > 0
    orders = [list(arm._sampler) for arm in arms.values()]
    assert orders[0] == orders[1] == orders[2]
    assert [len(keys) for keys in orders[0]] == [4, 4]
    labels = [torch.cat([target for _, target in arm._batches]).tolist() for arm in arms.values()]
    assert labels[0] == labels[1] == labels[2]
    arms["ours"]()
    assert list(arms["ours"]._sampler) != orders[0]


def test_mistakes_are_one_sentence(photos: Path, tmp_path: Path, capsys) -> None:
    assert bench_loader.main([str(tmp_path / "none")]) == 2
    assert "make_photos.py" in capsys.readouterr().err
    assert bench_loader.main([str(photos), "--batches", "0"]) == 2
    assert capsys.readouterr().err.startswith("bench_loader: ")


def test_folders_that_the_two_read_differently_are_refused(tmp_path: Path, capsys) -> None:
    from helpers import make_folder, write_image

    folder = make_folder(tmp_path / "set", train=3, val=1, size=8)
    write_image(folder / "train/a/.hidden.jpg", size=8)
    assert bench_loader.main([str(folder), "-j", "0"]) == 2
    assert "we find 6 images in train/ and torchvision 7" in capsys.readouterr().err


def test_a_broken_image_is_one_sentence(tmp_path: Path, capsys) -> None:
    from helpers import make_folder

    folder = make_folder(tmp_path / "set", train=3, val=1, size=8)
    (folder / "train/a/001.jpg").write_bytes(b"no image")
    assert bench_loader.main([str(folder), *"-b 2 -j 0 --image-size 8 --rounds 1".split()]) == 1
    err = capsys.readouterr().err
    assert "train/a/001.jpg" in err
    assert "--check-data" in err
