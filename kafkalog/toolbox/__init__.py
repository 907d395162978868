"""Checking and mending log directories: what the command line and Spark jobs call."""
