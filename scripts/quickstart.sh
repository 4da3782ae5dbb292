#!/usr/bin/env bash
# From nothing to a small model trained in both memory formats, compared.
set -euo pipefail

usage() {
    cat <<'TEXT'
Usage: bash scripts/quickstart.sh [TRAIN_ARGUMENT ...]

Installs requirements.txt into a virtual environment (made if there is none), then runs the comparison
configs/ab/cpu_quick: resnet18 on made-up images, contiguous against channels-last, in four rounds of fresh processes. It ends
with a verdict and the path of a report.

  --help   show this and leave

Everything else goes to every run of train.py and wins over the small sizes set here. A GPU needs larger
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
say "comparing contiguous with channels-last"
"$python" scripts/compare.py --config cpu_quick --output-dir "$runs" -- "$@"
cat <<TEXT

Report:      $runs/report.html
TensorBoard: $VENV/bin/tensorboard --logdir $runs
TEXT
