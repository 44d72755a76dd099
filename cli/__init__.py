"""The `duemq` command: one module per command or group of commands; `main` puts them together."""
