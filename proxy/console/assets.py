"""Serves scripts, style sheets and images. Their URLs contain a hash, so that browsers can cache them forever."""

from __future__ import annotations

from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Final, NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from duemq.model.errors import Rejected
from duemq.proxy.api.endpoint import Service

FOLDER: Final = Path(__file__).parent / "assets"
_TYPES: Final = {
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}
_HASH_CHARACTERS: Final = 12


class _Asset(NamedTuple):
    content: bytes
    media_type: str


@cache
def _assets() -> tuple[dict[str, str], dict[str, _Asset]]:
    """The name in the URL for each file, and the asset for each such name."""
    names, contents = {}, {}
    for path in sorted(FOLDER.iterdir()):
        if path.suffix in _TYPES:
            content = path.read_bytes()
            digest = sha256(content).hexdigest()[:_HASH_CHARACTERS]
            names[path.name] = name = f"{path.stem}.{digest}{path.suffix}"
            contents[name] = _Asset(content, _TYPES[path.suffix])
    return names, contents


def asset_name(file: str) -> str:
    """The name of a file in its URL, below `assets/`."""
    return _assets()[0][file]


async def get_asset(service: Service, request: Request) -> Response:
    asset = _assets()[1].get(request.path_params["name"])
    if asset is None:
        raise Rejected("not_found", "there is no such file: load the page again")
    headers = {"Cache-Control": "public, max-age=31536000, immutable"}
    return Response(asset.content, headers=headers, media_type=asset.media_type)
