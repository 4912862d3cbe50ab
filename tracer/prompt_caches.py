"""Prompt caches that know what filled them: files of mlx-lm's own format, with the identity in the metadata.

mlx-lm reads and continues them as any other.
"""

import os
from collections.abc import Mapping, Sequence
from typing import Any

from kvtrace.tracer.guarding import GuardedCaches, guard
from kvtrace.tracer.identity import CacheIdentity, IdentityError, require_same

__all__ = ["load_prompt_cache", "save_prompt_cache", "saved_identity"]


def save_prompt_cache(
    file: str | os.PathLike[str],
    caches: Sequence[Any],
    identity: CacheIdentity,
    metadata: Mapping[str, Any] | None = None,
) -> None:
    """Save caches as mlx-lm does, with ``identity`` under ``kvtrace.identity``, beside ``metadata`` of your own.

    Raises IdentityError, and writes nothing, for caches that are guarded for another identity; else what mlx-lm raises.
    """
    from mlx_lm.models import cache

    guarded = guard(caches, identity)
    plain = [one.__wrapped__ for one in guarded]
    cache.save_prompt_cache(os.fspath(file), plain, {**(metadata or {}), "kvtrace": {"identity": identity.to_dict()}})


def load_prompt_cache(file: str | os.PathLike[str], identity: CacheIdentity) -> GuardedCaches:
    """The caches in a file, guarded.

    Raises IdentityError, which names the field, for a file that another identity filled or that doesn't say; else what
    mlx-lm raises.
    """
    from mlx_lm.models import cache

    caches, metadata = cache.load_prompt_cache(os.fspath(file), return_metadata=True)
    owner = saved_identity(metadata)
    name = f"the prompt cache {os.fspath(file)!r}"
    if owner is None:
        raise IdentityError(f"{name} has no identity", "if you know what filled it, load it with mlx-lm", "identity")
    require_same(name, owner, identity)
    guarded: GuardedCaches = guard(caches, identity)
    return guarded


def saved_identity(metadata: Any) -> CacheIdentity | None:
    """The identity in a prompt cache's metadata, as mlx-lm hands them out; None where it has none.

    Raises IdentityError for one that this version doesn't understand.
    """
    own = metadata.get("kvtrace") if isinstance(metadata, Mapping) else None
    values = own.get("identity") if isinstance(own, Mapping) else None
    return CacheIdentity.from_dict(values) if isinstance(values, Mapping) else None
