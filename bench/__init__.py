"""`duemq bench`: measures the running system as its users see it. Open loop, every message counted."""
