"""Where all communities are, ours and those that were joined: `DIR/communities/<id>`."""

from pathlib import Path

from mailserver.files import PRIVATE_FOLDER, make_folder

COMMUNITIES_FOLDER = "communities"
"""In the data directory."""

OWNED_FILE = "community.json"
"""What the owner has said. A community that has it is ours, even if it was joined before."""

MAX_COMMUNITIES = 1000
"""Most folders that are looked at."""


def make_communities_folder(communities: Path) -> None:
    """Make it, and the data directory around it, if they are not there: for their owner only.

    Commands may come before the first start of the mailserver, which refuses a data directory that is open to others.

    Raises:
        OSError: one of them cannot be made.
    """
    make_folder(communities.parent, PRIVATE_FOLDER)
    make_folder(communities, PRIVATE_FOLDER)
