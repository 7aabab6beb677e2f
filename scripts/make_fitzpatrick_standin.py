"""Write a stand-in for Fitzpatrick17k in its layout, from images that scikit-learn ships.

    python scripts/make_fitzpatrick_standin.py --out standin
    python scripts/train_fitzpatrick_probe.py --data standin --weights random --size 64 --out OUT/skin-tone-standin
    atypicality reproduce subgroups --outputs OUT

It is no dermatology, and its numbers say nothing about skin: 1,619 handwritten digits 1 to 9 (UCI, Alpaydin and Kaynak
1998) take the place of the nine classes. Fitzpatrick17k's shares of skin tones are drawn at random; the darker the
tone, the fainter and noisier the image, so that the groups differ in difficulty. What it shows is that the protocol
runs from images to the table of subgroups; the real files replace it without another change.
"""

import argparse
import hashlib
from pathlib import Path

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits

SHARES = {-1: 0.034, 1: 0.178, 2: 0.290, 3: 0.200, 4: 0.168, 5: 0.092, 6: 0.038}
"""Rows of Fitzpatrick17k by type of the Fitzpatrick scale; -1 is unknown."""
SIDE = 64


def toned(digit: np.ndarray, tone: int, rng: np.random.Generator) -> Image.Image:
    """A digit (8, 8) as a picture: fainter and noisier from type 1 to 6, unknown like type 3."""
    level = (3 if tone < 0 else tone) / 6
    faint = digit / 16 * (1.2 - level)
    noisy = np.clip(faint + rng.normal(0, 0.05 + 0.35 * level, digit.shape), 0, 1)
    colours = (255 * noisy[..., None] * np.array([1.0, 0.8, 0.7])).astype(np.uint8)
    return Image.fromarray(colours).resize((SIDE, SIDE), Image.Resampling.BILINEAR)


def write(out: Path, rows: int | None, seed: int) -> int:
    """The table and its images; how many there are."""
    digits, labels = load_digits(return_X_y=True)
    chosen = np.flatnonzero(labels > 0)[:rows]
    rng = np.random.default_rng(seed)
    shares = np.array([*SHARES.values()])
    tones = rng.choice([*SHARES], chosen.size, p=shares / shares.sum())
    (out / "images").mkdir(parents=True, exist_ok=True)
    lines = ["md5hash,fitzpatrick_scale,label,nine_partition_label"]
    for row, tone in zip(chosen.tolist(), tones.tolist(), strict=True):
        name = hashlib.md5(f"digit {row}".encode(), usedforsecurity=False).hexdigest()
        toned(digits[row].reshape(8, 8), tone, rng).save(out / "images" / f"{name}.jpg", quality=95)
        lines.append(f"{name},{tone},digit {labels[row]},digit {labels[row]}")
    (out / "fitzpatrick17k.csv").write_text("\n".join(lines) + "\n")
    return chosen.size


def main(argv: list[str] | None = None) -> None:
    """Write the stand-in."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for fitzpatrick17k.csv and images")
    parser.add_argument("--rows", type=int, help="only the first rows")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args(argv)
    count = write(arguments.out, arguments.rows, arguments.seed)
    print(f"{arguments.out}: {count} images, a stand-in for Fitzpatrick17k made of handwritten digits")


if __name__ == "__main__":
    main()
