"""Background work on a shard's index of messages."""
