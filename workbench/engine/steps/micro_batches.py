"""What the micro-batches of a step weigh: each by the tokens its mean was taken over, or all the same.

Invariant: weights are relative to the first micro-batch's, so that gradients keep their natural size; `mean_factor` is
what makes the step's mean of their sum.
"""

from __future__ import annotations


class MicroBatches:
    """Those that the step under way has had, `most` at the most."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._tokens: list[int | None] = []

    def __len__(self) -> int:
        return len(self._tokens)

    @property
    def complete(self) -> bool:
        """Whether there are as many as a step has."""
        return len(self._tokens) == self.most

    def check(self, tokens: int | None) -> None:
        """Whether one of so many counted tokens may follow.

        Raises:
            RuntimeError: the step has all its micro-batches, or tokens are given for some of them only.
            ValueError: `tokens` is not positive.
        """
        if self.complete:
            raise RuntimeError(f"backward() was called {self.most} times already; call step() first")
        if tokens is not None and tokens <= 0:
            raise ValueError(f"tokens = {tokens}: expected a positive number of counted tokens")
        if self._tokens and (self._tokens[0] is None) != (tokens is None):
            raise RuntimeError("tokens must be given for every micro-batch of a step or for none")

    def add(self, tokens: int | None) -> float:
        """Count one; its weight."""
        self._tokens.append(tokens)
        first = self._tokens[0]
        return 1.0 if tokens is None or first is None else tokens / first

    @property
    def mean_factor(self) -> float:
        """What turns the weighted sum over these micro-batches into their mean."""
        counted = [t for t in self._tokens if t is not None]
        return counted[0] / sum(counted) if counted else 1.0 / len(self._tokens)

    def clear(self) -> None:
        """The step has ended."""
        self._tokens.clear()
