"""The `duemq` command: one module per command or group of commands; `main` is the entry point."""
