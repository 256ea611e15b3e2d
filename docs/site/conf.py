"""What Sphinx builds the site from: the Markdown files as they are, README.md first. `make site` calls it.

A link that leads nowhere, a page that README.md does not name, and a diagram that cannot be drawn are warnings, and
`make site` takes a warning for an error. The pages ask no other site for anything.
"""

import re
import shutil
import tomllib
from pathlib import Path

from sphinx.application import Sphinx

from docs.site.diagrams import Mermaid

ROOT = Path(__file__).parents[2]
FIRST_PAGE = "README"

project = "waku-mailserver"
release = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]

extensions = ["myst_parser"]
root_doc = FIRST_PAGE
include_patterns = ["*.md", "docs/**.md"]
exclude_patterns = [".*", "bench", "data", "dist", "docker", "mailserver", "spark_export", "tests"]  # not looked into
highlight_language = "text"

myst_heading_anchors = 3
myst_fence_as_directive = {"mermaid"}

html_theme = "furo"
html_title = f"{project} {release}"
html_copy_source = False
html_show_copyright = False
html_use_index = False
html_static_path = [str(Path(__file__).parent / "static")]
html_css_files = ["site.css"]


def setup(app: Sphinx) -> None:
    """Add what Sphinx does not have: diagrams, the navigation, and a page that web servers find by themselves."""
    app.add_directive("mermaid", Mermaid)
    app.connect("source-read", _add_navigation)
    app.connect("build-finished", _add_index)


def _add_navigation(_app: Sphinx, page: str, source: list[str]) -> None:
    """Let the navigation be what README.md links to under "Documentation": one list for both."""
    if page != FIRST_PAGE:
        return
    _, _, links = source[0].partition("\n## Documentation\n")
    parts = re.split(r"^\*\*(.+)\*\*$", links.partition("\n## ")[0], flags=re.MULTILINE)
    for caption, text in zip(parts[1::2], parts[2::2], strict=True):
        pages = re.findall(r"\]\(([^)#:]+)\.md\)", text)
        source[0] += "\n".join(["", "```{toctree}", ":hidden:", f":caption: {caption}", "", *pages, "```", ""])


def _add_index(app: Sphinx, error: Exception | None) -> None:
    if error is None:
        shutil.copyfile(app.outdir / f"{FIRST_PAGE}.html", app.outdir / "index.html")
