"""Turns Spark's errors, which come with pages of tracebacks and plans, into duemq's errors with a single sentence."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from py4j.protocol import Py4JError
from pyspark.errors import AnalysisException, PySparkException, PythonException

from duemq.client.http.errors import BY_CODE
from duemq.model.errors import DuemqError, Rejected, Unavailable
from duemq.pipeline.errors import BadInput, JobFailed, Stopped

_AWAY = ("Unavailable", "DiskFull", "Unreachable")
_OURS = "duemq."  # the prefix of duemq's errors in a traceback
_OUR_ERROR = re.compile(r"^(?:duemq\.[a-z_.]+\.)(\w+): (.+)$", re.MULTILINE)
_CAUSE = re.compile(r"^\s*(?:Caused by: )(?:\w+\.)*([\w$]+(?:: .+)?)$", re.MULTILINE)
_OF_PYTHON = re.compile(r"^((?:\w+\.)*\w+: .+)$", re.MULTILINE)


@contextmanager
def failures_told(and_then: str) -> Iterator[None]:
    """Raise an executor's duemq error as the driver's own, an error in SQL as BadInput, any other Spark error as
    JobFailed, and Ctrl-C as Stopped. `and_then`: a sentence about the state of the job, added to the error's text."""
    try:
        yield
    except KeyboardInterrupt as error:
        raise Stopped(f"stopped. {and_then}") from error
    except AnalysisException as error:
        raise BadInput(str(error).partition("\n")[0].partition(" SQLSTATE:")[0]) from error
    except (PySparkException, Py4JError) as error:
        if (match := _OUR_ERROR.search(str(error))) is not None:
            raise _error_of(match[1], f"{match[2]}. {and_then}") from error
        raise JobFailed(f"Spark could not do its work: {_cause(error)}. {and_then}") from error


def sentence_of(error: Exception, also: str | None = None) -> str:
    """The last line with one of duemq's errors or with the text `also`; the first line if there is no such line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    telling = [line for line in lines if line.startswith(_OURS) or (also is not None and also in line)]
    if telling:
        return telling[-1].partition(": ")[2]
    return lines[0] if lines else "the query ended without a word"


def _cause(error: Exception) -> str:
    """The innermost error, without the stage, task and file in the outer errors."""
    text = str(error)
    if isinstance(error, PythonException) and (lines := _OF_PYTHON.findall(text)):
        return str(lines[-1])
    causes = _CAUSE.findall(text)
    return str(causes[-1] if causes else sentence_of(error)).partition(" SQLSTATE:")[0].rstrip(".")


def _error_of(name: str, detail: str) -> DuemqError:
    if name in _AWAY:
        return Unavailable(detail)
    code = next((code for code, kind in BY_CODE.items() if kind.__name__ == name), None)
    return JobFailed(detail) if code is None else Rejected(code, detail)
