"""Sums over the batches of a partition or topic, by codec and by size: for the tables `codecs` and `batches`.

Sizes are grouped by powers of two.  A batch counts with a weight: 1 if its header was read as one of all, more if it
stands for others of a sample.  The uncompressed size is known only of batches that were decompressed; it is scaled up
by size and codec.  Knows tables of headers; no files.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from kafkalog.engine.format import codecs
from kafkalog.toolbox.segment_headers import CODEC_BITS, record_counts

CODECS, SIZES = CODEC_BITS + 1, 32


class BatchSums:
    """The sums, as arrays by codec and size."""

    def __init__(self) -> None:
        self.is_sampled = False  # some batches stand for others
        self.batches, self.records, self.bytes = (np.zeros((CODECS, SIZES)) for _ in range(3))
        self.raw, self.raw_of = (
            np.zeros((CODECS, SIZES)) for _ in range(2)
        )  # decompressed batches: their bytes after and before

    def feed(self, table: np.ndarray, weights: np.ndarray | None = None) -> None:
        """Adds the batches of a scan's table; `weights` says for how many each stands."""
        sizes = table["size"].astype(np.float64)
        codec, cells = table["attributes"] & CODEC_BITS, _cells(table)
        weights = np.ones(len(table)) if weights is None else weights
        for sums, values in (
            (self.batches, weights),
            (self.records, weights * record_counts(table)),
            (self.bytes, weights * sizes),
        ):
            sums += np.bincount(cells, values, CODECS * SIZES).reshape(CODECS, SIZES)
        plain = codec == codecs.NONE
        if plain.any():
            self._feed_raw(cells[plain], sizes[plain], sizes[plain])

    def feed_raw(self, table: np.ndarray, raw_sizes: np.ndarray) -> None:
        """Adds the uncompressed sizes of compressed batches."""
        self._feed_raw(_cells(table), table["size"].astype(np.float64), raw_sizes)

    def _feed_raw(self, cells: np.ndarray, sizes: np.ndarray, raw_sizes: np.ndarray) -> None:
        self.raw_of += np.bincount(cells, sizes, CODECS * SIZES).reshape(CODECS, SIZES)
        self.raw += np.bincount(cells, raw_sizes, CODECS * SIZES).reshape(CODECS, SIZES)

    def take(self, other: BatchSums) -> None:
        """Adds other sums."""
        self.is_sampled |= other.is_sampled
        for name in ("batches", "records", "bytes", "raw", "raw_of"):
            getattr(self, name).__iadd__(getattr(other, name))

    def scaled_raw(self) -> np.ndarray:
        """Returns the uncompressed bytes, scaled up to all batches; NaN if none of the codec was decompressed."""
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = self.raw / self.raw_of
            whole = self.raw.sum(1, keepdims=True) / self.raw_of.sum(1, keepdims=True)
            found: np.ndarray = np.where(self.raw_of > 0, ratio, whole) * self.bytes
        return found

    def by_codec(self) -> Iterator[dict[str, Any]]:
        """Yields the rows of `codecs`, those with the most bytes first."""
        raw = self.scaled_raw()
        for codec in np.argsort(-self.bytes.sum(1), kind="stable"):
            here = self.batches[codec] > 0
            if not here.any():
                continue
            before, after = round(self.bytes[codec].sum()), _whole(raw[codec][here].sum())
            yield {
                "codec": codecs.shown_name(int(codec)),
                "batches": round(self.batches[codec].sum()),
                "records": round(self.records[codec].sum()),
                "bytes": before,
                "rawBytes": after,
                "savedBytes": None if after is None else after - before,
                "sampled": self._is_sampled(codec, here),
            }

    def by_size(self) -> Iterator[dict[str, Any]]:
        """Yields the rows of `batches`, by codec and size."""
        raw = self.scaled_raw()
        for codec, size in zip(*np.nonzero(self.batches), strict=True):
            batches, records, before = (float(each[codec, size]) for each in (self.batches, self.records, self.bytes))
            after = _whole(raw[codec, size])
            yield {
                "codec": codecs.shown_name(int(codec)),
                "fromBytes": 1 << int(size),
                "toBytes": 2 << int(size),
                "batches": max(1, round(batches)),
                "records": round(records),
                "bytes": round(before),
                "rawBytes": after,
                "ratio": None if after is None or not before else round(after / before, 3),
                "recordsPerBatch": round(records / batches, 2),
                "sampled": self._is_sampled(codec, size),
            }

    def _is_sampled(self, codec: Any, sizes: Any) -> bool:
        """Returns whether a number is scaled up: batches stand for others, or not all were decompressed."""
        return self.is_sampled or bool((self.raw_of[codec, sizes] < self.bytes[codec, sizes]).any())


def _cells(table: np.ndarray) -> np.ndarray:
    """Returns where each batch counts."""
    _, above = np.frexp(table["size"].astype(np.float64))
    cells: np.ndarray = (table["attributes"] & CODEC_BITS).astype(np.int64) * SIZES + (above - 1)
    return cells


def _whole(value: float) -> int | None:
    return None if np.isnan(value) else round(float(value))
