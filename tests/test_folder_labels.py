"""--val-labels for a val folder without class folders."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from helpers import make_folder, write_image

from data.folder import FolderError, FolderIndex, scan_data_dir

FILES = ("ILSVRC2012_val_00000001.JPEG", "ILSVRC2012_val_00000002.JPEG", "ILSVRC2012_val_00000003.JPEG")
STEMS = tuple(name.split(".")[0] for name in FILES)
RIGHT = [1, 0, 1]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = make_folder(tmp_path / "set", ("n01440764", "n01751748"), train=1, val=0, size=8)
    shutil.rmtree(made / "val", ignore_errors=True)
    for name in FILES:
        write_image(made / "val" / name, size=8)
    return made


@pytest.fixture
def listed(folder: Path):
    def scan(text: str | bytes, name: str = "val.txt") -> FolderIndex:
        file = folder.parent / name
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
        return scan_data_dir(str(folder), val_labels=str(file))[1]

    return scan


def sentence(scan, *arguments, **options) -> str:
    with pytest.raises(FolderError) as caught:
        scan(*arguments, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def rows(names=FILES, separator: str = ",", end: str = "\n") -> str:
    classes = ("n01751748", "n01440764", "n01751748")
    return "".join(f"{name}{separator}{label}{end}" for name, label in zip(names, classes, strict=True))


BOXES = "ImageId,PredictionString\n" + "".join(
    line.replace("\n", " 85 1 499 272 n01440764 1 1 2 2 \n") for line in rows(STEMS).splitlines(keepends=True)
)
LISTS = {
    "csv": rows(),
    "header": "file name,class\n" + rows(),
    "stems": rows(STEMS),
    "quoted": '"filename","label"\n' + "".join(f'"{line.replace(",", chr(34) + "," + chr(34))}"\n' for line in rows().split()),
    "spaces": rows(separator="  "),
    "tabs": "name\tclass\n" + rows(separator="\t"),
    "comma and space": rows(separator=", "),
    "windows": "\ufeff" + rows(end="\r\n"),
    "blank lines": "\n" + rows(end="\n\n"),
    "folders": rows(tuple(f"val/{name}" for name in FILES)),
    "backslashes": rows(tuple(f"val\\{name}" for name in FILES)),
    "more columns": "name,class,split\n" + rows(end=",val\n"),
    "boxes": BOXES,
    "twice the same": rows() + rows(),
    "any order": "\n".join(reversed(rows().splitlines())),
}  # fmt: skip


@pytest.mark.parametrize("kind", LISTS)
def test_a_list_gives_a_flat_val_folder_the_right_labels(listed, kind: str):
    """R15."""
    val = listed(LISTS[kind])
    assert val.labels.tolist() == RIGHT
    assert val.labels.dtype == "int32"
    assert tuple(val.paths) == FILES
    assert val.classes == ("n01440764", "n01751748")
    assert val.describe() == "3 images, 2 classes"


def test_classes_and_names_with_spaces_and_commas(tmp_path: Path):
    folder = make_folder(tmp_path / "set", ("great white", "tench, Tinca"), train=1, val=0, size=8)
    for name in ("my cat.jpg", "b.jpg"):
        write_image(folder / "val" / name, size=8)
    file = tmp_path / "list"
    file.write_text('my cat.jpg,great white\nb.jpg,"tench, Tinca"\n')
    assert scan_data_dir(str(folder), val_labels=str(file))[1].labels.tolist() == [1, 0]
    (folder / "val/my cat.jpg").unlink()
    file.write_text("b great white\n")
    assert scan_data_dir(str(folder), val_labels=str(file))[1].labels.tolist() == [0]


@pytest.mark.parametrize("separator", [" ", ",", "\t"])
def test_a_class_is_the_whole_name_not_its_first_word(tmp_path: Path, separator: str):
    """Only boxes may follow a class."""
    folder = make_folder(tmp_path / "set", ("cat", "cat burglar"), train=1, val=0, size=8)
    for name in ("a.jpg", "b.jpg"):
        write_image(folder / "val" / name, size=8)
    file = tmp_path / "list"
    file.write_text(f"a.jpg{separator}cat burglar\nb.jpg{separator}cat\n")
    assert scan_data_dir(str(folder), val_labels=str(file))[1].labels.tolist() == [1, 0]
    file.write_text(f"a.jpg{separator}cat burglar 1 2 30.5 40 cat burglar 1 2 3 4\nb.jpg{separator}cat\n")
    assert "'cat burglar 1 2 30.5 40 " in sentence(scan_data_dir, str(folder), val_labels=str(file))
    for other in ("cat food", "cat 7", "cat 1 2 3 x", "cat 1 2 3 4 5"):
        file.write_text(f"a.jpg{separator}{other}\nb.jpg{separator}cat\n")
        assert f"'{other} of a.jpg'" in sentence(scan_data_dir, str(folder), val_labels=str(file))
    file.write_text(f"a.jpg{separator}cat 1 2 3 4 cat 5 6 7 8\nb.jpg{separator}cat\n")
    assert scan_data_dir(str(folder), val_labels=str(file))[1].labels.tolist() == [0, 0]


def test_what_else_lies_in_a_flat_folder_is_counted(folder: Path, listed):
    for name in ("notes.txt", ".hidden.jpg", "._x.JPEG"):
        (folder / "val" / name).touch()
    write_image(folder / "val/more/x.jpg", size=8)
    val = listed(rows() + "gone.JPEG,n01440764\nalso_gone.JPEG,not_in_train\n")
    assert val.labels.tolist() == RIGHT
    assert val.ignored == {
        ".txt": 1, "hidden": 1, "AppleDouble": 1, "in folders": 1, "listed names without a file": 2,
    }  # fmt: skip


def test_a_class_that_train_has_not_is_refused_with_an_example(listed):
    """R15, R16: numbers are no class names."""
    message = sentence(listed, rows().replace("n01751748", "65"))
    assert "a class that train/ has not ('65 of ILSVRC2012_val_00000001.JPEG', " in message
    assert "such as 'n01440764'" in message


@pytest.mark.parametrize("name", [FILES[0], STEMS[0], f"val/{FILES[0]}"])
def test_a_first_line_about_an_image_is_no_header(listed, name: str):
    assert "'class of ILSVRC2012_val_00000001.JPEG'" in sentence(
        listed, f"{name},class\n" + rows()[len(FILES[0]) + 11 :]
    )


def test_images_without_a_line_are_refused_with_examples(listed):
    message = sentence(listed, rows().splitlines()[0])
    assert "no line for 2 of 3 images of " in message
    assert f"('{FILES[1]}', '{FILES[2]}')" in message


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", "holds no line"),
        ("name,class\n", "holds no line"),
        ("490\n361\n171\n", "line 1: '490' is no `file name,class`"),
        ("n01440764\nn01751748\n", "line 1: 'n01440764' is no `file name,class`"),
        (rows() + "x.jpg,\n", "line 4: 'x.jpg,' is no"),
        (rows() + f"{FILES[0]},n01440764\n", f"line 4: '{FILES[0]}' is of class 'n01440764' here and of class"),
        (rows().encode("utf-16"), "is no text file"),
        (b"PK\x03\x04\0\0", "is no text file"),
        ('a,b\n"' + "x" * 200_000 + ",y\n", "is no csv file"),
    ],
)  # fmt: skip
def test_a_file_that_is_no_list_is_one_sentence(listed, text: str | bytes, found: str):
    assert found in sentence(listed, text)


def test_a_list_that_is_not_there_is_one_sentence(folder: Path):
    assert "No such file" in sentence(scan_data_dir, str(folder), val_labels=str(folder / "none.csv"))
    assert "Is a directory" in sentence(scan_data_dir, str(folder), val_labels=str(folder))


def test_a_list_for_class_folders_or_for_nothing_is_refused(folder: Path, listed):
    for name in FILES:
        (folder / "val" / name).unlink()
    assert sentence(listed, rows()).endswith("which holds no image: move the images there")
    write_image(folder / "val/n01440764/x.jpg", size=8)
    assert sentence(listed, rows()).endswith("holds class folders ('n01440764'): drop --val-labels")


TINY = "-a toy_models:tiny -b 2 --image-size 8 --epochs 1 -j 0 --tensorboard false"


def test_a_run_on_a_flat_val_folder_resumes_from_elsewhere(folder: Path, run, tmp_path, monkeypatch, capsys):
    (tmp_path / "val.csv").write_text(rows())
    flags = f"{TINY} --output-dir {tmp_path}/out"
    assert run("set", "--val-labels", "val.csv", "--class-map", "map.json", base=flags) == 0
    assert json.loads((tmp_path / "map.json").read_text()) == ["n01440764", "n01751748"]
    (tmp_path / "else").mkdir()
    monkeypatch.chdir(tmp_path / "else")
    capsys.readouterr()
    assert run("--resume", f"{tmp_path}/out", "--epochs", "2", "--rescan", base="-j 0 --tensorboard false") == 0
    said = capsys.readouterr().out
    assert "val 3 images, 2 classes" in said
    assert "--val-labels:" not in said


@pytest.mark.parametrize("flag", ["--val-labels", "--class-map"])
def test_a_flag_about_images_needs_a_dir(run, capsys, flag: str):
    assert run(flag, "file") == 2
    assert f"error: {flag} " in capsys.readouterr().err
