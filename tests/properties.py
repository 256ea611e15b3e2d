"""How many examples properties are tested with, and which: by profile, see `register_profiles`.

Properties take their `settings` from here, not from hypothesis: so their numbers of examples follow the profile.
"""

from collections.abc import Collection, Sequence
from enum import StrEnum

import hypothesis
from hypothesis import HealthCheck, Phase

USUAL_EXAMPLES = 100
"""Of a property that names no number, in the gate."""


class Profile(StrEnum):
    """Of `pytest --hypothesis-profile`."""

    GATE = "gate"
    """The default. The same examples each time: whoever clones sees what we have seen."""

    FRESH = "fresh"
    """Other examples each time, ten times as many: `make fuzz` runs it again and again. `--hypothesis-seed` repeats."""

    LONG = "long"
    """The same with a hundred times as many, to look for bounds that chance can meet."""


TIMES = {Profile.GATE: 1, Profile.FRESH: 10, Profile.LONG: 100}
"""How many times as many examples as in the gate."""


def register_profiles() -> None:
    """Make the profiles known, and the gate's the default. None of them fails because a machine is slow."""
    for profile, times in TIMES.items():
        hypothesis.settings.register_profile(
            profile,
            # What an editor, or the machine of a CI, has set must not leak in.
            parent=hypothesis.settings.get_profile("default"),
            max_examples=USUAL_EXAMPLES * times,
            derandomize=profile is Profile.GATE,
            database=None,
            print_blob=profile is not Profile.GATE,
            deadline=None,
            suppress_health_check=(HealthCheck.too_slow,),
        )
    hypothesis.settings.load_profile(Profile.GATE)


def settings(
    *,
    max_examples: int = USUAL_EXAMPLES,
    phases: Collection[Phase] | None = None,
    stateful_step_count: int | None = None,
    suppress_health_check: Sequence[HealthCheck] = (),
) -> hypothesis.settings:
    """What a property has of its own.

    Args:
        max_examples: in the gate; in other profiles as many times as many as these say.
        suppress_health_check: in addition to the profile's.
    """
    profile = hypothesis.settings()
    return hypothesis.settings(
        profile,
        max_examples=max_examples * profile.max_examples // USUAL_EXAMPLES,
        phases=profile.phases if phases is None else phases,
        stateful_step_count=profile.stateful_step_count if stateful_step_count is None else stateful_step_count,
        suppress_health_check=(*profile.suppress_health_check, *suppress_health_check),
    )
