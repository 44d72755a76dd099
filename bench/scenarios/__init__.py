"""One file per scenario: the messages to send, the events to wait for, the figures."""
