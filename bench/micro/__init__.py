"""Benchmarks of the project's kernels, one call each, compared with alternatives (`make microbench`)."""
