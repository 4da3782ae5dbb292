#!/usr/bin/env bash
# One part of scripts/gpu_check.sh, which says what they are: bash gpu_parts.sh PART, from the repository's root.
# Reads OUT, PYTHON, DEVICE (cuda or cpu), SMOKE (empty or 1) and GPUS from the environment.
set -uo pipefail
part=$1 device=$DEVICE smoke=$SMOKE

if [[ -n $smoke ]]; then
    arch=shufflenet_v2_x0_5 small=shufflenet_v2_x0_5 batch=4 image=32
    format_steps=4 level_steps=3 format_rounds=1 jpeg_rounds=1 small_images=16
else
    arch=resnet50 small=resnet18 batch=200 image=224
    format_steps=60 level_steps=30 format_rounds=3 jpeg_rounds=2 small_images=128
fi
worst=0

step() { # NAME COMMAND ...: output into NAME.log, exit code into NAME.code
    local name=$1 code
    shift
    printf '    %s\n' "$name"
    "$@" >"$OUT/$part/$name.log" 2>&1 </dev/null
    code=$?
    echo "$code" >"$OUT/$part/$name.code"
    ((code == 0)) || worst=1
    return "$code"
}

not_run() { # NAME WHY
    printf '    %s: not run, %s\n' "$1" "$2"
    echo "$2" >"$OUT/$part/$1.not_run"
}

train() { # NAME FLAG ...: a fresh process of train.py; its run folder is NAME
    local name=$1
    shift
    # The rate is one at which pure half precision stays finite; all arms take it.
    step "$name" "$PYTHON" "${launcher[@]+"${launcher[@]}"}" train.py -a "$arch" -b "$batch" --image-size "$image" \
        --device "$device" --lr 0.001 --lr-scaling none --epochs 1 "$@" --output-dir "$OUT/$part/$name"
    rm -rf "$OUT/$part/$name/checkpoints" # 200 MB each
}

part_tests() {
    if [[ $device == cpu ]]; then
        not_run pytest "needs CUDA"
    else
        step pytest "$PYTHON" -m pytest -q -m gpu --junitxml "$OUT/$part/pytest.xml"
    fi
}

part_torchrun() {
    arch=$small batch=16 image=64
    local flags=(--synthetic-size "$small_images" --num-classes 10 --channels-last true)
    local launcher=(-m torch.distributed.run --standalone --nproc-per-node 1)
    train plain "${flags[@]}"
    if [[ $device == cpu ]]; then
        not_run sync-bn "needs CUDA"
        not_run two-gpus-sync-bn "needs CUDA"
        return
    fi
    train sync-bn "${flags[@]}" --sync-bn
    if ((${GPUS:-1} < 2)); then
        not_run two-gpus-sync-bn "needs two GPUs"
    else
        launcher=(-m torch.distributed.run --standalone --nproc-per-node 2)
        train two-gpus-sync-bn "${flags[@]}" --sync-bn
    fi
}

part_sync_bn() {
    step parity "$PYTHON" scripts/bench/sync_bn_parity.py --device "$device" --json "$OUT/$part/parity.json"
}

part_resume() {
    local flags=(-a "$small" -b 8 --image-size 64 --synthetic-size "$small_images" --num-classes 10 --epochs 2 --device "$device"
        --opt-level O2 --loss-scale 128 --channels-last true --deterministic --lr 0.01)
    step straight "$PYTHON" train.py "${flags[@]}" --output-dir "$OUT/$part/straight"
    step first-half "$PYTHON" train.py "${flags[@]}" --stop-after-epochs 1 --output-dir "$OUT/$part/halves" &&
        step second-half "$PYTHON" train.py --resume "$OUT/$part/halves" &&
        step compare "$PYTHON" scripts/bench/same_weights.py "$OUT/$part"/{straight,halves}/checkpoints/last.pt
    rm -rf "$OUT/$part"/{straight,halves}/checkpoints
}

part_formats() {
    local round format order
    for ((round = 1; round <= format_rounds; round++)); do
        order=(contiguous_format channels_last)
        ((round % 2)) || order=(channels_last contiguous_format) # a GPU that grows warmer then favours neither
        for format in "${order[@]}"; do
            train "$format-$round" --opt-level O2 --synthetic-size $((format_steps * batch)) \
                --channels-last "$([[ $format == channels_last ]] && echo true || echo false)"
        done
    done
}

part_levels() {
    local level
    for level in O0 O1 O2 O3; do
        train "$level" --opt-level "$level" --synthetic-size $((level_steps * batch)) --channels-last true
    done
    train bfloat16 --opt-level O1 --amp-dtype bfloat16 --synthetic-size $((level_steps * batch)) --channels-last true
}

part_bench_step() {
    local size=(-a resnet50 -b 128 --image-size 224 --rounds 3 --steps 10)
    [[ -z $smoke ]] || size=(-a "$small" -b 4 --image-size 32 --num-classes 10 --rounds 2 --steps 2 --matmul-size 64)
    step bench_step "$PYTHON" scripts/bench/bench_step.py "${size[@]}" --opt-level O2 --warmup-rounds 1 \
        --device "$device" --json "$OUT/$part/bench_step.json"
}

part_bench_feed() {
    local size=(-b 128 --batches 4 --rounds 3)
    [[ -z $smoke ]] || size=(-b 4 --batches 1 --rounds 2 --image-size 32)
    step bench_feed "$PYTHON" scripts/bench/bench_feed.py "${size[@]}" --warmup-rounds 1 --dtype float16 \
        --device "$device" --json "$OUT/$part/bench_feed.json"
}

part_jpeg() {
    local workers warmup steps classes=4 photos=100 made=$OUT/$part/made data=$OUT/$part/photos link split round format
    workers=$("$PYTHON" -c 'import os; print(len(os.sched_getaffinity(0)))') || return 1
    # Each worker has two batches ready while cudnn tries its kernels: they are no speed of the loader's.
    warmup=$((2 * workers + 5 < 60 ? 2 * workers + 5 : 60))
    steps=$((2 * warmup + 20))
    [[ -z $smoke ]] || warmup=1 steps=4 classes=2 photos=4
    step photos "$PYTHON" scripts/bench/make_photos.py --classes "$classes" --train "$photos" --val 1 "$made" || return
    # Decoding is the bound, not the disk: the same photos again under other class names are as good as new ones.
    mkdir -p "$data/train" "$data/val"
    for ((link = 0; link * photos < steps * batch; link++)); do
        for split in train val; do
            ln -s "$(printf '%s/class%03d' "$made/$split" $((link % classes)))" "$data/$split/$(printf 'class%04d' "$link")"
        done
    done
    printf '{"workers": %s, "warmup_steps": %s, "steps": %s}\n' "$workers" "$warmup" "$steps" >"$OUT/$part/setting.json"
    for ((round = 1; round <= jpeg_rounds; round++)); do
        ((round % 2)) || jpeg_peer "$round"
        train "ours-$round" --opt-level O2 --channels-last true -j "$workers" --steps-per-epoch "$steps" \
            --timing-warmup-steps "$warmup" "$data"
        ((round % 2 == 0)) || jpeg_peer "$round"
    done
    rm -rf "$data" "$made"
}

jpeg_peer() { # ROUND; reads the variables of part_jpeg
    step "peer-$1" "$PYTHON" scripts/bench/main_amp_style.py -a "$arch" -b "$batch" -j "$workers" --image-size "$image" \
        --precision half --memory-format channels_last --steps "$steps" --warmup-steps "$warmup" --lr 0.001 \
        --device "$device" --json "$OUT/$part/peer-$1.json" "$data"
}

"part_$part"
exit "$worst"
