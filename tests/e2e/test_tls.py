"""`duemq serve` with TLS: who gets in, what the command line says, and new certificates while it works."""

from __future__ import annotations

import signal
import ssl
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import httpx
import pytest

from duemq.client import Client
from duemq.tls.files import TlsFiles
from tests.e2e.server import Server, run, wait_for
from tests.support.tls.certificates import Authority


class SecureServer(Server):
    """With a certificate of `files`, which its own client trusts."""

    def __init__(self, data: Path, files: TlsFiles, *options: str) -> None:
        own = {"http.cert_file": files.cert, "http.key_file": files.key}
        super().__init__(data, *(part for key, value in own.items() for part in ("--set", f"{key}={value}")), *options)
        self.url = f"https://127.0.0.1:{self.port}"
        context = ssl.create_default_context(cafile=files.ca)
        context.load_cert_chain(files.cert, files.key)
        self.http = httpx.Client(base_url=self.url, timeout=300, verify=context)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority.make(tmp_path)


def test_from_nothing_to_a_server_with_tls(authority: Authority, tmp_path: Path) -> None:
    files, stranger = authority.issue("server"), Authority.make(tmp_path / "b")
    with SecureServer(tmp_path / "data", files) as server:
        server.start()
        assert f"duemq serves {server.url}" in server.log
        sent = run("--ca-file", files.ca, "send", "orders", "hello", "--after", "1h", "--name", "first", url=server.url)
        assert sent.returncode == 0, sent.stderr
        by_variable = run("get", "first", url=server.url, variables={"DUEMQ_CA_FILE": files.ca})
        assert by_variable.returncode == 0 and "hello" in by_variable.stdout, by_variable.stderr
        for trusted in ((), ("--ca-file", str(stranger.ca))):
            refused = run(*trusted, "get", "first", url=server.url)
            assert refused.returncode == 8 and "--ca-file, DUEMQ_CA_FILE" in refused.stderr, refused.stderr
        missing = run("--ca-file", "/none.pem", "get", "first", url=server.url)
        assert missing.returncode == 1 and "/none.pem cannot be read" in missing.stderr, missing.stderr
        plain = run("get", "first", url=server.url.replace("https", "http"))
        assert plain.returncode != 0 and "https://" in plain.stderr, plain.stderr
        assert run("health", "--listen", server.url).returncode == 0
        variables = {"DUEMQ_LISTEN": f"127.0.0.1:{server.port}", "DUEMQ_HTTP__CERT_FILE": files.cert}
        assert run("health", variables=variables).returncode == 0
        assert server.stop() == 0, server.log
        assert "WARNING" not in server.log and "ERROR" not in server.log, server.log


def test_clients_are_asked_for_certificates(authority: Authority, tmp_path: Path) -> None:
    files, client = authority.issue("server"), authority.issue("client")
    asks = ("--set", f"http.client_ca_file={files.ca}", "--set", "http.client_auth=required")
    with SecureServer(tmp_path / "data", files, *asks) as server:
        server.start()
        own = ("--ca-file", client.ca, "--cert-file", client.cert, "--key-file", client.key)
        sent = run(*own, "send", "orders", "hello", url=server.url)
        assert sent.returncode == 0, sent.stderr
        refused = run("--ca-file", client.ca, "send", "orders", "hello", url=server.url)
        assert refused.returncode == 8 and "refuses the certificate of this client" in refused.stderr, refused.stderr
        probe = {"DUEMQ_CERT_FILE": client.cert, "DUEMQ_KEY_FILE": client.key}
        assert run("health", "--listen", server.url, variables=probe).returncode == 0
        assert run("health", "--listen", server.url).returncode == 1


@pytest.mark.parametrize(
    ("setting", "value", "told"),
    [
        ("http.cert_file", "/none.pem", "http.cert_file: /none.pem cannot be read: No such file or directory"),
        ("http.key_file", "other.key", "http.key_file: the key in"),
        ("http.client_auth", "required", "http.client_ca_file is not set"),
    ],
)
def test_bad_files_stop_the_start(authority: Authority, tmp_path: Path, setting: str, value: str, told: str) -> None:
    files = authority.issue("server")
    authority.issue("other")
    value = str(tmp_path / value) if value.endswith(".key") else value
    done = run(
        "serve", "--data", tmp_path / "data", "--set", f"http.cert_file={files.cert}", "--set",
        f"http.key_file={files.key}", "--set", f"{setting}={value}",
    )  # fmt: skip
    assert done.returncode == 1 and done.stderr.startswith(f"duemq: {told}"), done.stderr
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("by_signal", [True, False])
def test_certificates_are_replaced_under_load(authority: Authority, tmp_path: Path, by_signal: bool) -> None:
    """No request fails, each message is there once, and new connections see the new certificate."""
    files = authority.issue("server")
    with SecureServer(tmp_path / "data", files) as server:
        server.start()
        stop, sent = Event(), [0] * 4

        def serial() -> object:
            with httpx.Client(verify=ssl.create_default_context(cafile=files.ca)) as http:
                answer = http.get(f"{server.url}/healthz")
                return answer.extensions["network_stream"].get_extra_info("ssl_object").getpeercert()["serialNumber"]

        def load(number: int) -> None:
            while not stop.is_set():
                with Client(server.url, ca_file=files.ca, timeout=300) as client:
                    for _ in range(40 if number % 2 else 1):  # some connections stay, others are new
                        client.send("orders", f"{number}-{sent[number]}")
                        sent[number] += 1

        with ThreadPoolExecutor(len(sent)) as threads:
            loads = [threads.submit(load, number) for number in range(len(sent))]
            try:
                for _ in range(3):
                    before, count = serial(), sum(sent)
                    authority.issue("server")
                    if by_signal:
                        server.process.send_signal(signal.SIGHUP)
                    wait_for(lambda before=before: serial() != before, "the new certificate")  # type: ignore[misc]
                    wait_for(lambda count=count: sum(sent) > count + 100, "more messages")  # type: ignore[misc]
            finally:
                stop.set()
            for each in loads:
                each.result()
        wait_for(lambda: len(server.records("orders")) >= sum(sent), "all of them")
        payloads = [record["payload"] for record in server.records("orders")]
        assert len(payloads) == len(set(payloads)) == sum(sent)
        Path(files.key).write_text("garbage")
        server.process.send_signal(signal.SIGHUP)
        wait_for(lambda: "TLS keeps its current files" in server.log, "the complaint")
        assert serial()
        assert server.stop() == 0, server.log
