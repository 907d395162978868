"""bench/micro: on each kernel's smallest size it and its peer give the same, non-empty answer."""

from __future__ import annotations

import pytest

from bench.micro.kernels import KERNELS, Kernel


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_a_kernel_answers_as_its_peer_does(kernel: Kernel) -> None:
    case = kernel.make(kernel.sizes[0])
    assert list(case.sides) == ["kafkalog", "peer"]
    first = case.ask("kafkalog")
    assert first
    assert first == case.ask("peer")
    assert first == case.ask("kafkalog")  # a second round finds what the first one found


def test_sizes_reach_from_the_first_cache_into_memory() -> None:
    bytes_of = {"bytes": 1, "entries": 8, "keys": 24}
    for kernel in KERNELS:
        first, *_, last = [size * bytes_of[kernel.unit] for size in kernel.sizes]
        assert first <= 48 << 10
        assert last > 64 << 20
