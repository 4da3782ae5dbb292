"""scripts/compare.py: arms, order, checks, verdicts and reports, with toy models trained in this process."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import toy_models
import yaml
from comparisons import QUICK, ROOT, TINY, content
from helpers import make_folder, refused

import compare  # isort: skip
from ab import measuring, runner, settings  # isort: skip
from ab.arms import Arm, check_resolved, parse_arms  # isort: skip
from ab.stats import RoundOf  # isort: skip
from trainer.cli import parse  # isort: skip


def test_the_tutorials_comparison_in_one_command(start, capsys):
    """Two arms, the same but for the format; verdict last; every promised file."""
    assert compare.main([*QUICK, "--", *TINY], start) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[-1].startswith("verdict: channels_last: ")
    assert "results: losses of the first 5 steps" in out
    record = content()
    assert [(run["arm"], run["round"]) for run in record["runs"]] == [
        ("contiguous", 0), ("channels_last", 0), ("channels_last", 1), ("contiguous", 1)
    ]  # fmt: skip
    first, second = (
        yaml.safe_load(Path(f"out/runs/{arm}/round-1/config.yaml").read_text())
        for arm in ("contiguous", "channels_last")
    )
    assert {key for key in first if first[key] != second[key]} == {"channels_last"}
    for name in (
        "report.md",
        "report.html",
        "ratio.png",
        "speed.png",
        "step_times.png",
        "losses.png",
        "wait_and_memory.png",
    ):
        assert Path("out", name).stat().st_size > 500
    assert len(record["runs"][0]["epochs"][0]["seconds"]) == 5
    assert not list(Path("out").rglob("*.pt"))
    page = Path("out/report.html").read_text()
    assert 'class="verdict' in page
    assert re.findall(r"https?://", page) == []


def test_a_comparison_is_judged_and_drawn_again_without_a_run(start, capsys):
    assert compare.main([*QUICK, "--", *TINY], start) == 0
    before, runs = capsys.readouterr().out.splitlines()[-1], len(start.calls)
    assert compare.main(["--from", "out/comparison.json", "--output-dir", "again"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == before
    assert len(start.calls) == runs
    assert Path("again/report.html").exists()


def test_a_verdict_that_nobody_reads_is_written_all_the_same(start):
    assert compare.main([*QUICK, "--no-plots", "--", *TINY], start) == 0
    for sink in (">/dev/full", "| true"):
        command = f"set -o pipefail; {sys.executable} {ROOT}/scripts/compare.py --from out/comparison.json --output-dir again --no-plots {sink}"
        done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=100, check=False)
        assert (done.returncode, done.stderr) == (0, "")
        assert Path("again/report.html").exists()
        shutil.rmtree("again")


def test_a_wrong_op_is_different_results_and_exit_3(start, capsys):
    flags = [*TINY, "-a", "toy_models:wrong_in_channels_last"]
    assert compare.main([*QUICK, "--", *flags], start) == 3
    assert "different results" in capsys.readouterr().out.splitlines()[-1]
    assert content()["verdicts"][0]["kind"] == "different results"


class SlowLoader:
    """Makes the loop wait for every batch."""

    def __init__(self, loader: Any) -> None:
        self.loader, self.sampler, self.steps_in_epoch = loader, loader.sampler, loader.steps_in_epoch

    def epoch(self, epoch: int, consumed: int = 0) -> Any:
        plans, batches = self.loader.epoch(epoch, consumed)

        def slowly() -> Any:
            for batch in batches:
                time.sleep(0.1)
                yield batch

        return plans, slowly()


def test_a_loader_that_sleeps_is_input_bound(start, capsys):
    start.wrapped["channels_last"] = SlowLoader
    assert compare.main([*QUICK, "--", *TINY], start) == 0
    assert "input-bound: channels_last waits for data" in capsys.readouterr().out.splitlines()[-1]


def test_a_tenth_more_time_a_step_is_slower_by_1_10(start, monkeypatch):
    """On a clock that only the model moves, with the noise of a good machine: what the verdict says must not
    depend on what else runs here."""
    monkeypatch.setattr("trainer.timing.time", toy_models.MovedClock)
    arms = ["--arm", "plain: -a toy_models:on_the_clock", "--arm", "tenth: -a toy_models:slower_on_the_clock"]
    options = ["--rounds", "5", "--steps", "15", "--timing-warmup-steps", "3", "--output-dir", "out"]
    assert compare.main([*options, *arms, "--", *TINY], start) == 0
    (found,) = content()["verdicts"]
    assert found["kind"] == "slower"
    assert 1 / found["ratio"]["high"] <= 1.10 <= 1 / found["ratio"]["low"]
    assert found["results"]["kind"] == "not applicable"  # another arch was named


@pytest.mark.slow
def test_equal_arms_in_real_processes_show_no_difference(tmp_path):
    """Chance alone finds a difference once in twenty, so a second comparison may take it back."""
    flags = "-a resnet18 --b 8 --image-size 32 --num-classes 4 --opt-level O0 --tensorboard false --synthetic-size 400".split()
    command = [sys.executable, str(ROOT / "scripts/compare.py"), "--rounds", "3", "--steps", "12", "--timing-warmup-steps", "3",
               "--no-plots", "--arm", "one:", "--arm", "two:"]  # fmt: skip
    kinds = []
    for attempt in ("first", "second"):
        out = str(tmp_path / attempt)
        done = subprocess.run(
            [*command, "--output-dir", out, "--", *flags], capture_output=True, text=True, timeout=280
        )
        assert done.returncode == 0, done.stderr + done.stdout
        (found,) = content(out)["verdicts"]
        assert found["results"]["kind"] == "equal"
        kinds.append(found["kind"])
        if kinds[-1] not in ("faster", "slower"):
            break
    # A machine that is busy with something else may be too unsteady for a verdict.
    assert kinds[-1] in ("no difference", "unstable")


@pytest.mark.parametrize("source", ["synthetic", "folder"])
def test_the_o2_config_ends_with_a_verdict(start, monkeypatch, capsys, source):
    """configs/ab/resnet50_o2 at a tiny size: both arms O2, and apart in channels_last alone."""
    monkeypatch.setattr(settings, "has_cuda", lambda: False)
    monkeypatch.setattr(settings, "fast_bfloat16", lambda: True)
    data = (
        [str(make_folder(Path("images"), train=20, val=4))]
        if source == "folder"
        else ["--synthetic-size", "400", "--num-classes", "4"]
    )
    flags = [
        "-a",
        "toy_models:tiny",
        "--b",
        "8",
        "--image-size",
        "32",
        "--workers",
        "0",
        "--cpu-heap",
        "default",
        "--tensorboard",
        "false",
    ]
    assert compare.main(["--config", "resnet50_o2", *QUICK, "--", *flags, *data], start) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("verdict: channels_last: ")
    first, second = (
        yaml.safe_load(Path(f"out/runs/{arm}/round-1/config.yaml").read_text())
        for arm in ("contiguous", "channels_last")
    )
    assert first["opt_level"] == second["opt_level"] == "O2"
    assert {key for key in first if first[key] != second[key]} == {"channels_last"}
    assert first["amp_dtype"] == "bfloat16"


def test_the_o2_config_names_another_where_half_is_slow(start, monkeypatch, capsys):
    monkeypatch.setattr(settings, "has_cuda", lambda: False)
    monkeypatch.setattr(settings, "fast_bfloat16", lambda: False)
    assert compare.main(["--config", "resnet50_o2", *QUICK], start) == 2
    error = capsys.readouterr().err
    assert "resnet50_cpu" in error
    assert len(error.splitlines()) == 1
    assert start.calls == []


@pytest.mark.parametrize("path", sorted((ROOT / "configs" / "ab").glob("*.yaml")), ids=lambda path: path.stem)
def test_named_comparisons_can_be_parsed(path, monkeypatch):
    monkeypatch.setattr(settings, "has_cuda", lambda: True)
    asked = settings.read_settings(settings.build_parser().parse_args(["--config", path.stem]), [])
    arms = parse_arms(asked.arms, asked.common)
    assert 2 <= len(arms) <= 8
    assert asked.title
    # With a larger one rounding grows past the tolerance of the losses within five steps.
    assert parse(asked.common).config.lr == 0.0001


def test_too_long_is_refused_with_a_command_that_fits(start, capsys):
    assert compare.main(["--max-minutes", "0.00001", *QUICK, "--", *TINY], start) == 2
    error = capsys.readouterr().err
    command = error.split("compare.py ")[1].strip()
    assert len(start.calls) == 2  # the probes
    import shlex

    assert compare.main(shlex.split(command), start) == 0


def test_fewer_rounds_are_offered_where_three_fit(start):
    given = measuring.new_content(
        settings.Settings(rounds=10), [], ["--rounds", "10", "--config=x"], ["-a", "resnet18"]
    )
    told = runner.Runner(Path("."), given, start).too_long(60 * 60)
    assert told.endswith("python scripts/compare.py --config=x --rounds 5 -- -a resnet18")


def test_arms_name_their_settings_and_may_differ_in_nothing_else():
    first, second = parse_arms(["a: --opt-level O0", "b: --amp"], ["-a", "resnet18"])
    assert first.named == second.named == ("opt_level",)
    level = {"opt_level": "O1", "loss_scale": "dynamic", "amp_dtype": "float16", "workers": 2}
    check_resolved([first, second], [{**level, "opt_level": "O0"}, level])
    told = refused(check_resolved, [first, second], [{**level, "workers": 1}, level])
    assert "--workers (1 and 2), which no arm names" in told


def test_everyone_goes_first_equally_often():
    arms = [Arm(name, (), ()) for name in "ab"]
    rounds = ["".join(arm.name for arm in measuring.order(arms, index)) for index in range(4)]
    assert rounds == ["ab", "ba", "ba", "ab"]
    three = [Arm(name, (), ()) for name in "abc"]
    assert len({"".join(arm.name for arm in measuring.order(three, index)) for index in range(6)}) == 6


def test_a_rounds_rate_is_that_of_the_median_step():
    assert RoundOf([0.1, 0.1, 5.0], 8).rate == pytest.approx(80)


def test_tensorboard_gets_a_layout_of_all_arms(start):
    event_accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    assert compare.main([*QUICK, "--", *TINY, "--tensorboard", "true"], start) == 0
    board = event_accumulator.EventAccumulator("out").Reload()
    assert "custom_scalars__config__" in board.Tags()["tensors"]
    for arm in ("contiguous", "channels_last"):
        run = event_accumulator.EventAccumulator(f"out/runs/{arm}/round-1").Reload()
        assert "train/loss" in run.Tags()["scalars"]


def test_the_report_in_a_browser(start, tmp_path):
    """Headless, with a profile of its own: all pictures decoded, the verdict on the page, nothing asked for outside."""
    browser = shutil.which("chromium") or shutil.which("chromium-browser")
    if browser is None:
        pytest.skip("no chromium on PATH (Debian: apt-get install chromium)")
    assert compare.main([*QUICK, "--", *TINY], start) == 0
    page = Path("out/report.html").read_text()
    assert re.findall(r"(?:https?:)?//[a-z]", re.sub(r"base64,[A-Za-z0-9+/=]+", "", page)) == []
    script = "<script>onload=()=>{document.body.dataset.pictures=[...document.images].filter(i=>i.naturalWidth>100).length}</script>"
    Path("out/checked.html").write_text(page.replace("</body>", script + "</body>"))
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}",
               "--virtual-time-budget=5000", "--dump-dom", (tmp_path / "out/checked.html").as_uri()]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert 'data-pictures="5"' in done.stdout
    assert content()["verdicts"][0]["sentence"].split(":")[0] in done.stdout
    assert done.stdout.index("channels_last: ") < done.stdout.index("<table")
