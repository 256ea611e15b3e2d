from pathlib import Path

import pytest

from mailserver.communities.channels import chat_channel, community_id, id_text, universal_channel
from mailserver.community.folder import COMMUNITIES_FOLDER
from mailserver.community.member import joined
from mailserver.community.member.joined import Joined, MembershipError, membership, memberships
from mailserver.community.owner.folders import create
from tests.community.member.publishing import FOREIGNER, OWNER
from tests.community.owner.samples import garden

COMMUNITY, OTHER = community_id(OWNER.public_key), community_id(FOREIGNER.public_key)


def test_record_of_another_community_is_refused(tmp_path: Path) -> None:
    folder = membership(tmp_path, COMMUNITY)
    folder.write(Joined(COMMUNITY))
    folder.record.write_text(folder.record.read_text().replace(id_text(COMMUNITY), id_text(OTHER)))

    with pytest.raises(MembershipError, match="is of another community"):
        folder.read()


def test_folder_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "communities").write_text("a file")

    with pytest.raises(MembershipError, match="cannot write"):
        membership(tmp_path, COMMUNITY).write(Joined(COMMUNITY))
    with pytest.raises(MembershipError, match="cannot lock"), membership(tmp_path, COMMUNITY).locked():
        pass


def test_all_folders_of_a_membership_are_their_owners_alone(tmp_path: Path) -> None:
    folder = membership(tmp_path / "data", COMMUNITY)
    folder.write(Joined(COMMUNITY))

    made = [folder.path, *folder.path.parents[:3]]
    assert made[-1] == tmp_path / "data"
    assert [path.stat().st_mode & 0o777 for path in made] == [0o700] * 4


def test_folder_that_is_named_for_no_community_is_said(tmp_path: Path) -> None:
    member = tmp_path / "communities" / "0x01" / "member"
    member.mkdir(parents=True)
    (member / "member.json").write_text("{}")

    with pytest.raises(MembershipError, match="community id"):
        memberships(tmp_path)


def test_community_that_has_become_ours_is_not_followed_any_more(tmp_path: Path) -> None:
    folder = membership(tmp_path, COMMUNITY)
    folder.write(Joined(COMMUNITY))

    create(tmp_path / COMMUNITIES_FOLDER, garden(), OWNER)

    assert memberships(tmp_path) == []
    with pytest.raises(MembershipError, match="is ours"):
        folder.write(Joined(COMMUNITY))


def test_there_is_a_bound_on_communities(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for community in (COMMUNITY, OTHER):
        membership(tmp_path, community).write(Joined(community))
    assert len(memberships(tmp_path)) == 2
    monkeypatch.setattr(joined, "MAX_COMMUNITIES", 1)

    with pytest.raises(MembershipError, match="more than 1 communities"):
        memberships(tmp_path)


def test_keys_and_topics_are_those_of_the_channels_and_of_the_universal_one() -> None:
    said = Joined(COMMUNITY, ("news",))
    channels = chat_channel("news"), universal_channel(COMMUNITY)

    assert said.topics == {channel.topic for channel in channels}
    assert said.keys() == {channel.content_topic: channel.key for channel in channels}
