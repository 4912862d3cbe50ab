"""What becomes of spans that are sent. Imports nothing: what is told of them is read without any library."""

from dataclasses import dataclass

__all__ = ["Refusal", "Sent"]


@dataclass(frozen=True, slots=True)
class Sent:
    """Spans that a server took and did not take, and its words to those that it did not."""

    accepted: int = 0
    rejected: int = 0
    message: str = ""

    def __add__(self, other: "Sent") -> "Sent":
        return Sent(self.accepted + other.accepted, self.rejected + other.rejected, other.message or self.message)


@dataclass(frozen=True, slots=True)
class Refusal:
    """Spans were not taken; ``is_final`` says whether to try again, in ``after_s`` seconds where the server says so."""

    words: str
    is_final: bool
    after_s: float | None = None
    is_answer: bool = True
    status: int = 0
