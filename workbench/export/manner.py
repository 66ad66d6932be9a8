"""How tokens are chosen when a model writes a text. No torch: options of the command line are held to it first."""

from __future__ import annotations

from dataclasses import dataclass

from workbench.errors import ConfigurationError


@dataclass(frozen=True)
class Manner:
    """Up to `tokens` tokens at `temperature` (0 takes the likeliest), drawn from `seed` among the `top_k` likeliest (0:
    all), of these among the fewest that together have at least `top_p`."""

    tokens: int = 200
    temperature: float = 0.8
    top_p: float = 1.0
    top_k: int = 40
    seed: int = 0

    def check(self) -> None:
        """Raise ConfigurationError where a number is out of range."""
        for option, value, right, holds in (
            ("--tokens", self.tokens, "at least 1", self.tokens >= 1),
            ("--temperature", self.temperature, "0 or more", 0 <= self.temperature < float("inf")),
            ("--top-p", self.top_p, "above 0 and at most 1", 0 < self.top_p <= 1),
            ("--top-k", self.top_k, "0 (all) or more", self.top_k >= 0),
            ("--seed", self.seed, "from 0 to 2^63 - 1", 0 <= self.seed < 1 << 63),
        ):
            if not holds:
                raise ConfigurationError(f"{option} {value}: expected {right}")
