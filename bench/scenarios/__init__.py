"""One file per scenario, with the messages to send, the events to wait for, and the figures."""
