"""The flag table: one row a flag, in the order ``--help`` shows them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

GROUPS = ("data", "model", "schedule and optimizer", "precision, memory format, device", "run and output")


@dataclass(frozen=True)
class Row:
    """One flag: its key in TrainConfig, its spellings (canonical first), its help."""

    group: str
    key: str
    flags: tuple[str, ...]
    help: str
    metavar: str | tuple[str, ...] = "N"
    const: str | None = None  # a bare flag that stands for this value of the key
    many: bool = False  # takes any number of numbers
    optional: tuple[str, str] | None = None  # what the bare flag stands for, and a pattern of what may follow it

    def help_text(self, default: Any) -> str:
        if default is None or default is False or self.const is not None or "default" in self.help:
            return self.help
        shown = " ".join(f"{item:g}" for item in default) if isinstance(default, tuple) else default
        return f"{self.help} (default: {shown})"


def _rows(group: str, *rows: tuple[Any, ...]) -> list[Row]:
    return [Row(group, key, tuple(flags.split()), text, *rest) for key, flags, text, *rest in rows]


ROWS: list[Row] = [
    *_rows(
        GROUPS[0],
        ("data_dir", "--data-dir --data-path", "the same as the positional DIR", "DIR"),
        ("synthetic", "--synthetic --dummy", "train on made-up images; what happens without DIR anyway"),
        ("synthetic_size", "--synthetic-size", "made-up training images; a tenth as many for validation"),
        ("num_classes", "--num-classes", "outputs of the model (default: the classes of DIR/train, or 1000)"),
        ("image_size", "--image-size --train-crop-size --img-size", "training crop, pixels (default: 224; 299 for inception_v3)"),
        ("val_image_size", "--val-image-size --val-crop-size", "validation crop, pixels (default: the image size)"),
        ("val_resize", "--val-resize --val-resize-size", "shorter side before that crop (default: crop * 256/224)"),
        ("interpolation", "--interpolation", "bilinear or bicubic (default: bilinear)", "NAME"),
        ("mean", "--mean", "channel means in 0..1 (default: ImageNet's)", ("R", "G", "B")),
        ("std", "--std", "channel deviations in 0..1 (default: ImageNet's)", ("R", "G", "B")),
        ("hflip", "--hflip", "probability of a left-right flip in training", "PROB"),
        ("crop_scale", "--crop-scale", "share of the image's area a training crop takes", ("MIN", "MAX")),
        ("auto_augment", "--auto-augment --aa", "ra, ta_wide, imagenet or augmix, as torchvision has them (default: off)", "NAME"),
        ("random_erase", "--random-erase --reprob", "probability of erasing a rectangle of a training image", "PROB"),
        ("mixup", "--mixup --mixup-alpha", "mix pairs of a batch with a share drawn from Beta(A, A); 0 is off", "A"),
        ("cutmix", "--cutmix --cutmix-alpha", "paste a rectangle of one image into another, its area from Beta(A, A); 0 is off", "A"),
        ("ra_reps", "--ra-reps --aug-repeats", "repeated augmentation: N draws of a sample side by side, and as many fewer samples an epoch"),
        ("progressive", "--progressive", "training crop by share of the run, such as 128:0.0,160:0.3,192:0.6,224:0.9, changing where an epoch begins", "SIZE:SHARE,..."),
        ("batch_size", "-b --batch-size --b", "images a step and process"),
        ("global_batch_size", "--global-batch-size", "images a step over all processes, whatever their number; instead of -b"),
        ("val_batch_size", "--val-batch-size -vb", "images a validation batch (default: the batch size)"),
        ("workers", "-j --workers", "loader processes a rank (default: min(4, usable cores / ranks on this machine))"),
        ("exif_orientation", "--exif-orientation", "apply turns photos as their camera noted, ignore leaves them as stored, as torchvision does", "RULE"),
        ("max_image_pixels", "--max-image-pixels", "larger images are bad ones (default: Pillow's bound, 178956970)"),
        ("bad_images", "--bad-images", "fail ends the run at an unreadable image, skip leaves it out of batch, epoch and counts", "POLICY"),
        ("max_bad_images", "--max-bad-images", "skip this many bad files a split, or this share of them, and then end the run (default: the larger of 10 and 1%%)", "N|P%%"),
        ("val_labels", "--val-labels", "for a flat DIR/val: text or csv file of `file name,class` lines", "FILE"),
        ("class_map", "--class-map", "json file of class names in the order of their indices: read if it exists, else written", "FILE"),
        ("rescan", "--rescan", "list DIR anew instead of taking the list kept from the last start"),
        ("train_shards", "--train-shards", "tar files to train on instead of DIR/train: {000..099} and * are understood; a path or an fsspec URL", "PATTERN"),
        ("val_shards", "--val-shards", "the same for validation", "PATTERN"),
        ("check_data", "--check-data", "look at every file of DIR, report and leave: headers (the bare flag) or full, which decodes all pixels", "[HOW]", None, False, ("headers", "headers|full")),
        ("bench_data", "--bench-data", "measure the loader alone over N batches and leave (bare: 100)", "[N]", None, False, ("100", "[0-9]+")),
        ("json", "--json", "print the report of --check-data or --bench-data as JSON"),
    ),
    *_rows(
        GROUPS[1],
        ("arch", "-a --arch --model", "a torchvision name, timm:NAME, or package.module:factory, which imports and runs that code: factory(num_classes=N)", "ARCH"),
        ("pretrained", "--pretrained", "start from the architecture's default weights"),
        ("weights", "--weights", "start from these: a name such as IMAGENET1K_V2, or a file", "NAME_OR_PATH"),
        ("freeze_backbone", "--freeze-backbone", "train the classifier alone, from --weights or --pretrained; batch norm keeps its statistics"),
        ("stochastic_depth", "--stochastic-depth --drop-path", "probability of leaving out a block, where the model takes it (default: the model's own)", "PROB"),
    ),
    *_rows(
        GROUPS[2],
        ("epochs", "--epochs", "epochs in all (default: 90 with DIR, 1 without)"),
        ("start_epoch", "--start-epoch", "count epochs from here"),
        ("steps_per_epoch", "--steps-per-epoch", "end each epoch after this many steps (default: the whole epoch)"),
        ("lr", "--lr --learning-rate", "learning rate for 256 images a step, see --lr-scaling", "LR"),
        ("opt", "--opt", "sgd, nesterov, adamw or rmsprop (alpha 0.9, eps 0.0316): torch's own", "NAME"),
        ("momentum", "--momentum", "momentum of SGD and RMSprop", "M"),
        ("weight_decay", "--weight-decay --wd", "weight decay of every parameter", "W"),
        ("norm_weight_decay", "--norm-weight-decay", "weight decay of normalisation layers (default: --weight-decay)", "W"),
        ("bias_weight_decay", "--bias-weight-decay", "weight decay of every bias (default: --weight-decay, or the layer's)", "W"),
        ("lr_scaling", "--lr-scaling", "linear: times batch x ranks x accumulation / 256; none: --lr as it is", "RULE"),
        ("lr_schedule", "--lr-schedule --lr-scheduler --sched", "step or cosine (multisteplr, steplr, cosineannealinglr are understood)", "NAME"),
        ("lr_milestones", "--lr-milestones", "epochs at which the rate drops (default: 30 60 80 of 90, scaled to --epochs)", "EPOCH", None, True),
        ("lr_step_size", "--lr-step-size", "drop the rate every so many epochs instead", "EPOCHS"),
        ("lr_gamma", "--lr-gamma", "factor of a drop", "F"),
        ("lr_min", "--lr-min --min-lr", "where a cosine ends, and what drops stop at; not scaled by the batch", "LR"),
        ("lr_warmup_epochs", "--lr-warmup-epochs --warmup-epochs", "epochs of linear warm-up (default: 5 of 90, scaled to --epochs)", "EPOCHS"),
        ("lr_warmup_decay", "--lr-warmup-decay", "share of the rate at which the warm-up starts", "F"),
        ("grad_accum_steps", "--grad-accum-steps --grad-accum", "batches whose gradients make one step"),
        ("micro_batch", "--micro-batch", "split each batch into pieces of so many images and accumulate: less memory, the same gradients, but batch norm sees the pieces alone"),
        ("clip_grad_norm", "--clip-grad-norm --clip-grad", "clip the gradients' norm to this (default: off)", "NORM"),
        ("label_smoothing", "--label-smoothing --smoothing", "label smoothing of the training loss", "F"),
        ("val_every", "--val-every --val-interval", "validate every N epochs, and after the last"),
        ("early_stop", "--early-stop", "end the run where Prec@1 of validation has not risen for N epochs (default: off)"),
        ("model_ema", "--model-ema --model-ema-decay", "keep a running average of the weights, the part DECAY of it a step (bare: 0.9998; rising to it from 0.18), and validate it too", "[DECAY]", None, False, ("0.9998", r"(0?\.[0-9]+|[01](\.0*)?|[0-9.]+e-[0-9]+)")),
        ("ema_eval", "--ema-eval", "val/*, summary.csv and best.pt follow that average instead of the raw weights; -e validates it"),
    ),
    *_rows(
        GROUPS[3],
        ("opt_level", "--opt-level", "O0 float32, O1 autocast, O2 half with float32 masters, O3 all half (default: O1 on CUDA, else O0)", "LEVEL"),
        ("opt_level", "--amp", "the same as --opt-level O1", "LEVEL", "O1"),
        ("amp_dtype", "--amp-dtype", "auto, float16 or bfloat16; auto is float16 on CUDA, bfloat16 on a CPU", "DTYPE"),
        ("keep_batchnorm_fp32", "--keep-batchnorm-fp32", "O2, O3: batch norm in float32 or not (default: the level's)"),
        ("loss_scale", "--loss-scale", "a number or 'dynamic' (default: the level's)", "SCALE"),
        ("channels_last", "--channels-last", "model and every batch in torch.channels_last; bare means true, auto times both formats at the start (default: false)"),
        ("audit_layout", "--audit-layout", "after the first step, say which op drops channels-last; details in layout_audit.json (default: one line where that takes under a second)"),
        ("sync_bn", "--sync-bn --sync_bn", "batch-norm statistics over all ranks (CUDA)"),
        ("device", "--device", "auto, cpu, cuda or mps", "NAME"),
        ("compile", "--compile --torchcompile", "torch.compile the model"),
        ("tf32", "--tf32", "TensorFloat-32 in float32 products and convolutions on CUDA"),
        ("cpu_heap", "--cpu-heap", "auto, retain, hugepages or default: keep freed memory in the process on a CPU (glibc), or have it in huge pages, which takes no more of it; auto retains where 1.7 x the expected memory is free", "NAME"),
    ),
    *_rows(
        GROUPS[4],
        ("config", "-c --config", "YAML file of these flags, underscores for dashes; the command line wins", "FILE"),
        ("output_dir", "--output-dir --output", "run folder (default: runs/<date-time>-<arch>-<level>-<memory format>)", "DIR"),
        ("resume", "--resume", "checkpoint to go on from, or auto: the newest matching run that is not done", "PATH"),
        ("save_every_steps", "--save-every-steps", "save a checkpoint every N steps, beside those at each epoch's end (default: off)"),
        ("save_every_minutes", "--save-every-minutes", "save a checkpoint when the last one is M minutes old; 0 is off", "M"),
        ("keep_checkpoints", "--keep-checkpoints", "step checkpoints that stay, the newest K, beside last.pt and best.pt", "K"),
        ("async_save", "--async-save", "write checkpoints beside the training, which waits for the copy to host memory alone"),
        ("on_save_error", "--on-save-error", "when a checkpoint cannot be written: continue trains on and tries at the next save, stop ends the run (default: continue, and stop at the third failure in a row)", "POLICY"),
        ("rewind", "--rewind", "where non-finite steps would end the run: go back to the last good checkpoint and leave their images out, three times at most"),
        ("stop_after_epochs", "--stop-after-epochs", "save and leave after this many epochs of this start; the schedule stays"),
        ("stop_after_steps", "--stop-after-steps", "the same in steps"),
        ("evaluate", "-e --evaluate --test-only", "validate once and leave; weights from --resume or --weights"),
        ("summary", "--summary", "print parameters, MACs, activation and expected peak memory, measured on a small batch and scaled, and leave"),
        ("seed", "--seed", "seed of weights, order and augmentation"),
        ("deterministic", "--deterministic --use-deterministic-algorithms", "bitwise equal reruns, slower on a GPU"),
        ("print_freq", "-p --print-freq --log-interval", "steps between log lines"),
        ("timing_warmup_steps", "--timing-warmup-steps", "first steps of an epoch that its speed leaves out"),
        ("tensorboard", "--tensorboard", "write TensorBoard event files"),
        ("prof", "--prof", "profile steps N to N+9, write a trace, stop"),
        ("step_times", "--step-times", "write the time of every step and the losses of the first 100 of an epoch to step_times.jsonl"),
        ("traceback", "--traceback", "show the traceback of an error that is the user's too"),
        ("dist_timeout", "--dist-timeout", "end the run when a process of it gives no answer for so long", "SECONDS"),
        ("local_rank", "--local-rank --local_rank", "accepted for launchers that pass it; the environment decides"),
    ),
]  # fmt: skip
