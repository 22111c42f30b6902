"""Make the data files that ship with the package, from the originals and a fixed seed.

    python tools/make_shipped_data.py --fashion FOLDER --digits FILE [--out FOLDER]

FOLDER holds Fashion-MNIST's four `*-ubyte.gz` files (Debian: package dataset-fashion-mnist, in
/usr/share/datasets/fashion-mnist); FILE is `digits.csv.gz`, which every scikit-learn wheel holds
as sklearn/datasets/data/digits.csv.gz. Running it again gives the same bytes.
"""

from __future__ import annotations

import argparse
import gzip
import io
import zipfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from adaptcl.storage import written_whole

SEED = 20260101
FASHION_CLASSES = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)
DIGITS_TEST_A_CLASS = 36


def read_idx(path: Path) -> NDArray[np.uint8]:
    """The array in a gzipped IDX file of unsigned bytes."""
    content = gzip.decompress(path.read_bytes())
    if content[:3] != b"\0\0\x08":
        raise SystemExit(f"{path} is not an IDX file of unsigned bytes")
    rank = content[3]
    shape = np.frombuffer(content, dtype=">u4", count=rank, offset=4)
    return np.frombuffer(content, dtype=np.uint8, offset=4 + 4 * rank).reshape(shape)


def some_of_each(
    labels: NDArray[np.uint8], count: int, random: np.random.Generator
) -> NDArray[np.int64]:
    """Indexes of `count` random members of each class, class after class."""
    classes = np.unique(labels)
    return np.concatenate(
        [random.permutation(np.flatnonzero(labels == label))[:count] for label in classes]
    )


def fashion(folder: Path) -> dict[str, NDArray[np.generic]]:
    """600 training and 200 test images of each class of Fashion-MNIST."""
    random = np.random.default_rng(SEED)
    arrays: dict[str, NDArray[np.generic]] = {"classes": np.array(FASHION_CLASSES)}
    for part, prefix, count in (("train", "train", 600), ("test", "t10k", 200)):
        images = read_idx(folder / f"{prefix}-images-idx3-ubyte.gz")
        labels = read_idx(folder / f"{prefix}-labels-idx1-ubyte.gz")
        chosen = some_of_each(labels, count, random)
        arrays |= {f"{part}_images": images[chosen], f"{part}_labels": labels[chosen]}
    return arrays


def digits(file: Path) -> dict[str, NDArray[np.generic]]:
    """All 1,797 digits, 36 of each class for the test; their 17 grey levels stretched to 256."""
    random = np.random.default_rng(SEED)
    table = np.loadtxt(io.BytesIO(gzip.decompress(file.read_bytes())), delimiter=",")
    images = np.rint(table[:, :-1] * 255 / 16).astype(np.uint8).reshape(-1, 8, 8)
    labels = table[:, -1].astype(np.uint8)
    test = some_of_each(labels, DIGITS_TEST_A_CLASS, random)
    rest = np.setdiff1d(np.arange(len(labels)), test)
    train = rest[np.argsort(labels[rest], kind="stable")]
    return {
        "classes": np.array([str(digit) for digit in range(10)]),
        "train_images": images[train],
        "train_labels": labels[train],
        "test_images": images[test],
        "test_labels": labels[test],
    }


def save(path: Path, arrays: dict[str, NDArray[np.generic]]) -> None:
    """Write an .npz file with LZMA, 15 % smaller than NumPy's, and without dates in it."""
    with written_whole(path) as file, zipfile.ZipFile(file, "w") as archive:
        for name, array in arrays.items():
            member = io.BytesIO()
            np.lib.format.write_array(member, array, allow_pickle=False)
            entry = zipfile.ZipInfo(f"{name}.npy")
            archive.writestr(entry, member.getvalue(), compress_type=zipfile.ZIP_LZMA)
    print(f"{path}: {path.stat().st_size:,} bytes")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--fashion", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--digits", type=Path, required=True, metavar="FILE")
    default = Path(__file__).parent.parent / "src" / "adaptcl" / "data" / "files"
    parser.add_argument("--out", type=Path, default=default, metavar="FOLDER")
    arguments = parser.parse_args()
    save(arguments.out / "fashion-mnist-8000.npz", fashion(arguments.fashion))
    save(arguments.out / "digits.npz", digits(arguments.digits))


if __name__ == "__main__":
    main()
