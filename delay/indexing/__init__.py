"""The work on the index of messages beside a shard's cycles."""
