"""The remote tier of a partition: closed segments in an object storage, and their metadata.

The classes mirror Kafka's `org.apache.kafka.server.log.remote` and have its names (KIP-405, 4.4.0).  `segment` defines
the terms and `records` their bytes.  `metadata_cache` finds the segment that holds an offset.  `storage` is the
interface to the objects.
"""
