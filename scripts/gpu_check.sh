#!/usr/bin/env bash
# What only a GPU can tell, in under 8 minutes: does everything work on it, and how fast is it.
set -uo pipefail

usage() {
    cat <<'TEXT'
Usage: bash scripts/gpu_check.sh [--smoke] [--device cuda|cpu] [--only "PART ..."] [--seconds N] [OUT]

Runs every part below on one GPU, each under a time limit of its own; a part that fails stops no other. Logs, run folders
and result files go into OUT (default: runs/gpu-check-<date-time>), which must be new or empty; the last thing printed is one
table (also OUT/table.md and OUT/table.json). Exit code 1 where a part failed or had no time left.

  tests       the tests marked gpu                    formats     resnet50 b200 O2, contiguous against channels-last
  torchrun    one process under torch.distributed.run levels      O0 to O3 and bfloat16: speed and peak memory
  sync_bn     SyncBN against plain batch norm         bench_step  our step against a bare loop, share of the limit
  resume      two halves against a straight run       bench_feed  our device feed against float batches
                                                      jpeg        from photo files, beside a main_amp-style loop

  --smoke     a rehearsal: tiny sizes, on a CPU unless --device says otherwise; what needs CUDA is "not run"
  --device    cuda (default) or cpu
  --only      these parts alone
  --seconds   for all parts together (470)
  --help      show this and leave

Needs the packages of requirements.txt; tqdm may be missing. The Python is PYTHON, else VENV/bin/python (VENV: .venv in this
repository), else python. A GPU of 24 GB or more is expected.
TEXT
}

mistake() {
    echo "gpu_check.sh: $1 (--help lists the options)" >&2
    exit 2
}

# Correctness first: on a slow GPU it is the long measurements that run out of time.
limits=(tests:120 torchrun:60 sync_bn:45 resume:75 formats:170 levels:120 bench_step:60 bench_feed:45 jpeg:140)
smoke='' device='' only='' seconds=470 OUT=${OUT-}
while (($#)); do
    case $1 in
        -h | --help) usage && exit 0 ;;
        --smoke) smoke=1 ;;
        --device | --only | --seconds)
            (($# > 1)) || mistake "$1 needs a value"
            printf -v "${1#--}" %s "$2"
            shift
            ;;
        -*) mistake "no option $1" ;;
        *) OUT=$1 ;;
    esac
    shift
done
device=${device:-${smoke:+cpu}}
device=${device:-cuda}
[[ $device == cuda || $device == cpu ]] || mistake "--device is cuda or cpu, got $device"
[[ $seconds =~ ^[0-9]+$ ]] || mistake "--seconds takes a whole number, got $seconds"
[[ $device == cuda || -n $smoke ]] || mistake "--device cpu takes hours at these sizes: add --smoke"
for name in $only; do
    [[ " ${limits[*]} " == *" $name:"* ]] || mistake "no part $name"
done

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
VENV=${VENV:-$root/.venv}
[[ -n ${PYTHON-} || ! -x $VENV/bin/python ]] || PYTHON=$VENV/bin/python
PYTHON=${PYTHON:-python}
[[ $PYTHON != */* || $PYTHON == /* ]] || PYTHON=$PWD/$PYTHON # the caller's folder, before we leave it
OUT=${OUT:-$root/runs/gpu-check-$(date +%Y%m%d-%H%M%S)}
[[ $OUT == /* ]] || OUT=$PWD/$OUT
cd "$root" || exit 1

if [[ -e $OUT && (! -d $OUT || -n $(ls -A "$OUT")) ]]; then
    mistake "$OUT is no empty folder: name a new or empty one"
fi
command -v timeout >/dev/null || mistake "there is no 'timeout' on PATH: install GNU coreutils"
mkdir -p "$OUT" || exit 2
export OUT PYTHON DEVICE=$device SMOKE=$smoke PYTHONUNBUFFERED=1 # a part that is stopped leaves all it wrote in its log
[[ -z $smoke ]] || export OMP_NUM_THREADS=1 # tiny sizes: threads that wait for each other would take most of the time
GPUS=$("$PYTHON" scripts/bench/gpu_facts.py "$OUT" --device "$device") || exit 2
export GPUS
child=''
trap '[[ -z $child ]] || kill "$child" 2>/dev/null; echo "gpu_check.sh: interrupted" >&2; exit 130' INT TERM

run_part() { # NAME LIMIT; the exit code, the seconds it took and had into part.json
    local left=$((seconds - SECONDS)) limit=$2 code=0 start=$SECONDS
    ((limit <= left)) || limit=$left
    mkdir -p "$OUT/$1"
    if ((limit < 1)); then
        printf '==> %s: no time left\n' "$1"
        limit=0 code=124
    else
        printf '==> %s (%d s at most)\n' "$1" "$limit"
        # timeout ends the part's whole process group: loader workers too.
        timeout -k 5 "$limit" bash scripts/bench/gpu_parts.sh "$1" &
        child=$!
        wait "$child"
        code=$?
        child=''
    fi
    printf '{"code": %d, "seconds": %d, "limit_s": %d}\n' "$code" $((SECONDS - start)) "$limit" >"$OUT/$1/part.json"
}

ran=()
for entry in "${limits[@]}"; do
    name=${entry%:*}
    [[ -z $only || " $only " == *" $name "* ]] || continue
    ran+=("$name")
    run_part "$name" "${entry#*:}"
done
printf '==> %d s in all, everything is in %s\n\n' "$SECONDS" "$OUT"
"$PYTHON" scripts/bench/gpu_table.py "$OUT" --parts "${ran[@]}"
