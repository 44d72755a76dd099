"""The options of a connection: the same before and after each command, and which of option, environment and profile
wins."""

from __future__ import annotations

import os
import stat
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import typer
from typer.testing import CliRunner, Result

import duemq.client
from duemq.cli.app import command_line
from duemq.client import Admin

pytestmark = pytest.mark.heavy

OPTIONS = {"url", "profile", "api_key", "api_key_file", "ca_file", "cert_file", "key_file"}

Run = Callable[..., Result]


@pytest.fixture
def run() -> Run:
    def command(*words: object) -> Result:
        return CliRunner().invoke(command_line(), [str(word) for word in words], catch_exceptions=False)

    return command


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str | None]]:
    """The server and the key of each request that the commands make."""
    requests: list[tuple[str, str | None]] = []

    def answer(request: httpx.Request) -> httpx.Response:
        key = request.headers.get("Authorization")
        requests.append((str(request.url.copy_with(path="")).rstrip("/"), key and key.removeprefix("Bearer ")))
        return httpx.Response(200, json={"topics": []})

    class ScriptedClient(Admin):
        def __init__(self, *values: Any, **options: Any) -> None:
            super().__init__(*values, transport=httpx.MockTransport(answer), **options)

    monkeypatch.setattr(duemq.client, "Admin", ScriptedClient)
    return requests


def leaves(group: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from leaves(command, (*words, name))
        else:
            yield (*words, name), command


def test_each_command_that_talks_to_a_server_has_all_options_of_a_connection_and_no_other_has_one() -> None:
    root = typer.main.get_command(command_line())
    assert {option.name for option in root.params} >= OPTIONS
    connecting = set()
    for words, command in leaves(root):
        names = [parameter.name for parameter in command.params]
        spelt = [text for parameter in command.params for text in parameter.opts if text.startswith("-")]
        assert len(spelt) == len(set(spelt)), (words, "two options of one name")
        if "url" in names:
            assert set(names) >= OPTIONS, words
            connecting.add(words[0])
    assert connecting >= {"send", "get", "ls", "cancel", "tail", "import", "topic", "dlq", "destination", "cluster"}
    assert connecting >= {"open", "spark"} and not connecting & {"serve", "proxy", "relay", "backup", "restore"}


@pytest.mark.parametrize("before", [True, False])
def test_an_option_is_good_before_and_after_the_command(
    run: Run, asked: list[tuple[str, str | None]], tmp_path: Path, before: bool
) -> None:
    (tmp_path / "key").write_text("secret-key\nwhat it is for\n")
    options = ("--url", "http://there:1", "--api-key-file", tmp_path / "key")
    words = (*options, "topic", "ls") if before else ("topic", "ls", *options)
    assert run(*words).exit_code == 0
    assert asked == [("http://there:1", "secret-key")]
    assert "DUEMQ_URL" not in os.environ and "DUEMQ_API_KEY" not in os.environ


def test_of_options_in_both_places_the_later_one_is_good(run: Run, asked: list[tuple[str, str | None]]) -> None:
    assert run("--url", "a:1", "--api-key", "one-key", "topic", "ls", "--url", "b:2").exit_code == 0
    assert asked == [("http://b:2", "one-key")]


def test_options_go_before_the_environment_and_that_before_the_profile_in_use(
    run: Run, asked: list[tuple[str, str | None]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "key").write_text("profile-key\n")
    assert run("profile", "add", "prod", "--url", "prod:1", "--api-key-file", tmp_path / "key").exit_code == 0
    assert run("profile", "add", "bare", "--url", "bare:1").exit_code == 0

    def reached(*words: str) -> tuple[str, str | None]:
        assert run(*words, "topic", "ls").exit_code == 0
        return asked.pop()

    assert reached() == ("http://127.0.0.1:8787", None), "none is in use"
    assert run("profile", "use", "prod").exit_code == 0
    assert reached() == ("http://prod:1", "profile-key")
    assert reached("--api-key", "option-key") == ("http://prod:1", "option-key")
    assert reached("--url", "other:1") == ("http://other:1", None), "the key of a profile goes to its server alone"
    assert reached("--profile", "bare") == ("http://bare:1", None)

    monkeypatch.setenv("DUEMQ_PROFILE", "bare")
    assert reached() == ("http://bare:1", None)
    assert reached("--profile", "prod") == ("http://prod:1", "profile-key")
    monkeypatch.setenv("DUEMQ_URL", "environment:1")
    assert reached() == ("http://environment:1", None)
    monkeypatch.setenv("DUEMQ_API_KEY", "environment-key")
    assert reached() == ("http://environment:1", "environment-key")
    assert reached("--profile", "prod") == ("http://prod:1", "profile-key"), "an option names it"
    assert reached("--url", "option:1") == ("http://option:1", "environment-key")
    monkeypatch.delenv("DUEMQ_URL")
    assert reached() == ("http://bare:1", "environment-key")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--url", "a:1", "ls", "--profile", "prod"), "--url and --profile both name a server"),
        (("ls", "--api-key", "k", "--api-key-file", "f"), "--api-key and --api-key-file both give a key"),
        (("ls", "--profile", "nowhere"), "there is no profile 'nowhere'"),
        (("ls", "--url", "a:0"), "is not the URL of a server"),
        (("ls", "--api-key-file", "/nowhere"), "duemq: the API key in /nowhere cannot be read: No such file"),
        (("ls", "--api-key-file", "/dev/null"), "duemq: /dev/null has no API key on its first line"),
        (("--profile", "prod", "backup", "/b"), "this command does not talk to a server"),
        (("profile", "add", "prod"), "give the server's URL"),
        (("profile", "add", "a b", "--url", "a:1"), "a profile's name has 1 to 64 characters"),
        (("profile", "add", "a", "--url", "ftp://a"), "is not the URL of a server"),
        (("profile", "add", "a", "--url", "a:1", "--api-key", "k"), "--store-key"),
        (("profile", "add", "a", "--url", "a:1", "--ca-file", "/nowhere"), "there is no file /nowhere"),
        (("profile", "use"), "give a profile, or --none"),
        (("profile", "use", "nowhere"), "there is no profile 'nowhere'"),
        (("profile", "get", "nowhere"), "there is no profile 'nowhere'"),
        (("profile", "rm", "nowhere"), "there is no profile 'nowhere'"),
    ],
)
def test_what_is_wrong_is_said_in_the_words_of_the_user(run: Run, words: tuple[str, ...], sentence: str) -> None:
    ended = run(*words)
    assert ended.exit_code in (1, 2)
    assert sentence in " ".join(ended.stderr.replace("│", " ").split()), ended.stderr


def test_profiles_are_kept_for_this_user_alone_and_without_keys(
    run: Run, config_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "key").write_text("the-key\n")
    monkeypatch.chdir(tmp_path)
    assert run("profile", "add", "prod", "--url", "prod:1/", "--api-key-file", "key", "--use").exit_code == 0
    assert run("profile", "add", "stored", "--url", "https://s", "--api-key", 'sec"ret', "--store-key").exit_code == 0
    path = config_home / "duemq" / "profiles.toml"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert os.listdir(path.parent) == [path.name]
    assert tomllib.loads(path.read_text()) == {
        "current": "prod",
        "profiles": {
            "prod": {"url": "http://prod:1", "api_key_file": str(tmp_path / "key")},
            "stored": {"url": "https://s", "api_key": 'sec"ret'},
        },
    }
    assert run("profile", "add", "prod", "--url", "other:1").exit_code == 2
    assert run("profile", "add", "prod", "--url", "other:1", "--replace").exit_code == 0
    listed = run("profile", "ls").stdout
    assert listed == "*\tprod\thttp://other:1\t-\n\tstored\thttps://s\t(hidden)\n"
    for words in (("get", "stored"), ("show", "stored", "--json"), ("ls", "--json")):
        assert "sec" not in (said := run("profile", *words).stdout) and "https://s" in said
    assert run("profile", "use", "--none").exit_code == 0
    assert "current" not in tomllib.loads(path.read_text())
    assert run("profile", "rm", "prod").exit_code == 0
    assert run("profile", "ls").stdout == "\tstored\thttps://s\t(hidden)\n"


def test_without_a_folder_of_configuration_there_are_no_profiles(
    run: Run, asked: list[tuple[str, str | None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", "/dev/null")
    assert run("topic", "ls").exit_code == 0 and asked == [("http://127.0.0.1:8787", None)]
    ended = run("profile", "add", "prod", "--url", "prod:1")
    assert (
        ended.exit_code == 1
        and ended.stderr == "duemq: the profiles in /dev/null/duemq cannot be written: Not a directory\n"
    )


def test_a_link_to_the_file_of_profiles_stays_a_link(run: Run, config_home: Path, tmp_path: Path) -> None:
    (config_home / "duemq").mkdir(parents=True)
    (config_home / "duemq" / "profiles.toml").symlink_to(tmp_path / "kept.toml")
    assert run("profile", "add", "prod", "--url", "prod:1").exit_code == 0
    assert (config_home / "duemq" / "profiles.toml").is_symlink() and "prod:1" in (tmp_path / "kept.toml").read_text()


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[profiles.a", "are not TOML"),
        ("\xff", "are not TOML"),
        ("profile = 1", "profile is not known"),
        ("profiles = 1", "profiles are sections"),
        ("[profiles.a]", "profiles.a has no url"),
        ("[profiles.a]\nurl = 1", "profiles.a.url must be text"),
        ("[profiles.a]\nurl = 'a:1'\nkey = 'x'", "profiles.a.key is not known"),
        ("current = 'b'\n[profiles.a]\nurl = 'a:1'", "current = 'b', but there is no such profile"),
        ("current = 1", "current = 1, but there is no such profile"),
    ],
)
def test_a_file_of_profiles_that_cannot_be_used_is_one_sentence(
    run: Run, config_home: Path, text: str, sentence: str
) -> None:
    path = config_home / "duemq" / "profiles.toml"
    path.parent.mkdir(parents=True)
    path.write_bytes(text.encode("latin-1"))
    path.chmod(0o600)
    for words in (
        ("topic", "ls"),
        ("profile", "ls"),
        ("profile", "add", "b", "--url", "b:1"),
        ("profile", "use", "--none"),
    ):
        ended = run(*words)
        assert ended.exit_code == 1
        assert ended.stderr.startswith("duemq: ") and ended.stderr.count("\n") == 1
        assert sentence in ended.stderr and str(path) in ended.stderr
    assert path.read_bytes() == text.encode("latin-1")


def test_profiles_that_others_can_read_or_write_are_refused(run: Run, config_home: Path) -> None:
    assert run("profile", "add", "prod", "--url", "prod:1").exit_code == 0
    path = config_home / "duemq" / "profiles.toml"
    for mode in (0o640, 0o602):
        path.chmod(mode)
        ended = run("--profile", "prod", "ls", "--json")
        assert (ended.exit_code, ended.stderr) == (1, f"duemq: {path} is open to other users: chmod 600 {path}\n")
        assert '"kind":"BadConfig"' in ended.stdout


def test_open_prints_the_console_where_there_is_no_browser(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []

    def opens(address: str) -> bool:
        opened.append(address)
        return True

    monkeypatch.setattr("webbrowser.open", opens)
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "WSL_DISTRO_NAME", "BROWSER"):
        monkeypatch.delenv(name, raising=False)
    assert run("profile", "add", "prod", "--url", "https://prod/", "--use").exit_code == 0
    assert run("open").stdout == "https://prod/console/\n" and opened == []
    monkeypatch.setenv("DISPLAY", ":0")
    assert run("open").stdout == "" and opened == ["https://prod/console/"]
    assert run("open", "--print").stdout == "https://prod/console/\n" and len(opened) == 1
    monkeypatch.setattr("webbrowser.open", lambda address: False)
    assert run("open", "--url", "here:1").stdout == "http://here:1/console/\n"
