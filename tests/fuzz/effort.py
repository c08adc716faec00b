"""How hard the fuzzing tests search: the same few examples in every `make test`, new and many more in `make full`."""

from hypothesis import HealthCheck, Phase, settings

from tests import depth


def examples(usually: int, in_full: int) -> settings:
    """Return the settings of a fuzzing test that tries so many examples."""
    return settings(
        max_examples=depth.often(usually, in_full),
        # `make test` is for regressions: it must not fail today for what it did not find yesterday.
        derandomize=not depth.FULL,
        database=None,
        deadline=None,
        report_multiple_bugs=False,
        # Each example makes the state that it needs, so one fixture serves all of them.
        suppress_health_check=list(HealthCheck),
        phases=[Phase.explicit, Phase.generate, Phase.shrink],
    )
