"""The measurements for `duemq bench relay`: messages that a relay sends to another system."""
