"""How a history lies on its storage: a port (`base.py`) with a plug for each format."""
