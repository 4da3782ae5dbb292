"""scripts/sweep.py with toy models: rows, reruns, failures, time, interrupts, the table."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import toy_models
from comparisons import ROOT  # puts scripts/ on the path

import compare  # isort: skip
import sweep  # isort: skip
from ab import sweep_plan, together  # isort: skip

FLAGS = "--b 8 --synthetic-size 64 --image-size 32 --num-classes 4 --opt-level O0".split()
OPTIONS = "--in-process --rounds 2 --steps 2 --timing-warmup-steps 1 --output-dir out".split()
HEAPS = ["--setting", "default: --cpu-heap default", "--setting", "half: --cpu-heap default --opt-level O2"]


@pytest.fixture
def measure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., int]]:
    """Runs comparisons here, on a clock that only the model moves, and notes the models."""
    import torch

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("trainer.timing.time", toy_models.MovedClock)
    monkeypatch.setattr(toy_models.OnTheClock, "forward", _forward)
    threads = torch.get_num_threads()

    def run(words: Sequence[str], log: Path) -> int:
        run.models.append(words[-1])  # type: ignore[attr-defined]
        with open(log, "w") as stream, contextlib.redirect_stdout(stream), contextlib.redirect_stderr(stream):
            return compare.main(words)

    run.models = []  # type: ignore[attr-defined]
    yield run
    torch.set_num_threads(threads)


def _forward(self: Any, images: Any) -> Any:
    """In channels-last a pass takes 4/5 of its time, in training as in evaluation."""
    import torch

    faster = images.is_contiguous(memory_format=torch.channels_last)
    toy_models.MovedClock.now += self.seconds * (0.8 if faster else 1.0)
    return toy_models.Tiny.forward(self, images)


def record() -> dict[str, Any]:
    return json.loads(Path("out/sweep.json").read_text())


CLOCK = "toy_models:on_the_clock"


def test_a_row_for_each_model_mode_and_setting(measure, capsys):
    models = f"{CLOCK},toy_models:slower_on_the_clock"
    words = ["--models", models, "--mode", "both", *OPTIONS, *HEAPS, "--table", "docs/cpu.md", "--", *FLAGS]
    assert sweep.main(words, measure) == 0
    rows = record()["rows"]
    assert {(row["model"], row["mode"], row["setting"]) for row in rows} == {
        (model, mode, name) for model in models.split(",") for mode in ("train", "inference") for name in ("default", "half")
    }  # fmt: skip
    assert {row["kind"] for row in rows} == {"faster"}
    assert {round(row["value"], 3) for row in rows} == {1.25}
    assert "1.25" in capsys.readouterr().out
    for path in (Path("out/sweep.md"), Path("docs/cpu.md")):
        text = path.read_text()
        assert f"| {CLOCK} | half | 1.25 | 1.25 to 1.25 | faster | 80.00 | 100.00 |" in text
        assert "## Not run" not in text
        assert "Setting half: `--cpu-heap default --opt-level O2`" in text
        assert "8 to 35 %" in text
        assert "26 to 76 %" in text
        assert "cores" in text
        assert f"    python scripts/sweep.py --models {models}" in text
        for mode in ("train", "inference"):
            assert path.with_name(f"{path.stem}_{mode}.png").stat().st_size > 5000


def test_a_rerun_skips_what_is_measured_and_adds_what_is_new(measure):
    assert sweep.main(["--models", CLOCK, *OPTIONS, *HEAPS[:2], "--", *FLAGS], measure) == 0
    assert (
        sweep.main(["--models", f"{CLOCK},toy_models:slower_on_the_clock", *OPTIONS, *HEAPS[:2], "--", *FLAGS], measure)
        == 0
    )
    assert measure.models == [CLOCK, "toy_models:slower_on_the_clock"]
    assert sweep.main(["--models", CLOCK, *OPTIONS, *HEAPS[2:], "--", *FLAGS], measure) == 0
    found = record()
    assert [(row["model"], row["setting"]) for row in found["rows"]] == [
        (CLOCK, "default"), ("toy_models:slower_on_the_clock", "default"), (CLOCK, "half"),
    ]  # fmt: skip
    assert len(found["commands"]) == 3


def test_another_question_takes_another_folder(measure, capsys):
    assert sweep.main(["--models", CLOCK, *OPTIONS, *HEAPS[:2], "--", *FLAGS], measure) == 0
    for words, part in [
        (["--models", CLOCK, *OPTIONS, "--steps", "3", *HEAPS[:2], "--", *FLAGS], "take another --output-dir"),
        (["--models", CLOCK, *OPTIONS, *HEAPS[:2], "--", *FLAGS, "--lr", "1"], "take another --output-dir"),
        (["--models", CLOCK, *OPTIONS, "--setting", "default: --opt-level O1", "--", *FLAGS], "give it another name"),
    ]:
        assert sweep.main(words, measure) == 2
        assert part in capsys.readouterr().err


def test_a_failing_model_is_recorded_and_the_sweep_goes_on(measure, capsys):
    models = f"toy_models:broken,nonsense,{CLOCK}"
    assert sweep.main(["--models", models, *OPTIONS, *HEAPS[:2], "--", *FLAGS], measure) == 1
    reasons = {row["model"]: row["reason"] for row in record()["rows"]}
    assert reasons["toy_models:broken"] == "RuntimeError: this model is broken"
    assert "no architecture 'nonsense'" in reasons["nonsense"]
    assert reasons[CLOCK] is None
    assert "- toy_models:broken, train, default: RuntimeError: this model is broken" in Path("out/sweep.md").read_text()


def test_a_model_that_is_killed_is_a_failure(measure):
    assert sweep.main(["--models", CLOCK, *OPTIONS, "--", *FLAGS], lambda words, log: -9) == 1
    assert record()["rows"][0]["reason"].startswith("ended by signal 9")


def test_different_results_are_exit_3_and_stand_in_the_table(measure):
    models = f"toy_models:wrong_in_channels_last,{CLOCK}"
    assert sweep.main(["--models", models, "--mode", "inference", *OPTIONS, "--", *FLAGS], _clocked(measure)) == 3
    assert {row["kind"] for row in record()["rows"]} == {"different results", "faster"}
    assert "## Different results" in Path("out/sweep.md").read_text()
    # Nothing is left to run, and the answer is the same.
    assert sweep.main(["--models", models, "--mode", "inference", *OPTIONS, "--", *FLAGS], measure) == 3
    assert sweep.main(["--from", "out"]) == 3


def _clocked(measure: Callable[..., int]) -> Callable[..., int]:
    """The clock moves with models that do not move it."""

    def run(words: Sequence[str], log: Path) -> int:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(toy_models.MovedClock, "perf_counter", classmethod(_ticking))
            return measure(words, log) if "wrong" in words[-1] else _plain(measure, words, log)

    return run


def _ticking(cls: Any) -> float:
    cls.now += 0.1
    return cls.now


def _plain(measure: Callable[..., int], words: Sequence[str], log: Path) -> int:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(toy_models.MovedClock, "perf_counter", classmethod(lambda cls: cls.now))
        return measure(words, log)


def test_what_would_pass_max_minutes_is_not_begun_and_listed(measure, monkeypatch, capsys):
    """The first tells what the second takes; on a clock of its own, of which each comparison takes 40 seconds."""
    monkeypatch.setattr(sweep, "time", toy_models.MovedClock)

    def slowly(words: Sequence[str], log: Path) -> int:
        code = measure(words, log)
        toy_models.MovedClock.now += 40
        return code

    words = [
        "--models",
        f"{CLOCK},toy_models:slower_on_the_clock",
        *OPTIONS,
        *HEAPS[:2],
        "--max-minutes",
        "1",
        "--",
        *FLAGS,
    ]
    assert sweep.main(words, slowly) == 0
    assert measure.models == [CLOCK]
    assert "not run: about 40" in capsys.readouterr().out
    assert Path("out/sweep.md").read_text().endswith("## Not run\n\n- train, default: toy_models:slower_on_the_clock\n")
    assert sweep.main(words, slowly) == 0  # a rerun adds the rest
    assert measure.models == [CLOCK, "toy_models:slower_on_the_clock"]


def test_larger_models_come_later_and_are_expected_to_take_longer():
    plan = sweep_plan.Plan(["vgg19", "resnet18", "alexnet"], ["train"], {"a": "", "b": ""}, {}, [])
    work = sweep_plan.work_of(plan.models)
    keys = plan.keys(work)
    assert [key[0] for key in keys] == ["alexnet", "alexnet", "resnet18", "resnet18", "vgg19", "vgg19"]
    done = {("alexnet", "train", "a"): 10.0, ("alexnet", "train", "b"): 20.0}
    assert sweep_plan.expected_seconds(keys[4], done, work) == pytest.approx(
        10 * (1 + work["vgg19"]) / (1 + work["alexnet"])
    )
    assert sweep_plan.expected_seconds(keys[5], done, work) == pytest.approx(
        2 * sweep_plan.expected_seconds(keys[4], done, work)
    )
    assert sweep_plan.expected_seconds(keys[0], {}, work) == 0


def test_an_interrupt_reports_what_was_measured(measure):
    def interrupted(words: Sequence[str], log: Path) -> int:
        return measure(words, log) if words[-1] == CLOCK else 130

    words = ["--models", f"{CLOCK},toy_models:slower_on_the_clock", *OPTIONS, *HEAPS[:2], "--", *FLAGS]
    assert sweep.main(words, interrupted) == 130
    text = Path("out/sweep.md").read_text()
    assert f"| {CLOCK} | default | 1.25 |" in text
    assert "- train, default: toy_models:slower_on_the_clock" in text
    assert sweep.main(words, measure) == 0
    assert [row["state"] for row in record()["rows"]] == ["measured", "measured"]


def test_an_interrupted_comparison_keeps_its_rounds(measure, monkeypatch):
    words = ["--models", CLOCK, *OPTIONS, *HEAPS[:2], "--", *FLAGS]
    keep, kept = together.Together._keep, []

    def interrupted(self: Any, arms: Any, index: int) -> None:
        keep(self, arms, index)
        kept.append(index)
        if kept == [0]:
            raise KeyboardInterrupt

    monkeypatch.setattr(together.Together, "_keep", interrupted)
    assert sweep.main(words, measure) == 130
    assert sweep.main(words, measure) == 0
    assert kept == [0, 1]
    assert record()["rows"][0]["kind"] == "faster"


def test_tables_are_written_again_from_several_folders(measure):
    assert sweep.main(["--models", CLOCK, *OPTIONS, *HEAPS[:2], "--", *FLAGS], measure) == 0
    other = [word if word != "out" else "other" for word in OPTIONS]
    assert sweep.main(["--models", CLOCK, "--mode", "inference", *other, *HEAPS[2:], "--", *FLAGS], measure) == 0
    assert sweep.main(["--from", "out", "other", "--table", "cpu.md"]) == 0
    assert len(measure.models) == 2
    text = Path("cpu.md").read_text()
    assert text.index("## Training") < text.index(f"| {CLOCK} | default |") < text.index("## Inference")
    assert f"| {CLOCK} | half |" in text


def test_a_later_sweep_takes_the_place_of_an_earlier_ones_row(measure):
    for folder, flags in (("out", FLAGS), ("other", [*FLAGS, "--lr", "0.001"])):
        words = [word if word != "out" else folder for word in OPTIONS]
        assert sweep.main(["--models", CLOCK, *words, *HEAPS[:2], "--", *flags], measure) == 0
    assert sweep.main(["--from", "out", "other", "--table", "cpu.md"]) == 0
    text = Path("cpu.md").read_text()
    assert text.count(f"| {CLOCK} | default |") == 1
    assert text.count("- Flags: ") == 2
    assert "| train | default | 1 |" in text


def test_mistakes_are_one_sentence(measure, capsys):
    for words, part in [
        ([], "--models tutorial-gpu"),
        (["--models", ","], "names no model"),
        (["--models", CLOCK, "--mode", "inference"], "needs --in-process"),
        (["--models", CLOCK, "--setting", "nocolon"], "--setting takes 'NAME: flags'"),
        (["--models", CLOCK, "--setting", "a:", "--setting", "a: --compile"], "same name"),
        (["--models", CLOCK, "--", "--cpu-heap", "hugepages"], "hugepages"),
        (["--models", CLOCK, "--", "-b", "eight"], "eight"),
        (["--models", CLOCK, "--setting", "a: --opt-level O7"], "O7"),
        (["--models", CLOCK, "--rounds", "0"], "--rounds must be at least"),
        (["--from", "nothing"], "sweep.json"),
        (["--nonsense"], "--nonsense"),
    ]:
        assert sweep.main(words, measure) == 2
        error = capsys.readouterr().err
        assert part in error
        assert len(error.splitlines()) == 1
    assert measure.models == []


def test_the_lists_are_the_tutorials_and_torchvision_knows_them():
    from torchvision import models

    known = set(models.list_models(module=models))
    assert (len(sweep_plan.TUTORIAL_GPU), len(sweep_plan.TUTORIAL_CPU)) == (28, 29)
    assert known.issuperset(sweep_plan.TUTORIAL_GPU + sweep_plan.TUTORIAL_CPU)
    assert set(sweep_plan.model_names("all")) == known


def test_help_needs_no_torch():
    code = "import sys; sys.argv = ['sweep.py', '--help']; import runpy\ntry: runpy.run_path('scripts/sweep.py', run_name='__main__')\nexcept SystemExit as end: assert end.code == 0\nassert 'torch' not in sys.modules and 'matplotlib' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "--max-minutes" in done.stdout


@pytest.mark.slow
def test_ctrl_c_ends_the_child_and_reports(tmp_path):
    """Real children of the fork server: the first model is measured, the second never ends by itself."""
    env = {**os.environ, "PYTHONPATH": str(ROOT / "tests")}
    options = [*OPTIONS[:-4], "--timing-warmup-steps", "1", "--output-dir", "out"]
    command = [sys.executable, str(ROOT / "scripts/sweep.py"), "--models", "toy_models:plain,toy_models:sleepy", *options,
               "--steps", "20000", "--seconds-per-run", "1", "--", *FLAGS, "--cpu-heap", "default"]  # fmt: skip
    child = subprocess.Popen(command, cwd=tmp_path, env=env, stdout=subprocess.PIPE, text=True)
    log = tmp_path / "out/train/default/toy_models_sleepy/log.txt"
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and not (log.exists() and "expected" in log.read_text()):
        time.sleep(0.1)
    child.send_signal(signal.SIGINT)
    out, _ = child.communicate(timeout=60)
    assert child.returncode == 130, out
    states = [row["state"] for row in json.loads((tmp_path / "out/sweep.json").read_text())["rows"]]
    assert states == ["measured", "interrupted"]
    assert "toy_models:sleepy" in (tmp_path / "out/sweep.md").read_text()
