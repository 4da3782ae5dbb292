"""torchvision's augmentations, on one uint8 image in the loader worker."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor
from torchvision.transforms import InterpolationMode, v2


def build_augment(name: str | None, random_erase: float, mean: tuple[float, ...]) -> Callable[[Tensor], Tensor] | None:
    """(3, H, W) uint8 -> the same shape and dtype; None where nothing is asked for.

    ``name``: ra (RandAugment, arXiv:1909.13719), ta_wide (TrivialAugment, arXiv:2103.10158), imagenet
    (AutoAugment's policy, arXiv:1805.09501) or augmix (arXiv:1912.02781), with torchvision's defaults. Erased
    rectangles (arXiv:1708.04896) take the colour ``mean`` (0..1), which normalisation turns into zeros.
    All draw from torch's global generator.
    """
    mode = InterpolationMode.BILINEAR  # torchvision rotates and shears tensors with no better one
    makers: dict[str, Callable[[], Callable[[Tensor], Tensor]]] = {
        "ra": lambda: v2.RandAugment(interpolation=mode),
        "ta_wide": lambda: v2.TrivialAugmentWide(interpolation=mode),
        "imagenet": lambda: v2.AutoAugment(v2.AutoAugmentPolicy.IMAGENET, interpolation=mode),
        "augmix": lambda: v2.AugMix(interpolation=mode),
    }
    steps = [makers[name]()] if name else []
    if random_erase:
        steps.append(v2.RandomErasing(random_erase, value=[round(255 * channel) for channel in mean]))
    return v2.Compose(steps) if steps else None
