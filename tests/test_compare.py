"""scripts/compare.py: arms, order, checks, verdicts and reports, with toy models trained in this process."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import toy_models
import yaml
from helpers import make_folder, refused

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "scripts"))

import compare  # noqa: E402
from ab import measuring, runner, settings  # noqa: E402
from ab.arms import Arm, changes_mathematics, check_resolved, parse_arms  # noqa: E402
from ab.results import compare_results  # noqa: E402
from ab.stats import RoundOf  # noqa: E402
from ab.verdict import judge  # noqa: E402

TINY = "-a toy_models:tiny --b 8 --synthetic-size 400 --image-size 32 --num-classes 4 --opt-level O0 --tensorboard false --cpu-heap default".split()
QUICK = ["--rounds", "2", "--steps", "4", "--timing-warmup-steps", "1", "--output-dir", "out"]


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """A start that runs train.main here, notes the flags and wraps the loader of the arms it is told."""
    import torch

    import train

    monkeypatch.chdir(tmp_path)
    threads = torch.get_num_threads()
    calls: list[list[str]] = []

    def run(flags: Sequence[str], log: Path) -> int:
        calls.append(list(flags))
        wrapper = next((wrap for arm, wrap in run.wrapped.items() if f"/{arm}" in flags[-1]), None)  # type: ignore[attr-defined]
        with open(log, "w") as stream, contextlib.redirect_stdout(stream), contextlib.redirect_stderr(stream):
            return train.main(flags, loader_wrapper=wrapper)

    run.calls, run.wrapped = calls, {}  # type: ignore[attr-defined]
    yield run
    torch.set_num_threads(threads)


def content(folder: str = "out") -> dict[str, Any]:
    return json.loads(Path(folder, "comparison.json").read_text())


def fake_run(arm: str, index: int, seconds: Sequence[float] = (0.1, 0.1, 0.1), **changes: Any) -> dict[str, Any]:
    """What a run of an arm leaves in comparison.json."""
    count = len(seconds)
    epoch = {"epoch": 0, "warmup_steps": 0, "seconds": list(seconds), "data_wait": [0.0] * count, "images": [8] * count}
    resolved = {"opt_level": "O0", "device": "cpu", "channels_last": arm != "a"}
    base = {"losses": [1.0, 0.9], "skipped_steps": 0, "peak_memory_gib": 1.0, "final": None, "resolved": resolved}
    return {"arm": arm, "round": index, "exit_code": 0, "epochs": [epoch], **base, **changes}


def judged(runs: list[dict[str, Any]]) -> Any:
    (found,) = judge({"arms": [{"name": "a"}, {"name": "b"}], "runs": runs, "settings": {"nproc_per_node": 1}})
    return found


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
    flags = "-a resnet18 --b 8 --image-size 32 --num-classes 4 --opt-level O0 --tensorboard false".split()
    command = [sys.executable, str(ROOT / "scripts/compare.py"), "--rounds", "2", "--steps", "5", "--timing-warmup-steps", "2",
               "--arm", "one:", "--arm", "two:", "--output-dir", str(tmp_path / "out"), "--", *flags]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, cwd=tmp_path)
    assert done.returncode == 0, done.stderr + done.stdout
    assert "different" not in done.stdout.splitlines()[-1]
    assert content(str(tmp_path / "out"))["verdicts"][0]["results"]["kind"] == "equal"


@pytest.mark.slow
def test_ctrl_c_stops_the_run_reports_and_resumes(tmp_path):
    command = [sys.executable, str(ROOT / "scripts/compare.py")]
    flags = [*TINY, "-a", "toy_models:sleepy"]
    env = {**os.environ, "PYTHONPATH": str(ROOT / "tests")}
    child = subprocess.Popen([*command, *QUICK, "--", *flags], cwd=tmp_path, env=env, stdout=subprocess.PIPE, text=True)
    path = tmp_path / "out" / "comparison.json"
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and not (path.exists() and json.loads(path.read_text())["runs"]):
        time.sleep(0.2)
    child.send_signal(signal.SIGINT)
    child.communicate(timeout=60)
    assert child.returncode == 130
    assert json.loads(path.read_text())["state"] == "interrupted"
    assert (tmp_path / "out" / "report.html").exists()


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


def test_a_failed_run_shows_its_last_lines_and_a_resume_goes_on(start, capsys, monkeypatch):
    real, failing = start, {"on": True}

    def flaky(flags: Sequence[str], log: Path) -> int:
        if failing["on"] and "channels_last/round-2" in flags[-1]:
            log.write_text("some lines\nRuntimeError: this arm is broken\n")
            return 1
        return real(flags, log)

    assert compare.main([*QUICK, "--", *TINY], flaky) == 1
    out = capsys.readouterr().out
    assert "RuntimeError: this arm is broken" in out
    assert content()["state"] == "failed"
    assert "this arm is broken" in Path("out/report.html").read_text()
    failing["on"], done = False, len(start.calls)
    assert compare.main(["--resume", "out"], flaky) == 0
    assert len(start.calls) - done == 2  # what had ended is not run again
    assert (content()["state"], len(content()["runs"])) == ("done", 4)
    assert "failure" not in content()


def test_an_interrupted_run_is_130_and_reported(start, capsys):
    def interrupted(flags: Sequence[str], log: Path) -> int:
        return 130 if "round-2" in flags[-1] else start(flags, log)

    assert compare.main([*QUICK, "--", *TINY], interrupted) == 130
    assert "--resume out" in capsys.readouterr().err
    assert content()["state"] == "interrupted"
    assert content()["verdicts"][0]["kind"] == "unstable"  # one round has no interval
    assert Path("out/report.html").exists()


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


def test_a_mistake_in_an_arms_flags_is_one_sentence(start, capsys):
    for argv, part in [
        (["--arm", "a: --nonsense", "--arm", "b:"], "arm a: unknown flag --nonsense"),
        (["--arm", "a:"], "2 to 8 arms"),
        (["--arm", "a:", "--arm", "a: --compile"], "two arms are called 'a'"),
        (["--arm", "no colon", "--arm", "b:"], "NAME: flags"),
        (["--arm", "a/b:", "--arm", "b:"], "name is made of"),
        (["--config", "nonsense"], "configs/ab/ holds"),
        (["--rounds", "0"], "--rounds must be at least 1"),
        (["--nonsense"], "--nonsense"),
        (["--from", "nothing.json"], "nothing.json"),
        (["--", "--output-dir", "x"], "--output-dir is set by the comparison"),
    ]:
        assert compare.main(argv, start) == 2
        error = capsys.readouterr().err
        assert part in error
        assert len(error.splitlines()) == 1
    assert start.calls == []


def test_help_needs_no_torch():
    code = "import sys; sys.argv = ['compare.py', '--help']; import runpy\ntry: runpy.run_path('scripts/compare.py', run_name='__main__')\nexcept SystemExit as end: assert end.code == 0\nassert 'torch' not in sys.modules and 'matplotlib' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "--arm" in done.stdout


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


def test_what_changes_the_mathematics():
    base = {"batch_size": 8, "channels_last": False, "sync_bn": False, "workers": 1}
    assert changes_mathematics(base, {**base, "channels_last": True, "workers": 2}) == []
    assert changes_mathematics(base, {**base, "batch_size": 16}) == ["batch_size"]
    assert changes_mathematics(base, {**base, "sync_bn": True}) == []
    assert changes_mathematics(base, {**base, "sync_bn": True}, processes=2) == ["sync_bn"]


@pytest.mark.parametrize(
    ("level", "losses", "skipped", "kind"),
    [
        ("O0", [1.0, 1.0], 0, "equal"),
        ("O0", [1.00005, 1.0005], 0, "equal"),
        ("O0", [1.0003, 1.0], 0, "different"),
        ("O0", [1.0, 1.003], 0, "different"),
        ("O2", [1.01, 1.1], 0, "equal"),
        ("O2", [1.03, 1.0], 0, "different"),
        ("O2", [1.0, 9.0], 2, "not comparable"),
        ("O2", [1.03, 1.0], 2, "different"),
        ("O0", [None, 1.0], 0, "different"),
    ],
)
def test_losses_against_the_tolerance_of_the_coarser_arm(level, losses, skipped, kind):
    one = fake_run("a", 0, losses=[1.0, 1.0])
    other = fake_run("b", 0, losses=losses, skipped_steps=skipped)
    other["resolved"]["opt_level"] = level
    assert compare_results([one], [other]).kind == kind


def test_another_batch_size_is_not_applicable_and_never_exit_3():
    one, other = fake_run("a", 0), fake_run("b", 0, losses=[7.0])
    one["resolved"]["batch_size"], other["resolved"]["batch_size"] = 8, 16
    assert compare_results([one], [other]).kind == "not applicable"


def rounds_of(second: Sequence[float], **changes: Any) -> list[dict[str, Any]]:
    return [run for index, seconds in enumerate(second)
            for run in (fake_run("a", index), fake_run("b", index, [seconds] * 3, **changes))]  # fmt: skip


@pytest.mark.parametrize(
    ("second", "kind", "part"),
    [
        ([0.08, 0.081, 0.0805, 0.08], "faster", "faster than a by 1.2"),
        ([0.11, 0.1101, 0.1099, 0.11], "slower", "slower than a by 1.100 x"),
        ([0.1, 0.101, 0.099, 0.1], "no difference", "would have been found 4 times in 5"),
        ([0.08, 0.12, 0.07, 0.15], "unstable", "run more rounds"),
        ([0.08], "unstable", "single round"),
    ],
)
def test_verdicts(second, kind, part):
    found = judged(rounds_of(second))
    assert found.kind == kind
    assert part in found.sentence


def test_the_first_line_of_several_kinds_is_the_one_that_matters_most():
    slow_data = rounds_of([0.05, 0.05, 0.05])
    for run in slow_data:
        run["epochs"][0]["data_wait"] = [0.4 * second for second in run["epochs"][0]["seconds"]]
    assert judged(slow_data).kind == "input-bound"
    for run in slow_data:
        run["losses"] = [1.0] if run["arm"] == "a" else [2.0]
    assert judged(slow_data).kind == "different results"


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
