"""Requests made from the OpenAPI document, good and bad, for as long as is said: no undocumented answer, no growth.

    make fuzz                                  # or, with PYTHONPATH=. :
    python -m tests.fuzz.fuzz_api --minutes 10 --seed 1

With access control on, and the checks of `test_schemathesis.py`, which makes 25 of each kind. Ends with 1 where an
answer is a 500 or not as the document says, where the server died, or where its memory grew by more than its caches
explain.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import schemathesis
from hypothesis import HealthCheck, Phase
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.core.failures import FailureGroup
from schemathesis.core.result import Ok

from duemq.dev.servers.usage import usage
from tests.e2e.server import Server
from tests.functional.conftest import GUARD
from tests.functional.http.test_schemathesis import BATCH_CHECKS, BATCHES, CHECKS, schema

_EXAMPLES = 40  # of an operation, before it is another one's turn
_WITHIN_S = 300.0
_MIB = 1 << 20
_GROWTH_BYTES = 128 * _MIB  # since the first quarter: write buffers and the cache of the store take so much
_SETTINGS = hypothesis.settings(
    max_examples=_EXAMPLES, deadline=None, database=None, phases=(Phase.generate, Phase.shrink),
    suppress_health_check=list(HealthCheck),
)  # fmt: skip


class Fuzzer:
    """Asks one server. `requests`: how many, by operation. `failures`: the first of each operation and kind of data."""

    def __init__(self, url: str) -> None:
        self.requests = Counter[str]()
        self.failures: dict[str, str] = {}
        self._url = url

    def rounds(self, first_seed: int) -> Iterator[None]:
        """For ever; comes back after each operation."""
        operations = [found.ok() for found in schema.get_all_operations() if isinstance(found, Ok)]
        for number in itertools.count(first_seed):
            for operation, mode in itertools.product(operations, GenerationMode):
                name = f"{operation.method.upper()} {operation.path} ({mode.value} data)"
                if name not in self.failures:
                    self._ask(name, operation.as_strategy(mode), number)
                yield

    def _ask(self, name: str, cases: Any, number: int) -> None:
        try:
            hypothesis.seed(number)(_SETTINGS(hypothesis.given(case=cases)(self._one(name))))()
        except Unsatisfiable:  # nothing about this request can be wrong
            pass
        except (FailureGroup, Exception) as error:  # whatever it is, the others go on
            self.failures[name] = f"seed {number}: {error}"

    def _one(self, name: str) -> Callable[..., None]:
        def one(case: schemathesis.Case[Any]) -> None:
            self.requests[name] += 1
            checks = BATCH_CHECKS if case.operation.path in BATCHES else CHECKS
            case.call_and_validate(base_url=self._url, checks=checks, headers={"X-API-Key": GUARD}, timeout=_WITHIN_S)

        return one


def fuzz(server: Server, minutes: float, seed: int) -> list[str]:
    """What is wrong, in words; progress goes to the screen."""
    fuzzer = Fuzzer(server.url)
    began = time.monotonic()
    told_at, early = began, 0
    for _ in fuzzer.rounds(seed):
        now, rss = time.monotonic(), usage(server.process.pid).rss_bytes
        if server.process.poll() is not None:
            return [f"the server ended with exit code {server.process.returncode}:\n{server.log[-2_000:]}"]
        if now - began > minutes * 15 and not early:
            early = rss
        if now >= told_at or now - began > minutes * 60:
            told_at = now + 10
            print(
                f"{now - began:5.0f} s  {sum(fuzzer.requests.values()):,} requests, {rss / _MIB:,.0f} MiB, "
                f"{len(fuzzer.failures)} failures", flush=True,
            )  # fmt: skip
        if now - began > minutes * 60:
            break
    wrong = [f"{name}: {text}" for name, text in fuzzer.failures.items()]
    if rss > early + _GROWTH_BYTES:
        wrong.append(f"memory grew from {early / _MIB:,.0f} MiB after a quarter of the time to {rss / _MIB:,.0f} MiB")
    return wrong


def main() -> int:
    summary, _, more = (__doc__ or "").partition("\n\n")
    arguments = argparse.ArgumentParser(
        prog="python -m tests.fuzz.fuzz_api", description=summary, epilog=more,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    arguments.add_argument("--minutes", type=float, default=10)
    arguments.add_argument("--seed", type=int, default=1)
    said = arguments.parse_args()
    with tempfile.TemporaryDirectory(prefix="duemq-fuzz-") as folder, Server(Path(folder) / "data") as server:
        server.environment["DUEMQ_HTTP__API_KEYS"] = GUARD
        server.environment["DUEMQ_HTTP__MAX_WAIT_S"] = "0.2"  # a minute for each long poll would be most of the time
        wrong = fuzz(server.start(), said.minutes, said.seed)
        if not wrong and (code := server.stop()) != 0:
            wrong = [f"the server stopped with exit code {code}"]
    print("\n\n".join(wrong) or "nothing is wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
