#!/usr/bin/env bash
# One torchrun agent of a run over several machines; start it on each of them.
set -euo pipefail

usage() {
    cat <<'TEXT'
Usage: NNODES=N MASTER_ADDR=HOST bash scripts/launch/torchrun_multinode.sh [TRAIN_ARGUMENT ...]

Start the same line on every machine, in any order. torchrun starts train.py with the arguments, one process a GPU. DIR and the
folder of the runs must be readable on all of them.

  NNODES          machines, or MIN:MAX for a run that goes on with fewer or more of them
  MASTER_ADDR     name or address of one of the machines, where they meet
  MASTER_PORT     its free port (29500)
  NPROC_PER_NODE  processes on this machine: a number, or gpu for one a GPU (gpu)
  RDZV_ID         name of the run, the same on all machines (1)
  MAX_RESTARTS    how often all processes are started again after one has died (3); give --resume auto then
  LOCAL_ADDR      this machine's address, where its host name does not lead to it
  PYTHON          the Python to use (VENV/bin/python, VENV being .venv in this repository, else python)

What torchrun cannot pass on, and how a run is stopped and goes on: docs/scale_out.md.
TEXT
}

mistake() {
    echo "torchrun_multinode.sh: $*" >&2
    exit 2
}

if [[ ${1:-} == -h || ${1:-} == --help ]]; then
    usage
    exit 0
fi
[[ ${NNODES:-} =~ ^[0-9]+(:[0-9]+)?$ ]] || mistake "NNODES must be a number of machines or MIN:MAX, got '${NNODES:-}': see --help"
[[ -n ${MASTER_ADDR:-} ]] || mistake "MASTER_ADDR must name the machine where all meet: see --help"

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
python=${PYTHON:-}
if [[ -z $python ]]; then
    python=${VENV:-$root/.venv}/bin/python
    [[ -x $python ]] || python=python
fi

options=(
    --nnodes "$NNODES"
    --nproc-per-node "${NPROC_PER_NODE:-gpu}"
    --rdzv-backend c10d
    --rdzv-endpoint "$MASTER_ADDR:${MASTER_PORT:-29500}"
    --rdzv-id "${RDZV_ID:-1}"
    --max-restarts "${MAX_RESTARTS:-3}"
)
[[ -z ${LOCAL_ADDR:-} ]] || options+=(--local-addr "$LOCAL_ADDR")

# exec: a signal to this script is then one to torchrun, which passes SIGTERM on to train.py.
exec "$python" -m torch.distributed.run "${options[@]}" "$root/train.py" "$@"
