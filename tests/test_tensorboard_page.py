"""TensorBoard's own page, in a real browser, shows what a run writes."""

from __future__ import annotations

import importlib.util
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator

import browser
import numpy as np
import pytest
from PIL import Image

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(browser.path() is None, reason="no chromium on PATH (Debian: apt-get install chromium)"),
    pytest.mark.skipif(importlib.util.find_spec("tensorboard") is None, reason="tensorboard is not installed"),
]
# Words each tab must show: our tags, names of settings, what the run wrote.
TABS = {
    "timeseries": ("epoch", "/images_per_sec", "train", "val"),
    "images": ("images/train", "images/worst_val_errors", "images/confusion"),
    "text": ("config", "toy_models:tiny"),
    "hparams": ("channels_last", "hparam/best_val_acc1", "hparam/images_per_sec"),
    "custom_scalars": ("speed (images a second)", "data wait (share of the time)"),
    "histograms": ("train/grad_norm_of_epoch",),
}


@pytest.fixture
def page(run, tmp_path) -> Iterator[tuple[browser.Browser, str]]:
    """A browser and the address of a TensorBoard that shows two runs which differ in one setting."""
    for value in ("true", "false"):
        folder = f"runs/channels_last_{value}"
        assert run("--output-dir", folder, "--tensorboard", "true", "--channels-last", value, "--epochs", 2) == 0
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", "runs", "--host", "127.0.0.1", "--port", str(port)]
    server = subprocess.Popen(
        [*command, "--load_fast", "false"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=os.environ
    )
    chromium = None
    try:
        address = f"http://127.0.0.1:{port}/"
        wait_until_read(address + "data/runs", "channels_last_false")
        chromium = browser.Browser(tmp_path / "profile")
        yield chromium, address
    finally:
        if chromium is not None:
            chromium.close()
        server.terminate()
        server.wait(timeout=10)


def wait_until_read(address: str, word: str) -> None:
    end = time.monotonic() + 60
    while time.monotonic() < end:
        try:
            with urllib.request.urlopen(address, timeout=5) as answer:
                if word in answer.read().decode():
                    return
        except (urllib.error.URLError, OSError):
            pass
        time.sleep(0.3)
    raise AssertionError(f"TensorBoard's server does not tell of {word}")


def test_every_tab_shows_our_data(page, tmp_path):
    chromium, address = page
    for tab, words in TABS.items():
        chromium.open(f"{address}#{tab}")
        chromium.wait_for_text(*words)
        picture = tmp_path / f"{tab}.png"
        chromium.screenshot(picture)
        assert len(np.unique(np.asarray(Image.open(picture).convert("L")))) > 10, f"{tab} is blank"
