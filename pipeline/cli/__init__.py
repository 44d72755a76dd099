"""The commands below `duemq spark`. `duemq` finds them by the entry point `duemq.commands`."""
