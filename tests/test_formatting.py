"""Numbers as people read them."""

from __future__ import annotations

import math

import pytest

from workbench import formatting
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


def test_a_perplexity_stays_short_however_large() -> None:
    assert formatting.perplexity(12.345) == "perplexity 12.35"
    assert formatting.perplexity(1e132) == formatting.perplexity(math.inf) == "perplexity above a million"
