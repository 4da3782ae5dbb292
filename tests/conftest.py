"""Shared by all tests: toy models on the import path, runs inside the test's own folder."""

from __future__ import annotations

import contextlib
import signal
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
sys.path.insert(0, str(TESTS))
pytest.register_assert_rewrite("helpers", "shard_cases")


@pytest.fixture(scope="session", autouse=True)
def _own_cache_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Nothing a test lists is kept in the cache folder of whoever runs it; processes that a test starts inherit this."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session", autouse=True)
def _signals_count() -> None:
    """Tests that are started under nohup hear SIGHUP all the same, and those in a shell's background SIGINT."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if hasattr(signal, "SIGHUP"):
        signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., int]]:
    """``train.main`` in this process, in ``tmp_path``: a small run on made-up images unless told otherwise."""
    import torch

    import train

    monkeypatch.chdir(tmp_path)
    threads = torch.get_num_threads()

    def start(*flags: object, base: str | None = SMALL) -> int:
        return train.main([*(base or "").split(), *(str(flag) for flag in flags)])

    yield start
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(False)


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., int]]:
    """A start for compare.py that runs train.main here, notes the flags and wraps the loader of the arms it is told."""
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


@pytest.fixture
def eight_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """On whatever machine the test runs."""
    for module in ("environment", "resolve"):
        monkeypatch.setattr(f"trainer.{module}.usable_cores", lambda: 8)


@pytest.fixture
def no_warning() -> Iterator[None]:
    """Any warning is an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


@pytest.fixture(params=["simplejpeg", "pillow alone"])
def either(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """With simplejpeg and without it."""
    if request.param == "pillow alone":
        monkeypatch.setattr("data.decode.simplejpeg", None)
    return request.param


@pytest.fixture
def unique_names(folder: Path) -> Path:
    """The test's own ``folder``, in which no file of val has the name of one of train."""
    from helpers import rename_val

    return rename_val(folder)


SMALL = "-a toy_models:tiny --b 8 --synthetic-size 32 --image-size 32 --num-classes 4 --tensorboard false --print-freq 1 --epochs 1"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """GPU tests skip themselves where there is none."""
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if marked:
        import torch

        if not torch.cuda.is_available():
            for item in marked:
                item.add_marker(pytest.mark.skip(reason="no CUDA device"))
