"""The balance of every cache: what went in, less what left it, is what it says that it can still serve.

Reads a recording once, batch by batch, in the order of recording; a cache costs a few numbers. What is counted are
slots over all sequences: ``servable · batch = Σ batch · (written − evicted − trimmed + untrimmed) + moved``, held
against each row that states ``servable``, so that a fault is found where it happened.
"""

from dataclasses import dataclass, field
from typing import Final

import numpy as np

from kvtrace.tracer.batch import Batch, Rows
from kvtrace.tracer.schema import ABSENT, INSTANT_KINDS, UPDATE_KINDS, Kind
from kvtrace.viewer.reduce.faults import Faults
from kvtrace.viewer.reduce.filters import Mask

__all__ = ["Balances"]

_UPDATES: Final = sorted(UPDATE_KINDS)
_READS: Final = sorted({Kind.ATTEND, Kind.UPSTREAM, Kind.SAVE})
_KEEPS_POSITION: Final = sorted({*UPDATE_KINDS, *_READS, *INSTANT_KINDS, Kind.EVICT} - {Kind.UNTRIM})


@dataclass(slots=True)
class _Account:
    """One cache so far. ``pending`` slots came or went since the last row that stated ``slots``."""

    slots: int = 0
    pending: int = 0
    position: int | None = None
    unit_fp16: int | None = None
    end_ns: int = ABSENT


@dataclass(slots=True)
class Balances:
    """Add every batch, in order; what is wrong goes to ``faults``."""

    faults: Faults
    _accounts: dict[int, _Account] = field(default_factory=dict)

    @property
    def caches(self) -> int:
        return len(self._accounts)

    def add(self, batch: Batch) -> None:
        rows = batch.rows[batch["cache"] != ABSENT]
        if not len(rows):
            return
        batch = _by_cache(Batch(rows, batch.strings))
        caches = batch["cache"]
        heads = np.flatnonzero(np.append(True, caches[1:] != caches[:-1]))
        groups = [
            (self._accounts.setdefault(int(caches[head]), _Account()), int(head), int(stop))
            for head, stop in zip(heads, [*heads[1:], len(batch)], strict=True)
        ]
        with np.errstate(over="ignore"):  # numbers that overflow are no true ones, and some rule is broken by them
            self._check_slots(batch, groups)
            self._check_positions(batch, groups)
            self._check_bytes(batch)
            self._check_baselines(batch, groups)
            self._check_overlaps(batch, groups)

    def _check_slots(self, batch: Batch, groups: list[tuple[_Account, int, int]]) -> None:
        changes = _changes(batch)
        states = batch["servable"] * batch["batch"]
        is_stated = (batch["servable"] != ABSENT) & (batch["batch"] != ABSENT) & (batch["kind"] != Kind.UNTRIM)
        for account, head, stop in groups:
            stated = head + np.flatnonzero(is_stated[head:stop])
            running = np.cumsum(changes[head:stop])
            if not len(stated):
                account.pending += int(running[-1])
                continue
            came_in = np.diff(running[stated - head] + account.pending, prepend=0)
            missing = np.diff(states[stated], prepend=account.slots) - came_in
            for place in np.flatnonzero(missing).tolist():
                self._unbalanced(batch, int(stated[place]), int(missing[place]))
            account.slots = int(states[stated[-1]])
            account.pending = int(running[-1] - running[stated[-1] - head])

    def _unbalanced(self, batch: Batch, number: int, missing: int) -> None:
        more = "more" if missing > 0 else "fewer"
        message = f"{{kind}} states {{servable}} servable tokens a sequence: {abs(missing):,} slots {more} than came in"
        self.faults.add_rows("balance", message, batch, [number])

    def _check_positions(self, batch: Batch, groups: list[tuple[_Account, int, int]]) -> None:
        """An update begins where the one before ended, unless something in between moved it."""
        kinds, positions = batch["kind"], batch["position"]
        is_update = np.isin(kinds, _UPDATES) & (positions != ABSENT) & (batch["tokens"] != ABSENT)
        is_move = ~np.isin(kinds, _KEEPS_POSITION)
        ends = positions + batch["tokens"]
        for account, head, stop in groups:
            steps = head + np.flatnonzero((is_update | is_move)[head:stop])
            if not len(steps):
                continue
            before, is_known = np.append(0, ends[steps[:-1]]), np.append(False, is_update[steps[:-1]])
            if account.position is not None:
                before[0], is_known[0] = account.position, True
            wrong = is_known & is_update[steps] & (positions[steps] != before)
            for place in np.flatnonzero(wrong).tolist():
                message = f"{{kind}} begins at position {{position}}, the one before ended at {before[place]}"
                self.faults.add_rows("position", message, batch, [int(steps[place])])
            account.position = int(ends[steps[-1]]) if is_update[steps[-1]] else None

    def _check_bytes(self, batch: Batch) -> None:
        """A slot costs the same whether it is written or held, and what is held lies in what is allocated."""
        written, resident, allocated, servable, tokens = (
            batch[name] for name in ("written", "resident", "allocated", "servable", "tokens")
        )
        is_negative = np.zeros(len(batch), np.bool_)
        for name in ("written", "copied", "read", "resident", "allocated", "fp16_baseline", "tokens", "evicted"):
            is_negative |= (batch[name] < 0) & (batch[name] != ABSENT)
        self._add("bytes", "{kind} counts less than nothing", batch, is_negative)
        too_much = (resident != ABSENT) & (allocated != ABSENT) & (resident > allocated)
        self._add("bytes", "{kind} holds {resident} bytes, more than the {allocated} allocated", batch, too_much)
        is_held = (servable > 0) & (resident != ABSENT)
        unit = resident // np.maximum(servable, 1)
        uneven = is_held & (resident % np.maximum(servable, 1) != 0)
        self._add("bytes", "{kind} holds {resident} bytes, no multiple of its {servable} tokens", batch, uneven)
        is_update = np.isin(batch["kind"], _UPDATES) & is_held & ~uneven & (tokens > 0) & (written != ABSENT)
        off = is_update & (written != tokens * unit)
        self._add("bytes", "{kind} wrote {written} bytes for {tokens} tokens; held ones cost another size", batch, off)

    def _check_baselines(self, batch: Batch, groups: list[tuple[_Account, int, int]]) -> None:
        """As dense 16-bit numbers a slot of one sequence costs the same over the life of a cache."""
        baselines, slots = batch["fp16_baseline"], batch["servable"] * batch["batch"]
        is_known = (baselines != ABSENT) & (batch["servable"] > 0) & (batch["batch"] > 0) & (slots > 0)
        units = baselines // np.maximum(slots, 1)
        is_wrong = is_known & (baselines % np.maximum(slots, 1) != 0)
        for account, head, stop in groups:
            good = head + np.flatnonzero((is_known & ~is_wrong)[head:stop])
            if len(good):
                account.unit_fp16 = account.unit_fp16 if account.unit_fp16 is not None else int(units[good[0]])
                is_wrong[good] = units[good] != account.unit_fp16
        message = "{kind} states a 16-bit baseline of {fp16_baseline} bytes, not in proportion to its {servable} tokens"
        self._add("bytes", message, batch, is_wrong)

    def _check_overlaps(self, batch: Batch, groups: list[tuple[_Account, int, int]]) -> None:
        starts, ends = batch["start_ns"], batch["end_ns"]
        is_span = (ends != ABSENT) & (ends >= starts) & ~np.isin(batch["kind"], sorted(INSTANT_KINDS))
        for account, head, stop in groups:
            spans = head + np.flatnonzero(is_span[head:stop])
            if not len(spans):
                continue
            until = np.maximum.accumulate(np.append(account.end_ns, ends[spans]))
            for place in np.flatnonzero(starts[spans] < until[:-1]).tolist():
                self._overlap(batch, spans, place)
            account.end_ns = int(until[-1])

    def _overlap(self, batch: Batch, spans: Rows, place: int) -> None:
        number = int(spans[place])
        same = place and (batch.rows[number] == batch.rows[spans[place - 1]]).all()
        rule, message = (
            ("duplicate", "{kind} is recorded twice")
            if same
            else ("overlap", "{kind} begins before the operation on the same cache before it ended")
        )
        self.faults.add_rows(rule, message, batch, [number])

    def _add(self, rule: str, message: str, batch: Batch, mask: Mask) -> None:
        self.faults.add_rows(rule, message, batch, np.flatnonzero(mask).tolist())


def _by_cache(batch: Batch) -> Batch:
    """Sorted by cache, then by time; what was given back goes before the update that found it at the same moment."""
    order = np.lexsort((batch["kind"] != Kind.UNTRIM, batch["start_ns"], batch["cache"]))
    return Batch(batch.rows[order], batch.strings)


def _changes(batch: Batch) -> Rows:
    """Slots over all sequences that each row brought (+) or took (-)."""
    kinds = batch["kind"]
    tokens, evicted, sequences, moved = (_or_zero(batch[name]) for name in ("tokens", "evicted", "batch", "moved"))
    a_sequence = np.select(
        [np.isin(kinds, _UPDATES), kinds == Kind.TRIM, kinds == Kind.UNTRIM, kinds == Kind.EVICT],
        [tokens - evicted, -tokens, tokens, -evicted],
        0,
    )
    changes: Rows = a_sequence * sequences + moved
    return changes


def _or_zero(values: Rows) -> Rows:
    return np.where(values == ABSENT, 0, values)
