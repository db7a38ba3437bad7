"""Passwords in addresses are told to nobody."""

from __future__ import annotations

import pytest

from fints.study.addresses import one_line, without_secrets


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("postgresql+psycopg://u:s3cr%40t@db:5432/x", "postgresql+psycopg://u:***@db:5432/x"),
        ("http://u:s3cret@host:5000/a", "http://u:***@host:5000/a"),
        ("postgresql://:s3cret@h/x", "postgresql://:***@h/x"),
        ("postgresql://h/x?user=u&password=s3cret&a=b", "postgresql://h/x?user=u&password=***&a=b"),
        ("see http://a:s3cret@b, and http://c", "see http://a:***@b, and http://c"),
        ("sqlite:////data/a:b@c.db", "sqlite:////data/a:b@c.db"),
        ("http://127.0.0.1:5000/#/x@y", "http://127.0.0.1:5000/#/x@y"),
        ("postgresql+psycopg://u@db/x", "postgresql+psycopg://u@db/x"),
        ("postgresql+psycopg://u:s3/c#r?t@db:5432/x", "postgresql+psycopg://u:***@db:5432/x"),
        ("postgresql+psycopg//u:s3cret@db/x", "postgresql+psycopg//u:***@db/x"),
        ("u:s3cret@db/x", "u:***@db/x"),
        ("host=db password=s3cret user=u", "host=db password=*** user=u"),
        ("http://s3cret@host:5000", "http://***@host:5000"),
        ("http://host/?access_token=s3cret&a=b", "http://host/?access_token=***&a=b"),
        ("http://host/?api_key=s3cret", "http://host/?api_key=***"),
        ("2024-01-01T10:30:00 a@b", "2024-01-01T10:30:00 a@b"),
    ],
)
def test_a_password_is_three_stars_and_the_rest_stays(text: str, told: str) -> None:
    assert without_secrets(text) == told
    assert without_secrets(told) == told


def test_a_driver_that_quotes_the_password_elsewhere_is_not_repeated() -> None:
    address = "postgresql+psycopg://u:s3cr%40t@db/x"
    error = OSError("cannot connect: password='s3cr@t' host=db\nand user=u password=s3cr@t")
    told = one_line(error, address)
    assert told == "cannot connect: password='***' host=db"
