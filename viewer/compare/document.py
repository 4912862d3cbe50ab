"""A comparison as a JSON document: equivalence, counted work, time and memory, never mixed."""

from typing import Any, Final

from kvtrace.viewer.compare.run import Comparison

__all__ = ["SCHEMA_VERSION", "document_of"]

SCHEMA_VERSION: Final = 1


def document_of(comparison: Comparison, facts: dict[str, Any]) -> dict[str, Any]:
    """JSON types. ``facts`` say what ran: model, dtype, methods. None is what was not measured or is unknown."""
    load, names = comparison.load, comparison.names
    return {
        "schema_version": SCHEMA_VERSION,
        **facts,
        "paths": list(names),
        "prompt_tokens": load.prompt_tokens,
        "new_tokens": load.new_tokens,
        "batch_size": load.batch,
        "chunk_tokens": load.chunk_tokens,
        "holds": comparison.holds,
        "equivalence": comparison.equivalence.to_dict(),
        "counted": {
            "query_heads": comparison.query_heads,
            "kv_heads": comparison.kv_heads,
            "mismatches": comparison.mismatches,
            "paths": {name: counts.to_dict() for name, counts in zip(names, comparison.counts, strict=True)},
        },
        "time": None
        if comparison.times is None
        else {name: times.to_dict() for name, times in zip(names, comparison.times, strict=True)},
        "memory": None if comparison.memory is None else dict(zip(names, comparison.memory, strict=True)),
    }
