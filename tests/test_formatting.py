"""Numbers as people read them."""

from __future__ import annotations

import pytest

from workbench.formatting import duration


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "N/A"),
        (0, "0s"),
        (59.4, "59s"),
        (59.6, "1m00s"),
        (725, "12m05s"),
        (3599.7, "1h00m"),
        (79_800, "22h10m"),
        (86_399.6, "1d00h"),
        (3 * 86_400 + 4 * 3600, "3d04h"),
    ],
)
def test_a_time_span_is_short_and_rounds_over_its_units(seconds: float | None, text: str) -> None:
    assert duration(seconds) == text
