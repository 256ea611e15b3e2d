"""What PostgreSQL itself says of a store."""

from tests.store.postgres.server import Server


def assert_sound(server: Server, schema: str) -> None:
    """What is counted says what counting would, and each partition has its day."""

    def rows(statement: str) -> list[str]:
        return sorted(server.sql(statement, schema).splitlines())

    assert rows("SELECT day, reception_day, envelopes, bytes FROM counts") == rows(
        "SELECT created / 86400, received / 86400, count(*), sum(octet_length(raw)) FROM envelopes GROUP BY 1, 2"
    )
    assert not rows(
        "SELECT created / 86400, received / 86400, max(received), max(seq) FROM envelopes GROUP BY 1, 2 "
        "EXCEPT SELECT e.created / 86400, e.received / 86400, least(max(last_received), max(e.received)), "
        "least(max(last_seq), max(e.seq)) FROM envelopes AS e JOIN counts AS c "
        "ON c.day = e.created / 86400 AND c.reception_day = e.received / 86400 GROUP BY 1, 2"
    )
    topics = "SELECT DISTINCT created / 86400, get_byte(topic, 2), topic FROM envelopes"
    assert rows(topics) == rows("SELECT * FROM day_topics WHERE day IN (SELECT day FROM counts)")
