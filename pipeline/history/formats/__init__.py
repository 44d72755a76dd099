"""The storage formats of a history: a port (`base.py`), and an implementation for each format."""
