"""A block ends at its time limit, wherever the alarm finds it."""

import gc
import time

import pytest

from rlmods.grading.time_limit import LateError, time_limit


class TestTimeLimit:
    def test_no_alarm_after_the_block(self) -> None:
        with time_limit(0.1):
            time.sleep(0.01)
        time.sleep(0.2)

    def test_a_late_block_is_ended(self) -> None:
        start = time.monotonic()
        with pytest.raises(LateError), time_limit(0.05):
            time.sleep(30)
        assert time.monotonic() - start < 5

    @pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
    def test_an_alarm_that_the_garbage_collector_drops_is_repeated(self) -> None:
        def slow_callback(phase: str, info: dict[str, int]) -> None:
            time.sleep(0.2)

        def collect_then_wait() -> None:
            with time_limit(0.05):
                gc.collect()
                gc.callbacks.remove(slow_callback)
                time.sleep(30)

        start = time.monotonic()
        gc.callbacks.append(slow_callback)
        try:
            with pytest.raises(LateError):
                collect_then_wait()
        finally:
            if slow_callback in gc.callbacks:
                gc.callbacks.remove(slow_callback)
        assert time.monotonic() - start < 5
