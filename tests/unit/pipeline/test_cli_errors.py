"""How errors end a command of `duemq spark`."""

from __future__ import annotations

import orjson
import pytest
import typer
from typer.testing import CliRunner

from duemq.pipeline.cli.app import app
from duemq.pipeline.cli.command import report_errors
from duemq.pipeline.errors import JobFailed, RowsRejected, Stopped
from duemq.pipeline.spark.failures import failures_told


@pytest.mark.parametrize(("error", "code"), [(JobFailed("a"), 1), (RowsRejected("b"), 7), (Stopped("c"), 130)])
def test_an_error_has_an_exit_code_and_a_document(
    error: Exception, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(typer.Exit) as ended, report_errors(as_json=True):
        raise error
    shown = capsys.readouterr()
    assert ended.value.exit_code == code and shown.err.strip().endswith(str(error))
    assert orjson.loads(shown.out) == {"error": {"kind": type(error).__name__, "detail": str(error)}}


def test_ctrl_c_says_how_to_continue() -> None:
    with pytest.raises(Stopped, match=r"^stopped\. Run it again$"), failures_told("Run it again"):
        raise KeyboardInterrupt


@pytest.mark.parametrize(
    "words",
    [["schedule", "x", "--lead", "soon"], ["audit", "--out", "x", "--since", "noon"],
     ["audit", "--out", "x", "--until", "noon"], ["schedule", "x", "--soon", "later"]],
)  # fmt: skip
def test_a_wrong_option_is_refused_before_spark_starts(words: list[str]) -> None:
    assert CliRunner().invoke(app, words).exit_code == 2
