#!/usr/bin/env bash
# Install what the tests need, then lint, type-check and test.
set -euo pipefail

usage() {
    cat <<'TEXT'
Usage: bash scripts/test.sh [--slow] [PYTEST_ARGUMENT ...]

Installs requirements-dev.txt into a virtual environment (made if there is none), then runs ruff check,
ruff format --check, mypy and pytest, and stops at the first that fails.

  --slow   as the first argument: run the tests marked slow too
  --help   show this and leave

Everything else goes to pytest, for example: bash scripts/test.sh -k digits
Test files run beside each other, as many as there are cores, at most 4; -n 0 as an argument runs them one by one.
Tests marked gpu skip themselves where there is no CUDA device.
VENV names the virtual environment (default: .venv in this repository).
TEXT
}

say() { printf '==> %s\n' "$*"; }

select=()
case "${1:-}" in
    -h | --help)
        usage
        exit 0
        ;;
    --slow)
        select=(-m "") # an empty expression takes back pyproject.toml's "not slow"
        shift
        ;;
esac

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
VENV=${VENV:-$root/.venv}
[[ $VENV == /* ]] || VENV=$PWD/$VENV # the caller's folder, before we leave it
python=$VENV/bin/python
cd "$root"

if [[ ! -x $python ]]; then
    if ! python3 -c 'import sys; sys.exit(sys.version_info < (3, 10))'; then
        echo "test.sh needs a python3 of version 3.10 or newer on PATH to make $VENV: install one, or set VENV to an environment that has it." >&2
        exit 2
    fi
    say "making $VENV"
    python3 -m venv "$VENV"
fi
# An environment whose making was interrupted has a python but no pip.
"$python" -m pip --version >/dev/null 2>&1 || "$python" -m ensurepip

say "pip install -r requirements-dev.txt (into $VENV)"
"$python" -m pip install -q --disable-pip-version-check -r requirements-dev.txt
say "ruff check"
"$python" -m ruff check
say "ruff format --check"
"$python" -m ruff format --check
say "mypy"
"$python" -m mypy
# The +-form keeps an empty array from being an unset variable in bash before 4.4.
set -- ${select[@]+"${select[@]}"} "$@"
# The tests are many small models, which gain nothing from a second thread: a core each. torch would give every
# process all cores, and threads that wait for one another spin.
cores=$(env -u OMP_NUM_THREADS nproc 2>/dev/null || getconf _NPROCESSORS_ONLN) # nproc obeys that variable
workers=$((cores < 4 ? cores : 4))
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-$((cores / workers))}
set -- -n "$workers" --dist loadfile "$@"
say "pytest -q --durations=15 ${*@Q}"
"$python" -m pytest -q --durations=15 "$@"
say "all passed"
