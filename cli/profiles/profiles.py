"""A user's profiles: servers, and how to reach them. They are in one TOML file in the user's folder."""

from __future__ import annotations

import json
import os
import re
import stat
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Self

import typer

from duemq.model.errors import BadConfig
from duemq.model.timing import shown

FIELDS: Final = ("url", "api_key", "api_key_file", "ca_file", "cert_file", "key_file")
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_HEAD = "# Profiles of duemq: `duemq profile --help`. The command writes this file as a whole.\n"
_MAX_BYTES = 1 << 20


def profiles_path() -> Path:
    """`$XDG_CONFIG_HOME/duemq/profiles.toml`, by default below `~/.config`."""
    return Path(os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")) / "duemq" / "profiles.toml"


class Profiles:
    """`current`: the name of the default profile; empty if there is none."""

    def __init__(self, path: Path, current: str, profiles: dict[str, dict[str, str]]) -> None:
        self.path, self.current, self.profiles = path, current, profiles

    @classmethod
    def read(cls) -> Self:
        """The user's profiles; none if there is no file. Raises BadConfig for a file that cannot be used."""
        path = profiles_path()
        try:
            with path.open("rb") as file:
                mode = os.fstat(file.fileno()).st_mode
                text = file.read(_MAX_BYTES).decode()
            document = tomllib.loads(text)
        except OSError as error:
            if isinstance(error, FileNotFoundError) or not os.access(path.parent, os.X_OK):
                return cls(path, "", {})  # also if HOME belongs to another user
            raise BadConfig(f"the profiles in {path} cannot be read: {error.strerror}") from error
        except ValueError as error:  # not UTF-8, or not TOML
            raise BadConfig(f"the profiles in {path} are not TOML: {error}") from error
        if stat.S_IMODE(mode) & 0o077:  # another user could send the keys to a URL of theirs
            raise BadConfig(f"{path} is open to other users: chmod 600 {path}")
        return cls(path, *_checked(path, document))

    def fields(self, name: str, hint: str) -> dict[str, str]:
        """The fields of a profile. Raises BadParameter, with `hint` as the option at fault."""
        if name not in self.profiles:
            known = f"there are {', '.join(sorted(self.profiles))}" if self.profiles else "there is none"
            raise typer.BadParameter(f"there is no profile {shown(name)}; {known} in {self.path}", param_hint=hint)
        return self.profiles[name]

    @classmethod
    @contextmanager
    def change(cls) -> Iterator[Self]:
        """The profiles, to change in the block. At its end they are written as a whole, readable only by this user."""
        import fcntl  # no other command needs it, and Windows does not have it

        folder = profiles_path().parent
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = os.open(folder, os.O_RDONLY)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX)
                profiles = cls.read()
                yield profiles
                profiles._write()
            finally:
                os.close(lock)
        except OSError as error:
            raise BadConfig(f"the profiles in {folder} cannot be written: {error.strerror}") from error

    def _write(self) -> None:
        target = self.path.resolve()  # if the path is a symbolic link, it remains one
        lines = [_HEAD, *((f"current = {json.dumps(self.current)}\n",) if self.current else ())]
        for name, fields in sorted(self.profiles.items()):
            lines.append(f"\n[profiles.{name}]\n")
            lines += (f"{field} = {json.dumps(value, ensure_ascii=False)}\n" for field, value in fields.items())
        import tempfile  # takes 5 ms

        number, temporary = tempfile.mkstemp(dir=target.parent, prefix=".profiles-")  # mode 0600
        try:
            with open(number, "w", encoding="utf-8") as file:
                file.writelines(lines)
                file.flush()
                os.fsync(number)
            os.replace(temporary, target)
        except BaseException:
            os.unlink(temporary)
            raise


def checked_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise typer.BadParameter("a profile's name has 1 to 64 characters of A-Z a-z 0-9 _ -", param_hint="NAME")
    return name


def _checked(path: Path, document: Mapping[str, Any]) -> tuple[str, dict[str, dict[str, str]]]:
    current, profiles = document.get("current", ""), document.get("profiles", {})
    if unknown := sorted(document.keys() - {"current", "profiles"}):
        raise BadConfig(f"{path}: {unknown[0]} is not known; known are current and [profiles.NAME]")
    if not isinstance(profiles, dict):
        raise BadConfig(f"{path}: profiles are sections: [profiles.NAME]")
    for name, fields in profiles.items():
        if not isinstance(fields, dict) or not _NAME.fullmatch(name):
            raise BadConfig(f"{path}: profiles.{name} is not a profile: [profiles.NAME], with A-Z a-z 0-9 _ - in NAME")
        if unknown := sorted(fields.keys() - set(FIELDS)):
            raise BadConfig(f"{path}: profiles.{name}.{unknown[0]} is not known; known are {', '.join(FIELDS)}")
        for field, value in fields.items():
            if not isinstance(value, str):
                raise BadConfig(f"{path}: profiles.{name}.{field} must be text in quotes")
        if not fields.get("url"):
            raise BadConfig(f"{path}: profiles.{name} has no url")
    if current != "" and (not isinstance(current, str) or current not in profiles):
        raise BadConfig(f"{path}: current = {shown(current)}, but there is no such profile")
    return current, profiles
