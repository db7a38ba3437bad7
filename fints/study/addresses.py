"""Addresses of databases and servers: told without their secrets, and refused where no study can live."""

from __future__ import annotations

import re
from urllib.parse import unquote

__all__ = ["one_line", "without_secrets"]

# user:password@, which a server's address ends at the first "/", "?" or "#" and a database's only at "@".
_SERVER = re.compile(r"(?P<before>\bhttps?://[^\s/?#@:]*):(?P<secret>[^\s/?#]*)@")
_DATABASE = re.compile(r"(?P<before>\b(?!https?:)[A-Za-z][A-Za-z0-9+.-]*://[^\s/?#@:]*):(?P<secret>[^\s@]*)@")
# The same in what is no address, and was meant as one.
_BROKEN = re.compile(
    r"(?P<before>(?<![\w./:-])(?:[A-Za-z][\w+.-]*//)?[\w.+-]+):(?P<secret>[^\s:@/][^\s@/]*)@"
)
# A token in the place of a user.
_TOKEN = re.compile(r"(?P<before>\bhttps?://)(?P<secret>[^\s/?#@:]+)@")
_NAMES = "password|passwd|pwd|passphrase|token|secret|api_?key"
_QUERY = re.compile(rf"(?i)(?P<before>(?:[?&\s]|^)\w*(?:{_NAMES})=['\"]?)(?P<secret>[^\s&#'\"]+)")
_PATTERNS = {
    _SERVER: r"\g<before>:***@",
    _DATABASE: r"\g<before>:***@",
    _BROKEN: r"\g<before>:***@",
    _TOKEN: r"\g<before>***@",
    _QUERY: r"\g<before>***",
}


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
        for pattern in _PATTERNS:
            for found in pattern.finditer(address or ""):
                secret = found["secret"]
                for known in {secret, unquote(secret)} - {""}:
                    text = re.sub(rf"(?<=[:=\"' ]){re.escape(known)}(?=[@&\"'\s]|$)", "***", text)
    for pattern, shown in _PATTERNS.items():
        text = pattern.sub(shown, text)
    return text


def one_line(error: BaseException, *addresses: str | None) -> str:
    """Return what an error says, in one line and without secrets."""
    text = str(error).strip() or type(error).__name__
    return without_secrets(" ".join(text.splitlines()[0].split()), *addresses)
