"""The index of a shard's messages by message key and by label."""
