"""Benchmarks of the project's own kernels, one call each, beside their peers (`make microbench`)."""
