"""Benchmarks: kafkalog compared with Apache Kafka's classes and with the usual Python alternatives."""
