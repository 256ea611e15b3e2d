"""From what the job has made to what is published: `index.next` becomes `index`, and the torrent of the two is made."""

from mailserver.community.owner.folders import CommunityFolder
from mailserver.files import sync_folder


def take_next_index(folder: CommunityFolder) -> bool:
    """Make `index` of `index.next`; return whether there was one. A kill leaves the one or the other.

    Raises:
        OSError: it cannot be renamed.
    """
    try:
        folder.next_index.replace(folder.index)
    except FileNotFoundError:
        return False
    sync_folder(folder.path)
    return True
