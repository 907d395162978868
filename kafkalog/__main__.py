"""`python -m kafkalog`."""

from kafkalog.cli import main

main()
