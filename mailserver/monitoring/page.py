"""The status page: one self-contained HTML file, assembled from `assets/`, and its Content-Security-Policy.

The policy lets a browser run only the scripts and apply only the styles in the page, by their SHA-256, and lets it ask
nobody but us.
"""

import base64
import hashlib
import re
from dataclasses import dataclass
from importlib.resources import files

_PART = re.compile(r"@([\w.]+\.(?:css|js))@")


@dataclass(frozen=True, slots=True)
class RenderedPage:
    """The page, in UTF-8, and its Content-Security-Policy."""

    html: bytes
    policy: str


def load_page() -> RenderedPage:
    """Assemble the page."""
    parts: dict[str, str] = {}

    def part(match: re.Match[str]) -> str:
        return parts.setdefault(match[1], _asset(match[1]))

    html = _PART.sub(part, _asset("page.html"))
    return RenderedPage(html.encode(), _policy(parts))


def _policy(parts: dict[str, str]) -> str:
    def hashes(suffix: str) -> str:
        return " ".join(_hash(text) for name, text in parts.items() if name.endswith(suffix))

    return "; ".join(
        (
            "default-src 'none'",
            f"script-src {hashes('.js')}",
            f"style-src {hashes('.css')}",
            "img-src data:",  # the icon, which is empty, so that no browser asks for one
            "connect-src 'self'",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
        )
    )


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _asset(name: str) -> str:
    return (files("mailserver.monitoring") / "assets" / name).read_text(encoding="utf-8")
