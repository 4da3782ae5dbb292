"""train.py on whose rank $KILLED_RANK a SIGKILL falls between the run's end and that of the process, at the first attempt."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import train  # noqa: E402

code = train.main()
if code == 0 and (os.environ["TORCHELASTIC_RESTART_COUNT"], os.environ["RANK"]) == ("0", os.environ["KILLED_RANK"]):
    os.kill(os.getpid(), signal.SIGKILL)
sys.exit(code)
