"""What a database's table is known by: no password is in it, and none changes it."""

from __future__ import annotations

import pytest

from duemq.pipeline.logs.tables import jdbc_print


@pytest.mark.parametrize(
    ("one", "alike"),
    [
        ("jdbc:sqlserver://db:1433;databaseName=shop;user=sa;password=S3cret", "jdbc:sqlserver://db:1433;databaseName=shop"),
        ("jdbc:sqlserver://db;password={a;b};databaseName=shop", "jdbc:sqlserver://db;databaseName=shop;encrypt=true"),
        ("jdbc:oracle:thin:scott/ti?ger@//db:1521/shop", "jdbc:oracle:thin:scott/lion@//db:1521/shop"),
        ("jdbc:postgresql://me:secret@db/shop?ssl=true", "jdbc:postgresql://db/shop?password=p@ss"),
    ],
)  # fmt: skip
def test_another_password_is_the_same_table(one: str, alike: str) -> None:
    assert jdbc_print(one, "t") == jdbc_print(alike, "t")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("jdbc:sqlserver://db;databaseName=shop", "jdbc:sqlserver://db;databaseName=crm"),
        ("jdbc:oracle:thin:a/b@//db:1521/shop", "jdbc:oracle:thin:a/b@//db:1521/crm"),
        ("jdbc:postgresql://db/shop", "jdbc:postgresql://db2/shop"),
        ("jdbc:snowflake://acme.com/?db=shop&user=u", "jdbc:snowflake://acme.com/?db=crm&user=u"),
    ],
)
def test_another_database_is_another_table(one: str, other: str) -> None:
    assert jdbc_print(one, "t") != jdbc_print(other, "t") and jdbc_print(one, "t") != jdbc_print(one, "u")
