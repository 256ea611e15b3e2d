"""Mermaid diagrams of the docs, drawn while the site is built: readers need no script, and a faulty one is found."""

import re

import mermaidx
from docutils import nodes
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective

log = logging.getLogger(__name__)


class DiagramFault(Exception):
    """Mermaid cannot draw it; the text is what it says."""


def draw(source: str, name: str) -> str:
    """Draw a diagram with Mermaid; return it as an SVG element.

    Args:
        name: its id, which must be the only one of a page: the style of a diagram refers to it.
    Raises:
        DiagramFault: it is no diagram that Mermaid knows.
    """
    try:
        drawn = mermaidx.render(source).svg()
    except RuntimeError as error:
        raise DiagramFault(str(error)) from error
    return re.sub(r"\bmy-svg\b", name, drawn)


class Mermaid(SphinxDirective):
    """A fenced block of Mermaid."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        """Put the drawn diagram in its place."""
        name = f"diagram-{self.env.new_serialno('diagram')}"
        try:
            drawn = draw("\n".join(self.content), name)
        except DiagramFault as fault:
            log.warning("%s", fault, location=self.get_location())
            return []
        return [nodes.raw("", f'<div class="diagram">{drawn}</div>', format="html")]
