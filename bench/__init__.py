"""`duemq bench`: measures the running system as its users see it. Load is sent in an open loop, and every message is
counted."""
