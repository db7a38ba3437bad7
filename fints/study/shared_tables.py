"""The tables of ours beside Optuna's in the database that the machines of one study share."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import sqlalchemy

__all__ = ["FORMAT", "are_there", "check_format", "create_tables", "tables"]

# A store of another format is refused by name.
FORMAT = 1


@functools.cache
def tables() -> dict[str, sqlalchemy.Table]:
    """Return our tables by name."""
    import sqlalchemy as sa

    metadata = sa.MetaData()
    now = sa.func.now()
    sa.Table("fints_format", metadata, sa.Column("format", sa.Integer, nullable=False))
    sa.Table(
        "fints_studies",
        metadata,
        sa.Column("name", sa.String(512), primary_key=True),
        sa.Column("spec", sa.Text, nullable=False),
        sa.Column("baselines", sa.Text, nullable=False),
        sa.Column("facts", sa.Text, nullable=False),
        sa.Column("stored", sa.DateTime, server_default=now),
    )
    sa.Table(
        "fints_fits",
        metadata,
        sa.Column("study", sa.String(512), primary_key=True),
        sa.Column("key", sa.String(64), primary_key=True),
        sa.Column("loss", sa.Double, nullable=False),
        sa.Column("attempt", sa.String(512), nullable=False),
        sa.Column("sha256", sa.String(64), nullable=False),
        sa.Column("content", sa.LargeBinary, nullable=False),
        sa.Column("stored", sa.DateTime, server_default=now),
    )
    sa.Table(
        "fints_workers",
        metadata,
        sa.Column("worker", sa.String(256), primary_key=True),
        sa.Column("study", sa.String(512), nullable=False, index=True),
        sa.Column("host", sa.String(256), nullable=False),
        sa.Column("pid", sa.Integer, nullable=False),
        sa.Column("beat", sa.BigInteger, nullable=False),
        sa.Column("since", sa.DateTime, server_default=now),
    )
    return dict(metadata.tables)


def create_tables(engine: sqlalchemy.Engine) -> None:
    """Make the tables that are not there, and note their format."""
    table = tables()["fints_format"]
    table.metadata.create_all(engine)
    with engine.begin() as connection:
        if connection.execute(table.select()).first() is None:
            connection.execute(table.insert().values(format=FORMAT))


def are_there(engine: sqlalchemy.Engine) -> bool:
    """Tell whether the tables are, all of them: their format is noted last."""
    import sqlalchemy

    table = tables()["fints_format"]
    if not sqlalchemy.inspect(engine).has_table(table.name):
        return False
    with engine.connect() as connection:
        return connection.execute(table.select()).first() is not None


def check_format(engine: sqlalchemy.Engine) -> None:
    """Refuse tables of another format.

    Raises
    ------
    ValueError
        If they are.
    """
    with engine.connect() as connection:
        found = connection.execute(tables()["fints_format"].select()).scalar_one()
    if found != FORMAT:
        raise ValueError(
            f"its tables are of format {found} and this fints reads format {FORMAT}: use the release that "
            "wrote them, or another database"
        )
