"""Addresses of databases and servers: told without their secrets, and refused where no study can live."""

from __future__ import annotations

import re
from urllib.parse import unquote

__all__ = ["one_line", "without_secrets"]

# user:password@ of any scheme, and what a query may hide.
_PASSWORD = re.compile(r"(?P<before>[A-Za-z][A-Za-z0-9+.-]*://[^\s/?#@:]*):(?P<secret>[^\s/?#]*)@")
_QUERY = re.compile(r"(?i)(?P<before>[?&](?:password|passwd|token|sslpassword)=)(?P<secret>[^\s&#]+)")


def without_secrets(text: str, *addresses: str | None) -> str:
    """Return `text` with every password in an address as ``***``.

    Parameters
    ----------
    text : str
        An address, or words that may quote one.
    addresses
        Addresses whose secrets are known: they are taken out wherever else they stand.
    """
    for address in addresses:
        for pattern in (_PASSWORD, _QUERY):
            for found in pattern.finditer(address or ""):
                secret = found["secret"]
                for known in {secret, unquote(secret)} - {""}:
                    text = re.sub(rf"(?<=[:=\"' ]){re.escape(known)}(?=[@&\"'\s]|$)", "***", text)
    text = _PASSWORD.sub(r"\g<before>:***@", text)
    return _QUERY.sub(r"\g<before>***", text)


def one_line(error: BaseException, *addresses: str | None) -> str:
    """Return what an error says, in one line and without secrets."""
    text = str(error).strip() or type(error).__name__
    return without_secrets(" ".join(text.splitlines()[0].split()), *addresses)
