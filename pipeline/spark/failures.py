"""What went wrong in Spark as one of our errors, in a sentence: it comes wrapped into pages of tracebacks and plans."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from py4j.protocol import Py4JError
from pyspark.errors import AnalysisException, PySparkException, PythonException

from duemq.client.http.errors import BY_CODE
from duemq.model.errors import DuemqError, Rejected, Unavailable
from duemq.pipeline.errors import BadInput, JobFailed

_AWAY = ("Unavailable", "DiskFull", "Unreachable")
_OURS = "duemq."  # what the names of our errors begin with in a traceback
_OUR_ERROR = re.compile(r"^(?:duemq\.[a-z_.]+\.)(\w+): (.+)$", re.MULTILINE)
_CAUSE = re.compile(r"^\s*(?:Caused by: )(?:\w+\.)*([\w$]+(?:: .+)?)$", re.MULTILINE)
_OF_PYTHON = re.compile(r"^((?:\w+\.)*\w+: .+)$", re.MULTILINE)


@contextmanager
def failures_told(and_then: str) -> Iterator[None]:
    """An error of ours that ended an executor's work is raised anew; any other of Spark is JobFailed, in a sentence.

    `and_then`: what that means for the job, in a sentence. SQL that Spark does not understand, and names that it does
    not know, are BadInput.
    """
    try:
        yield
    except AnalysisException as error:
        raise BadInput(str(error).partition("\n")[0].partition(" SQLSTATE:")[0]) from error
    except (PySparkException, Py4JError) as error:
        if (match := _OUR_ERROR.search(str(error))) is not None:
            raise _error_of(match[1], f"{match[2]}. {and_then}") from error
        raise JobFailed(f"Spark could not do its work: {_cause(error)}. {and_then}") from error


def sentence_of(error: Exception, also: str | None = None) -> str:
    """The line that says what it was: of the last error of ours, or with `also` in it; else the first line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    telling = [line for line in lines if line.startswith(_OURS) or (also is not None and also in line)]
    if telling:
        return telling[-1].partition(": ")[2]
    return lines[0] if lines else "the query ended without a word"


def _cause(error: Exception) -> str:
    """The line of the innermost error: what comes before it says which stage, task or file ended with that."""
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
