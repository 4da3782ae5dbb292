#!/usr/bin/env bash
# From nothing to a trained small model in both memory formats, and their speeds side by side.
set -euo pipefail

usage() {
    cat <<'TEXT'
Usage: bash scripts/quickstart.sh [TRAIN_ARGUMENT ...]

Installs requirements.txt into a virtual environment (made if there is none), trains resnet18 for one short
epoch on made-up images with --channels-last true and once more with false, and prints both speeds.

  --help   show this and leave

Everything else goes to both runs of train.py and wins over the small sizes set here. A GPU needs larger
ones to be busy, for example:
  bash scripts/quickstart.sh -a resnet50 --b 128 --image-size 224 --synthetic-size 12800
VENV names the virtual environment (default: .venv in this repository).
TEXT
}

say() { printf '\n==> %s\n' "$*"; }

case "${1:-}" in
    -h | --help)
        usage
        exit 0
        ;;
esac

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
VENV=${VENV:-$root/.venv}
[[ $VENV == /* ]] || VENV=$PWD/$VENV # the caller's folder, before we leave it
python=$VENV/bin/python
cd "$root"

if [[ ! -x $python ]]; then
    if ! python3 -c 'import sys; sys.exit(sys.version_info < (3, 10))'; then
        echo "quickstart.sh needs a python3 of version 3.10 or newer on PATH to make $VENV: install one, or set VENV to an environment that has it." >&2
        exit 2
    fi
    say "making $VENV"
    python3 -m venv "$VENV"
fi
# An environment whose making was interrupted has a python but no pip.
"$python" -m pip --version >/dev/null 2>&1 || "$python" -m ensurepip

say "pip install -r requirements.txt (into $VENV; the first time downloads several GB)"
"$python" -m pip install -q --disable-pip-version-check -r requirements.txt

runs=$root/runs/quickstart-$(date +%Y%m%d-%H%M%S)
train() { # RUN_NAME CHANNELS_LAST [TRAIN_ARGUMENT ...]
    local name=$1 channels_last=$2
    shift 2
    say "training with --channels-last $channels_last"
    "$python" train.py -a resnet18 --b 16 --image-size 112 --num-classes 10 --synthetic-size 400 "$@" \
        --channels-last "$channels_last" --output-dir "$runs/$name"
}
train channels_last true "$@"
train contiguous_format false "$@"

say "result"
"$python" - "$runs" <<'PYTHON'
import csv
import sys
from pathlib import Path

speeds = []
for name in ("channels_last", "contiguous_format"):
    path = Path(sys.argv[1], name, "summary.csv")
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    text = rows[-1]["images_per_sec_total"] if rows else ""
    if not text:
        sys.exit(f"{path} holds no epoch speed: the run was too short to time, give it more images (--synthetic-size).")
    speeds.append(float(text))
print(f"{'memory format':<20}{'images/s':>10}")
print(f"{'channels_last':<20}{speeds[0]:>10.1f}")
print(f"{'contiguous_format':<20}{speeds[1]:>10.1f}")
print(f"{'ratio':<20}{speeds[0] / speeds[1]:>10.2f}")
PYTHON
cat <<TEXT

This is one short run of each: several percent up or down is noise, and far more on a machine that is busy with other work.
Runs:        $runs
TensorBoard: $VENV/bin/tensorboard --logdir $runs
TEXT
