"""The measurements of `duemq bench relay`: messages sent to another system."""
