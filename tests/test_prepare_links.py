"""scripts/prepare_folder.py and what is no plain file or folder: links, pipes; no image counts twice."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import make_folder, write_image
from test_prepare_folder import ROOT, Shown, last_line, prepare, refused, tree

from data.folder import scan_data_dir
from data.listing import list_images


@pytest.fixture
def source(tmp_path: Path) -> Path:
    write_image(tmp_path / "src/a/1.jpg", size=40)
    return tmp_path / "src"


def test_links_that_lead_back_end(source: Path) -> None:
    (source / "a/up").symlink_to(source)
    (source / "a/here").symlink_to(".")
    (source / "a/parent").symlink_to(source.parent)
    (source / "root").symlink_to("/")
    (source / "a/self").symlink_to("self")
    (source / "a/self.jpg").symlink_to("self.jpg")
    assert list_images(str(source)) == (["a/1.jpg"], {}, {"broken links": 2})


def test_a_link_to_a_folder_of_src_is_one_in_dst(tmp_path: Path, capsys: Shown) -> None:
    """Its images are made once, and a training counts them as it does in SRC."""
    source, out = make_folder(tmp_path / "src", ("a", "b"), train=2, val=1), tmp_path / "dst"
    write_image(source / "train/a/sub/x.png")
    (source / "train/a/again").symlink_to("sub")
    (source / "train/c").symlink_to(source / "train/b")
    write_image(tmp_path / "elsewhere/.hidden/y.jpg")
    (source / "train/b/more").symlink_to(tmp_path / "elsewhere/.hidden")
    write_image(source / ".kept/z.jpg")
    (source / "train/b/kept").symlink_to(source / ".kept")
    assert prepare(source, out) == 0
    assert last_line(capsys).startswith(f"{out}: 9 written, 0 copied, 0 skipped, 0 bad; ")
    assert os.readlink(out / "train/c") == "b"
    assert os.readlink(out / "train/a/again") == "sub"
    old, new = (scan_data_dir(str(folder))[0] for folder in (source, out))
    assert (old.classes, old.labels.tolist()) == (new.classes, new.labels.tolist())
    assert prepare(source, out) == 0
    assert "0 written, 0 copied, 9 skipped" in last_line(capsys)
    (source / "train/c").unlink()
    (source / "train/c").symlink_to("a")
    (source / "train/a/again").unlink()
    assert prepare(source, out, "--prune") == 0
    assert "removed 1 file without a source, such as train/a/again" in capsys.readouterr().err
    assert os.readlink(out / "train/c") == "a"
    assert not os.path.lexists(out / "train/a/again")


def test_what_stands_where_a_link_belongs_is_not_replaced(source: Path, tmp_path: Path, capsys: Shown) -> None:
    assert prepare(source, tmp_path / "dst") == 0
    (source / "b").symlink_to("a")
    capsys.readouterr()
    (tmp_path / "dst/b").mkdir()
    assert "stands where a link to" in refused(capsys, source, tmp_path / "dst")
    (tmp_path / "dst/b").rmdir()
    (tmp_path / "dst/b").symlink_to("/")
    assert "stands where a link to" in refused(capsys, source, tmp_path / "dst")
    (tmp_path / "dst/b").unlink()
    assert prepare(source, tmp_path / "dst") == 0
    assert os.readlink(tmp_path / "dst/b") == "a"


def test_a_folder_that_became_a_link_is_pruned_and_not_what_it_leads_to(
    source: Path, tmp_path: Path, capsys: Shown
) -> None:
    write_image(source / "b/1.jpg", size=40)
    assert prepare(source, tmp_path / "dst") == 0
    (source / "b/1.jpg").unlink()
    (source / "b").rmdir()
    (source / "b").symlink_to("a")
    (tmp_path / "dst/b/1.jpg").unlink()
    (tmp_path / "dst/b").rmdir()  # by hand
    for flags in ((), ("--prune",)):
        assert prepare(source, tmp_path / "dst", *flags) == 0
        assert capsys.readouterr().err == ""
        assert sorted(tree(tmp_path / "dst")) == ["a/1.jpg"]
    assert os.readlink(tmp_path / "dst/b") == "a"


def test_pipes_and_links_to_them_are_no_images(source: Path, tmp_path: Path) -> None:
    """In processes of their own, which would wait for a writer for ever."""
    folder = make_folder(tmp_path / "set", train=2, val=1, size=24)
    for place in (source / "a", folder / "train/a"):
        os.mkfifo(place / "x.jpg")
        (place / "y.jpg").symlink_to("x.jpg")
    prepared = [str(ROOT / "scripts/prepare_folder.py"), str(source), str(tmp_path / "dst"), "--workers", "1"]
    checked = [str(ROOT / "train.py"), str(folder), "--check-data", "-j", "0"]
    for command, code in ((prepared, 0), (checked, 0)):
        done = subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=120, cwd=tmp_path)
        assert done.returncode == code
        assert "1 broken links, 1 special files" in done.stdout + done.stderr


def test_a_link_to_itself_is_left_out_everywhere(source: Path, tmp_path: Path, capsys: Shown) -> None:
    (source / "self").symlink_to("self")
    (source / "a/self.jpg").symlink_to("self.jpg")
    assert prepare(source, tmp_path / "dst") == 0
    assert capsys.readouterr().err == "left out: 2 broken links\n"
    assert sorted(tree(tmp_path / "dst")) == ["a/1.jpg"]
    (tmp_path / "loop").symlink_to("loop")
    assert "no folder" in refused(capsys, tmp_path / "loop", tmp_path / "other")
    assert "cannot prepare" in refused(capsys, source, tmp_path / "loop")
