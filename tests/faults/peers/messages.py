"""Attacks with messages: floods of envelopes and requests, from peers whose handshake is over."""

from tests.faults.peers.harness import Scenario

SCENARIOS: tuple[Scenario, ...] = ()
