"""An HTTP endpoint in a separate process, to be killed: `endpoint_process.py PORT FILE`.

Before it answers, it adds a line to the file: the `duemq-id`, a space and the payload.
"""

from __future__ import annotations

import sys
from pathlib import Path

from aiohttp import web


def main(port: int, file: Path) -> None:
    with file.open("ab", buffering=0) as received:

        async def take(request: web.Request) -> web.Response:
            received.write(request.headers["duemq-id"].encode() + b" " + await request.read() + b"\n")
            return web.Response(status=204)

        application = web.Application()
        application.router.add_post("/hook", take)
        web.run_app(application, host="127.0.0.1", port=port, print=None, access_log=None)


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
