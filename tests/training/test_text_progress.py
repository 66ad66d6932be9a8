"""How far the text is, in lines."""

import pytest

from workbench.training.start.text_progress import TextProgress


def test_a_line_every_five_seconds_says_how_much_how_fast_and_how_long_yet() -> None:
    told: list[str] = []
    now = 0.0
    progress = TextProgress(told.append, clock=lambda: now)
    for second in range(14):
        now = float(second)
        progress("tokenizing", 40_000_000 + second * 5_000_000, 400_000_000)
    assert told == [
        "tokenizing: 16%, 65 of 400 MB, 5.0 MB/s, 67 s left",
        "tokenizing: 22%, 90 of 400 MB, 5.0 MB/s, 62 s left",
    ]


def test_what_is_done_in_a_moment_is_not_told() -> None:
    told: list[str] = []
    progress = TextProgress(told.append, clock=lambda: 1.0)
    progress("training the tokenizer", 0, 10)
    progress("training the tokenizer", 10, 10)
    progress("tokenizing", 10, 10)
    assert told == []


def test_a_stop_is_heard_while_the_text_is_prepared() -> None:
    def stop() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        TextProgress(lambda line: None, stop)("tokenizing", 1, 2)
