"""`duemq demo`: a server with a short live demonstration. `make run` starts it."""

from __future__ import annotations

from duemq.cli.wiring import startup


def demo(data: startup.Data = None, listen: startup.Listen = None, log_level: startup.LogLevel = "warning") -> None:
    """Start a server, show a short live demonstration on it, and continue to serve."""
    from duemq.cli.wiring.single_process import serve
    from duemq.dev.demo import show

    settings = startup.begin(None, {"data": data, "listen": listen}, None, log_level=log_level)
    startup.become_server()
    startup.run(serve(settings, show))
    print(f"\nduemq has stopped. Pending messages are kept in {settings.data}.")
