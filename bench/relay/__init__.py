"""What `duemq bench relay` measures: messages that are handed on to another system."""
