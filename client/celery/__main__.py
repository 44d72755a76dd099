"""`python -m duemq.client.celery`."""

from duemq.client.celery.command import main

main(prog_name="python -m duemq.client.celery")
