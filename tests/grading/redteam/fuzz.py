"""Settings of the fuzz tests: few and always the same inputs in the suite, many random ones with
`make nightly`."""

import os

from hypothesis import HealthCheck, settings

EXAMPLES = os.environ.get("FUZZ_EXAMPLES")


def fuzz(num: int) -> settings:
    """Return the settings for `num` inputs in the suite; `FUZZ_EXAMPLES` random ones if that
    variable is set."""
    checks = [
        HealthCheck.too_slow,
        HealthCheck.filter_too_much,
        HealthCheck.data_too_large,
        HealthCheck.function_scoped_fixture,
    ]
    return settings(
        max_examples=int(EXAMPLES or num),
        deadline=None,
        derandomize=EXAMPLES is None,
        suppress_health_check=checks,
    )
