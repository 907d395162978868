"""Runs the command line: `python -m kafkalog`."""

from kafkalog.cli import main

main()
