"""Benchmarks: kafkalog beside Apache Kafka's own classes and beside what a Python user would pick instead."""
