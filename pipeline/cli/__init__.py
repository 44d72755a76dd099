"""The commands below `duemq spark`. `duemq` finds them through the entry point `duemq.commands`."""
