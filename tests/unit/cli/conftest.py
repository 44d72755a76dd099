"""What tests of the command line may use."""

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def config_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's folder of configuration, without profiles of whoever runs the tests."""
    home = tmp_path / "config-home"
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home))
    for name in ("URL", "PROFILE", "API_KEY", "CA_FILE", "CERT_FILE", "KEY_FILE"):
        monkeypatch.delenv(f"DUEMQ_{name}", raising=False)
    return home
