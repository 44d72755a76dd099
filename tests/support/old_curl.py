"""A curl that is as old as that of Debian 11 (7.74), by the options that it knows."""

from __future__ import annotations

import shutil
from pathlib import Path

NEWER = frozenset(
    "--aws-sigv4 --ca-native --create-file-mode --doh-cert-status --doh-insecure --dump-ca-embed --ech --expand-url "
    "--expand-data --expand-header --fail-with-body --follow --haproxy-clientip --http3-only --ip-tos --ipfs-gateway "
    "--json --keepalive-cnt --mptcp --no-clobber --out-null --parallel-max-host --proxy-ca-native --proxy-http2 "
    "--rate --remove-on-error --sigalgs --skip-existing --tls-earlydata --trace-config --trace-ids --upload-flags "
    "--url-query --variable --vlan-priority".split()
)
"""Options that came after 7.74."""


def put_old_curl(folder: Path) -> None:
    """Make `curl` in this folder, which refuses what 7.74 does not know and runs the real one."""
    real = shutil.which("curl")
    assert real, "the README needs curl"
    path = folder / "curl"
    path.write_text(
        "#!/bin/sh\n"
        'for word; do case "$word" in\n'
        f'{"|".join(sorted(NEWER))}) echo "curl: option $word: is unknown" >&2; exit 2;;\n'
        "esac; done\n"
        f'exec {real} "$@"\n'
    )
    path.chmod(0o755)
