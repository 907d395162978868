"""Times each kernel and its peer at each size, by pytest-benchmark; a group is one kernel at one size.

Not part of the test suite: `make microbench` runs it; `pytest bench/micro` accepts pytest-benchmark's options.
"""

from __future__ import annotations

import functools
from typing import Any

import pytest

from bench.micro.kernels import KERNELS, Case, Kernel

SIDES = ("kafkalog", "peer")


def rounds(size: int) -> int:
    """Returns the rounds for a case with a setup, for which pytest-benchmark does not choose them."""
    return max(5, 2_000_000 // size)


@functools.lru_cache(maxsize=1)  # both sides of a case run one after the other
def case_of(kernel: Kernel, size: int) -> Case:
    return kernel.make(size)


@pytest.mark.parametrize(
    ("kernel", "size", "side"),
    [
        pytest.param(kernel, size, side, id=f"{kernel.name}, {size:,} {kernel.unit}: {kernel.peer if at else side}")
        for kernel in KERNELS
        for size in kernel.sizes
        for at, side in enumerate(SIDES)
    ],
)
def test_kernel(benchmark: Any, kernel: Kernel, size: int, side: str) -> None:
    case = case_of(kernel, size)
    benchmark.group = f"{kernel.name}, {size:,} {kernel.unit}"
    work = case.sides[side]
    if side in case.setup:
        benchmark.pedantic(work, setup=lambda: ((case.setup[side](),), {}), rounds=rounds(size), warmup_rounds=1)
    else:
        benchmark(work, None)
