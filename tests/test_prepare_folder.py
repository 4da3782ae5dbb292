"""scripts/prepare_folder.py: what the files become, and what is kept."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest
from helpers import write_image
from pictures import encoded, smooth
from PIL import Image

from data.decode import FORMATS

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "scripts"))

import prepare_folder  # noqa: E402
from prepared import claim  # noqa: E402
from resize_image import ORIENTATION  # noqa: E402

Shown = pytest.CaptureFixture[str]


def prepare(source: Path, out: Path, *flags: object) -> int:
    """Run in this process, one worker."""
    flags = (source, out, "--short-side", 16, "--workers", 1, *flags)
    return int(prepare_folder.main([str(flag) for flag in flags]))


def last_line(capsys: Shown) -> str:
    return capsys.readouterr().out.splitlines()[-1]


def tree(folder: Path) -> dict[str, bytes]:
    """All files that are not hidden."""
    files = (path for path in folder.rglob("*") if path.is_file() and not path.name.startswith("."))
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def test_folders_and_names_stay(tmp_path: Path, capsys: Shown) -> None:
    source, out = tmp_path / "src", tmp_path / "new/dst"
    for name in ("train/a/1.jpg", "train/a/2.png", "train/b/sub/3.webp", "val/a/4.JPEG", "5.bmp"):
        write_image(source / name, size=40)
    for name in ("train/a/.h.jpg", "__MACOSX/a/1.jpg", ".git/x.jpg", "notes.txt", "train/a/._1.jpg"):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_bytes(b"x")
    (source / "train/a/gone.jpg").symlink_to(source / "none")
    before = tree(source)
    assert prepare(source, out) == 0
    assert sorted(tree(out)) == ["5.jpg", "train/a/1.jpg", "train/a/2.jpg", "train/b/sub/3.jpg", "val/a/4.JPEG"]
    for content in tree(out).values():
        image = Image.open(io.BytesIO(content))
        assert (image.format, image.size) == ("JPEG", (16, 16))
    assert tree(source) == before
    shown = capsys.readouterr()
    assert shown.err == "left out: 1 .txt, 2 AppleDouble, 1 broken links, 2 hidden\n"
    sizes = [
        sum(map(len, found.values()))
        for found in ({n: before[n] for n in before if n[:2] not in ("no", "__")}, tree(out))
    ]
    assert shown.out.startswith(f"{out}: 5 written, 0 copied, 0 skipped, 0 bad; ")
    assert f"{sizes[1]} after" in shown.out


def test_names_that_clash_keep_their_suffix() -> None:
    names = [
        "a/x.jpg",
        "a/x.png",
        "b/x.bmp",
        "b/x.png",
        "c/x.png",
        "d/x.png",
        "d/x.png.jpg",
        "d/x.webp",
        "e/x.JPEG",
        "e/x.png",
    ]
    assert prepare_folder.plan_names(names) == [
        "a/x.jpg", "a/x.png.jpg", "b/x.bmp.jpg", "b/x.png.jpg", "c/x.jpg", "d/x.png.jpg.jpg", "d/x.png.jpg", "d/x.webp.jpg",
        "e/x.JPEG", "e/x.jpg",
    ]  # fmt: skip


@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_small_baseline_jpegs_are_copied(tmp_path: Path, capsys: Shown, mode: str) -> None:
    exif = Image.Exif()
    exif[ORIENTATION] = 6
    content = encoded(smooth(16, 30).convert(mode), "JPEG", exif=exif)
    (tmp_path / "src").mkdir()
    (tmp_path / "src/x.png").write_bytes(content)
    assert prepare(tmp_path / "src", tmp_path / "dst") == 0
    assert tree(tmp_path / "dst") == {"x.jpg": content}
    assert "0 written, 1 copied" in last_line(capsys)


def spoil(source: Path) -> None:
    """One good image and five bad ones."""
    write_image(source / "a/good.jpg", size=40)
    whole = encoded(smooth(100, 100), "JPEG")
    (source / "a/cut.jpg").write_bytes(whole[: len(whole) // 2])
    (source / "a/small-cut.jpg").write_bytes(encoded(smooth(16, 16), "JPEG")[:-60])
    (source / "a/empty.jpg").touch()
    (source / "a/text.png").write_text("no image")
    # Pillow, left to itself, starts another program for these.
    (source / "a/script.jpg").write_bytes(encoded(smooth(40, 40), "EPS"))


def test_bad_files_are_named_and_the_rest_is_written(tmp_path: Path, capsys: Shown) -> None:
    spoil(tmp_path / "src")
    assert prepare(tmp_path / "src", tmp_path / "dst") == 5
    assert sorted(tree(tmp_path / "dst")) == ["a/good.jpg", "bad_images.txt"]
    rows = [line.split("\t") for line in (tmp_path / "dst/bad_images.txt").read_text().splitlines()]
    assert [row[0] for row in rows] == ["a/cut.jpg", "a/empty.jpg", "a/script.jpg", "a/small-cut.jpg", "a/text.png"]
    assert all(row[1] for row in rows)
    assert rows[2][1] == rows[4][1] == f"not an image in one of {', '.join(FORMATS)}"
    shown = capsys.readouterr()
    assert "1 written, 0 copied, 0 skipped, 5 bad" in shown.out
    assert "bad: a/cut.jpg: " in shown.err
    assert "Traceback" not in shown.err
    for name in ("cut", "small-cut", "empty", "script"):
        write_image(tmp_path / f"src/a/{name}.jpg", size=40)
    write_image(tmp_path / "src/a/text.png", size=40)
    assert prepare(tmp_path / "src", tmp_path / "dst") == 0
    assert "5 written, 0 copied, 1 skipped, 0 bad" in last_line(capsys)
    assert not (tmp_path / "dst/bad_images.txt").exists()


def test_a_folder_with_the_name_an_image_would_get(tmp_path: Path, capsys: Shown) -> None:
    source = tmp_path / "src"
    for name in ("a/x.jpg/in.jpg", "a/x.png", "a/y.png"):
        write_image(source / name, size=40)
    (source / "a/y.jpg").symlink_to("x.jpg")
    assert prepare(source, tmp_path / "dst") == 0
    files = [path.relative_to(tmp_path / "dst").as_posix() for path in (tmp_path / "dst/a").iterdir()]
    assert sorted(files) == ["a/x.jpg", "a/x.png.jpg", "a/y.jpg", "a/y.png.jpg"]
    assert (tmp_path / "dst/a/y.jpg/in.jpg").is_file()
    assert prepare(source, tmp_path / "dst") == 0
    assert "0 written, 0 copied, 3 skipped" in last_line(capsys)


def test_a_name_that_would_be_too_long_is_that_images_fault(tmp_path: Path, capsys: Shown) -> None:
    for suffix in (".png", ".bmp"):  # both want the same name, so each gets a second suffix
        write_image(tmp_path / "src/a" / ("n" * 251 + suffix), size=40)
    write_image(tmp_path / "src/a/1.jpg", size=40)
    for outcome in ("1 written, 0 copied, 0 skipped, 2 bad", "0 written, 0 copied, 1 skipped, 2 bad"):
        assert prepare(tmp_path / "src", tmp_path / "dst") == 5
        shown = capsys.readouterr()
        assert outcome in shown.out
        assert "nnn.bmp: File name too long\n" in shown.err


def refused(capsys: Shown, source: Path, out: Path, *flags: object) -> str:
    assert prepare(source, out, *flags) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert len(shown.err.splitlines()) == 1
    return shown.err


def test_mistakes_are_one_line(tmp_path: Path, capsys: Shown) -> None:
    source = tmp_path / "src"
    assert "no folder" in refused(capsys, source, tmp_path / "dst")
    source.mkdir()
    assert "no image below" in refused(capsys, source, tmp_path / "dst")
    write_image(source / "a/1.jpg", size=40)
    (tmp_path / "link").symlink_to(source)
    for out in (source, source / "dst", tmp_path / "link/dst", tmp_path):
        assert "lie one in the other" in refused(capsys, source, out)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/1.jpg").write_text("mine")
    assert "already holds other files" in refused(capsys, source, tmp_path / "mine")
    assert "cannot prepare" in refused(capsys, source, tmp_path / "mine/1.jpg")
    assert "--quality" in refused(capsys, source, tmp_path / "dst", "--quality", 96)
    assert prepare(source, tmp_path / "dst") == 0
    capsys.readouterr()
    assert "was made with short_side 16" in refused(capsys, source, tmp_path / "dst", "--short-side", 8)


def test_a_link_in_dst_is_not_followed(tmp_path: Path, capsys: Shown) -> None:
    """It could lead back into SRC."""
    path = write_image(tmp_path / "src/a/1.jpg", size=40)
    before = path.read_bytes()
    (tmp_path / "dst").mkdir()
    claim(tmp_path / "dst", {"source": str((tmp_path / "src").resolve()), "short_side": 16, "quality": 92})
    (tmp_path / "dst/a").symlink_to(tmp_path / "src/a")
    assert "by a link" in refused(capsys, tmp_path / "src", tmp_path / "dst")
    assert path.read_bytes() == before
