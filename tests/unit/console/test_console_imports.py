"""The pages of imported files: what became of each, and the form that hands one over."""

from __future__ import annotations

from typing import Any

import pytest

from duemq.model.messages.import_command import ImportCommand
from duemq.model.timing import WINDOW_MS
from duemq.proxy.gateway.base import ImportStatus
from duemq.storage.shard.records import IMPORTED, REJECTED, ImportRecord
from tests.support.http.console_site import VIEWER, ConsoleSite, with_console
from tests.support.http.http_site import NOW

WINDOW = NOW + 4 * WINDOW_MS  # 2026-11-21T12:00Z
FORM = {"path": "/shared/a.parquet", "sha256": "0" * 64, "size": "2048", "window": "2026-11-21T12:00", "rows": "1000"}


def test_imports_are_shown_with_the_reason_of_a_refusal() -> None:
    async def scenario(site: ConsoleSite) -> None:
        assert "No file was imported yet" in await site.page("/imports")
        command = ImportCommand("/shared/<a>.parquet", "0" * 64, 2048, NOW, 1000)
        record = ImportRecord(7, command, REJECTED, NOW, "row 3: <b>")
        site.gateway.imported = [ImportStatus("0-7", 0, record)]
        text = await site.page("/imports?state=rejected&below=/shared")
        assert "/shared/&lt;a&gt;.parquet" in text and "row 3: &lt;b&gt;" in text and "2.0 KiB" in text
        assert (await site.ask("GET", "/imports?state=odd")).status_code == 400

    with_console(scenario)


def test_a_file_is_handed_over_by_the_fields_of_the_api_and_watched_while_it_is_pending() -> None:
    async def scenario(site: ConsoleSite) -> None:
        made = await site.ask("POST", "/imports", FORM | {"link": "1"})
        assert (made.status_code, made.headers["Location"]) == (303, "./imports/0-0?done=import")
        (status,) = site.gateway.imported
        record = status.import_record
        assert record is not None
        assert record.import_command == ImportCommand("/shared/a.parquet", "0" * 64, 2048, WINDOW, 1000, link=True)
        text = await site.page("/imports/0-0?done=import")
        assert "The file is handed over" in text and "1 of 2 replicas" in text and 'data-poll="2"' in text
        site.gateway.imported = [status._replace(import_record=ImportRecord(7, record.import_command, IMPORTED, NOW))]
        assert 'data-poll="2"' not in await site.page("/imports/0-0")
        site.gateway.imported = [ImportStatus("0-0", 0, None)]  # its shard has not said anything of it yet
        text = await site.page("/imports/0-0")
        assert 'data-poll="2"' in text and ">0-0</a>" in text
        assert (await site.ask("GET", "/imports/0-1")).status_code == 404

    with_console(scenario)


@pytest.mark.parametrize(
    ("typed", "field"),
    [
        ({"path": "a.parquet"}, "path"),
        ({"path": "/shared/\x00"}, "path"),
        ({"path": "s3://bucket"}, "path"),
        ({"sha256": "<i>"}, "sha256"),
        ({"size": "many"}, "size"),
        ({"size": "-1"}, "size"),
        ({"size": "0"}, "size"),
        ({"rows": ""}, "rows"),
        ({"window": "2026-11-21T12:01"}, "window"),
        ({"window": "soon"}, "window"),
        ({"window": "2026-11-21T10:00"}, "path"),  # too near
    ],
)
def test_what_is_wrong_with_a_file_is_told_at_its_field_and_what_was_typed_stays(
    typed: dict[str, str], field: str
) -> None:
    async def scenario(site: ConsoleSite) -> None:
        wrong = await site.ask("POST", "/imports", FORM | typed)
        assert wrong.status_code == 400 and 'role="alert"' in wrong.text and site.gateway.imported == []
        (marked,) = [part for part in wrong.text.split("<") if "aria-invalid" in part]
        assert f'name="{field}"' in marked and "<i>" not in wrong.text
        assert f'value="{(FORM | typed)["rows"]}"' in wrong.text

    with_console(scenario)


def test_who_may_not_send_sees_files_and_no_form() -> None:
    async def scenario(site: ConsoleSite) -> None:
        assert "Import a file" in await site.page("/imports")
        await site.become(VIEWER)
        assert "Import a file" not in await site.page("/imports")
        assert (await site.ask("POST", "/imports", FORM)).status_code == 403
        assert site.gateway.imported == []

    with_console(scenario)


def test_the_same_file_again_is_told_to_be_one() -> None:
    async def scenario(site: ConsoleSite) -> None:
        async def known(command: ImportCommand) -> Any:
            return ImportStatus("0-7", 0, None, True)

        site.gateway.import_file = known  # type: ignore[method-assign]
        made = await site.ask("POST", "/imports", FORM)
        assert made.headers["Location"] == "./imports/0-7?done=duplicate"

    with_console(scenario)
