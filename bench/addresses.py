"""Addresses of loopback to connect from: whoever counts by address or subnet takes each for another host."""


def address(number: int, *, subnet: int | None = None) -> str:
    """An address of loopback to come from; different numbers (below 50,000) are different subnets (/24).

    Args:
        subnet: be the neighbours of this number instead, up to 250 of them.
    """
    high, low = divmod(number if subnet is None else subnet, 250)
    return f"127.{10 + high}.{low}.{1 if subnet is None else 2 + number}"
