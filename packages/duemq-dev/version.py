"""duemq: delayed messages, delivered at their millisecond, exactly once, with cancels that tell the truth."""

__version__ = "0.2.0"
