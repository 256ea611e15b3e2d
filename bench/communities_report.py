"""What is reported of communities."""

from bench.communities_results import Communities
from bench.results import median_of
from bench.tables import number, table


def communities_text(measured: Communities) -> str:
    """The medians, as tables."""
    what = (
        f"{measured.messages:,} messages in {measured.weeks} weeks, {number(measured.data_bytes, 1e-6)} MB of archives"
    )
    index_ms = number(median_of(measured.index_s), 1e3)
    return (
        f"A community of {what}, made in one run of local[2] (medians; in brackets the slowest and the fastest)\n"
        f"{making_table(measured)}\n\n"
        f"An index of {measured.index_entries} archives is read and checked in {index_ms} ms "
        f"({number(max(measured.index_s), 1e3)} at most)\n\n"
        f"{number(measured.fetched_bytes, 1e-6)} MB of it between two torrent processes on loopback, then imported "
        f"({measured.fetched_messages:,} messages)\n"
        f"{fetching_table(measured)}\n\n"
        f"Resident memory of `community serve` and its torrent process, MB, with copies of it\n"
        f"{serving_table(measured)}"
    )


def making_table(measured: Communities) -> str:
    """How fast the archives were made."""
    rates = sorted(measured.messages / run.seconds for run in measured.making)
    header = ["messages/s", "(from - to)", "seconds", "CPU s", "start s", "peak MB"]
    row = [
        number(median_of(rates), 1),
        f"({number(rates[0], 1)} - {number(rates[-1], 1)})",
        number(median_of(run.seconds for run in measured.making), 1),
        number(median_of(run.cpu_s for run in measured.making), 1),
        number(median_of(run.start_s for run in measured.making), 1),
        number(median_of(run.peak_bytes for run in measured.making), 1e-6),
    ]
    return table(header, [row])


def fetching_table(measured: Communities) -> str:
    """How fast they were fetched and imported."""
    runs = measured.fetching
    header = ["fetched in s", "(slowest)", "imported/s", "(slowest)", "CPU us each", "bytes twice"]
    rates = sorted(measured.fetched_messages / run.import_s for run in runs)
    row = [
        number(median_of(run.fetch_s for run in runs), 1),
        f"({number(max(run.fetch_s for run in runs), 1)})",
        number(median_of(rates), 1),
        f"({number(rates[0], 1)})",
        number(median_of(run.cpu_s for run in runs), 1e6 / measured.fetched_messages),
        number(max(run.twice_bytes for run in runs), 1),
    ]
    return table(header, [row])


def serving_table(measured: Communities) -> str:
    """What serving takes."""
    header = ["communities", "service", "(publishing)", "torrents", "(publishing)", "ready in s", "published in s"]
    rows = [
        [
            number(each.communities, 1),
            number(each.service_bytes, 1e-6),
            f"({number(each.service_peak_bytes, 1e-6)})",
            number(each.torrents_bytes, 1e-6),
            f"({number(each.torrents_peak_bytes, 1e-6)})",
            number(each.start_s, 1),
            number(each.publish_s, 1),
        ]
        for each in measured.serving
    ]
    return table(header, rows)
