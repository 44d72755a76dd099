"""Lets duemq hold Celery tasks that have an eta or countdown. See `docs/guides/celery.md`.

app = Celery("proj", broker="redis://localhost")
duemq.client.celery.install(app, url="http://127.0.0.1:8787")
"""

try:
    import celery as _celery  # noqa: F401
except ImportError as error:
    raise ImportError("duemq.client.celery needs Celery: pip install 'duemq[celery]'") from error

from duemq.client.celery.hold import CeleryDeferral, NotHeld
from duemq.client.celery.install import hold_of, install

__all__ = ["CeleryDeferral", "NotHeld", "hold_of", "install"]
