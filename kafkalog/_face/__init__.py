"""Private: what `kafkalog.store`, `topic`, `partition`, `reader`, `producer` and `transaction` are made of."""
