"""Several servers of one model: which of them is asked next."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from histobench.core.redaction import without_credentials
from histobench.mint.agents.providers.provider import Capabilities, ProviderAPI
from histobench.mint.agents.rate_limits import RateLimiter, RateLimits

Balance = Literal["least-busy", "round-robin"]


@dataclass
class Host:
    """One server: what it understands, how busy we keep it, and when it wants to be asked again."""

    api: ProviderAPI
    limiter: RateLimiter
    capabilities: Capabilities = field(default_factory=Capabilities)
    #: No one asks before this moment: the provider said so to one of us, or it has just failed.
    open_at: float = 0.0
    busy: int = 0
    asked: int = 0

    @property
    def place(self) -> str:
        return without_credentials(self.api.base_url)

    def close_for(self, seconds: float) -> None:
        """Ask nothing for a while."""
        self.open_at = max(self.open_at, time.monotonic() + seconds)


class Hosts:
    """Picks an open server: the one with the fewest requests under way, or each in turn."""

    def __init__(
        self,
        apis: Sequence[ProviderAPI],
        *,
        balance: Balance = "least-busy",
        limits: RateLimits | None = None,
    ) -> None:
        self._hosts = [Host(api, RateLimiter(limits)) for api in apis]
        self._balance = balance

    def __len__(self) -> int:
        return len(self._hosts)

    def pick(self) -> Host:
        """The next server; where all are closed, the one that opens first."""
        now = time.monotonic()
        opened = [host for host in self._hosts if host.open_at <= now]
        if not opened:
            return min(self._hosts, key=lambda host: host.open_at)
        if self._balance == "round-robin":
            return min(opened, key=lambda host: host.asked)
        return min(opened, key=lambda host: (host.busy, host.asked))
