"""The URL of a database: checked before anything else is done with it, and shown without its password.

A password that is not percent-encoded may end where it has an "@", a "/" or another character that parts a URL. The
driver then takes the rest of it for a host, a port or a setting, asks a name server for it, and names it in an error.
"""

import re
from urllib.parse import parse_qsl, urlencode, urlsplit

from mailserver.errors import StoreError

# Of a character that means something in a URL, each part takes only those that mean nothing there: so it can be read in
# one way only. RFC 3986, and several hosts, as libpq has them.
_HOST = r"(?:\[[0-9A-Fa-f:.]+\]|[^][/?#@:,]*)(?::\d*)?"
_URL = re.compile(
    rf"postgres(?:ql)?://(?:[^][/?#@]*@)?{_HOST}(?:,{_HOST})*(?:/[^?#@]*)?(?:\?(?:[^#@&=]+=[^#@&]*(?:&[^#@&=]+=[^#@&]*)*)?)?"
)


def check_url(url: str) -> None:
    """Check that a URL is one, and can be read in one way only.

    Raises:
        StoreError: it cannot. The URL is not shown: nobody knows where in it the password is.
    """
    if not _URL.fullmatch(url):
        raise StoreError(
            "the URL of the database cannot be read: what is not a letter or a digit in its user, password or settings "
            "must be percent-encoded, such as @ as %40, / as %2F, ? as %3F and # as %23"
        )


def shown_url(url: str) -> str:
    """A URL for people: without its password."""
    if not _URL.fullmatch(url):
        return "postgresql://..."
    parts = urlsplit(url)
    user, at, host = parts.netloc.rpartition("@")
    query = [(name, value) for name, value in parse_qsl(parts.query) if "password" not in name]
    shown = f"{parts.scheme}://{user.partition(':')[0]}{at}{host}{parts.path}"
    return f"{shown}?{urlencode(query, safe='/')}" if query else shown
