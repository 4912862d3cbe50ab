"""What a cache belongs to: what was computed under one identity means nothing, or too much, under another."""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, Final

from kvtrace.tracer.fingerprints import fingerprint_arrays, fingerprint_files, fingerprint_json, shorten

__all__ = ["CacheIdentity", "IdentityError", "identify", "require_same"]

_ANOTHER: Final = {
    "weights": "other weights",
    "configuration": "another configuration",
    "tokenizer": "another tokenizer",
    "adapter": "another adapter",
    "positions": "other position settings",
    "dtype": "another dtype",
    "method": "another cache method",
    "tenant": "another tenant",
}
_POSITION_WORDS: Final = (
    "rope",
    "rotary",
    "position",
    "theta",
    "alibi",
    "yarn",
    "seq_len",
    "n_ctx",
    "model_max_length",
)
_TOKENIZER_FILES: Final = (
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json"),
    *("merges.txt", "vocab.txt", "*.model", "*.tiktoken", "*.jinja", "tokenization_*.py"),
)
_HINT: Final = "go on with what filled it, or start from an empty cache"


class IdentityError(ValueError):
    """A cache that may not be used so: nothing was changed. ``field`` names what differs, a field of CacheIdentity, or
    ``"position"``, or ``"identity"`` where there is none."""

    def __init__(self, message: str, hint: str, field: str) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.field = field


@dataclass(frozen=True, slots=True)
class CacheIdentity:
    """What a cache was, or is to be, filled by. Texts only, so that it fits the metadata of any file.

    ``weights``, ``configuration`` (what shapes the model), ``tokenizer``, ``adapter`` and ``positions`` (rotary base,
    scaling, limits) are fingerprints; ``dtype`` is what the model computes in, ``method`` a cache method with its
    settings, ``tenant`` a label of the user's. Empty: there is none.
    """

    weights: str
    configuration: str
    tokenizer: str
    adapter: str
    positions: str
    dtype: str
    method: str
    tenant: str = ""

    def to_dict(self) -> dict[str, str]:
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "CacheIdentity":
        """The inverse of ``to_dict``. Raises IdentityError for other fields: what isn't understood isn't compared."""
        names = [field.name for field in fields(cls)]
        wrong = [name for name in names if not isinstance(values.get(name), str)]
        if wrong or len(values) > len(names):
            field = wrong[0] if wrong else min(set(values) - set(names))
            raise IdentityError(f"an identity with a strange {field!r}", "it needs another version of kvtrace", field)
        return cls(**values)

    def differing_field(self, other: "CacheIdentity") -> str | None:
        """The first field that differs; None for equals."""
        return next((name for name in _ANOTHER if getattr(self, name) != getattr(other, name)), None)

    def difference(self, other: "CacheIdentity") -> str | None:
        """``another dtype: 'float16', not 'float32'``: the first field that differs, both values shortened, this one's
        first. None for equals."""
        name = self.differing_field(other)
        if name is None:
            return None
        return f"{_ANOTHER[name]}: {_show(getattr(self, name))}, not {_show(getattr(other, name))}"


def _show(value: str) -> str:
    short = shorten(value)
    return short if short != value else repr(value) if value else "none"


def require_same(what: str, owner: CacheIdentity, user: CacheIdentity) -> None:
    """Raise IdentityError unless ``user`` is the ``owner`` of ``what``."""
    difference, field = owner.difference(user), owner.differing_field(user)
    if difference is not None and field is not None:
        raise IdentityError(f"{what} belongs to {difference}", _HINT, field)


def identify(
    model: Any,
    tokenizer: Any,
    path: str | Path | None = None,
    adapter_path: str | Path | None = None,
    *,
    method: str = "default",
    tenant: str = "",
) -> CacheIdentity:
    """The identity of the caches of a model, as mlx-lm loaded it from ``path``: a folder, or a hub id.

    Without one, weights and tokenizer are fingerprinted as they are in memory; so they are when the hub's files are not
    to be found, and so is an adapter (LoRA, DoRA) without ``adapter_path``. The weight files are read whole, once: see
    ``fingerprint_files``. Change a model's weights in memory after loading, or tune them in full, and only the form
    without ``path`` sees it. Raises OSError when the files can't be read.
    """
    folder = _find_folder(path)
    shape, positions = _settings(model, folder)
    own, adapted = _parameters(model)
    return CacheIdentity(
        weights=fingerprint_files(folder.glob("model*.safetensors")) if folder else fingerprint_arrays(own),
        configuration=fingerprint_json(shape),
        tokenizer=_fingerprint_tokenizer(tokenizer, folder),
        adapter=_fingerprint_adapter(adapter_path, adapted),
        positions=fingerprint_json(positions),
        dtype=_dtype([array for _, array in own]),
        method=method,
        tenant=tenant,
    )


def _find_folder(path: str | Path | None) -> Path | None:
    if path is None:
        return None
    folder = Path(path).expanduser()
    if folder.is_dir():
        return folder
    try:
        from mlx_lm.utils import hf_repo_to_path

        return Path(hf_repo_to_path(str(path)))  # where the hub's files lie; nothing is fetched
    except Exception:  # no hub id, or files of another revision: releases of the hub's library raise many things
        return None


def _settings(model: Any, folder: Path | None) -> tuple[dict[str, Any], dict[str, Any]]:
    """What shapes a model, and what its positions depend on: every argument that its class takes is in one of them."""
    flat = dict(_flatten(getattr(model, "args", None) or getattr(model, "config", None) or {}))
    positions = {name: value for name, value in flat.items() if any(word in name for word in _POSITION_WORDS)}
    shape = {name: value for name, value in flat.items() if name not in positions}
    # Not of the arguments: how weights are packed, and a model's own code.
    packed = {(str(m.mode), int(m.bits), int(m.group_size)) for m in model.modules() if _is_packed(m)}
    shape |= {"class": type(model).__qualname__, "packed": sorted(packed), "code": _fingerprint_code(folder)}
    return shape, positions


def _fingerprint_code(folder: Path | None) -> str:
    file = json.loads((folder / "config.json").read_text(encoding="utf-8")).get("model_file") if folder else None
    return fingerprint_files([folder / file]) if folder and file else ""


def _is_packed(module: Any) -> bool:
    return all(hasattr(module, name) for name in ("mode", "bits", "group_size"))


def _flatten(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted name and plain value of everything in nested arguments."""
    if is_dataclass(value):
        value = {field.name: getattr(value, field.name) for field in fields(value)}
    if isinstance(value, Mapping):
        for key, part in value.items():
            yield from _flatten(part, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list | tuple):
        yield name, [dict(_flatten(part)) for part in value]
    else:
        yield name, value if isinstance(value, bool | int | float | str | None) else type(value).__name__


def _parameters(model: Any) -> tuple[list[tuple[str, Any]], list[tuple[str, Any]]]:
    """Names and arrays: the model's own, under the names that they have without an adapter, and those of adapters."""
    import mlx.core as mx
    from mlx.utils import tree_flatten

    adapters = {f"{name}.": module for name, module in model.named_modules() if hasattr(module, "lora_a")}
    own: list[tuple[str, Any]] = []
    adapted = [(f"{name}scale", mx.array(module.scale)) for name, module in adapters.items()]
    leaves: Any = tree_flatten(model.parameters())
    for name, array in leaves:
        adapter = next((adapter for adapter in adapters if name.startswith(adapter)), "")
        part, _, rest = name[len(adapter) :].partition(".")
        if not adapter:
            own.append((name, array))
        elif hasattr(adapters[adapter][part], "parameters"):  # the layer that it adapts
            own.append((f"{adapter}{rest}", array))
        else:
            adapted.append((name, array))
    return own, adapted


def _dtype(arrays: Iterable[Any]) -> str:
    """The floating types among parameters; one, unless the model mixes them: ``bfloat16+float32``."""
    import mlx.core as mx

    types = {str(array.dtype).rpartition(".")[2] for array in arrays if mx.issubdtype(array.dtype, mx.floating)}
    return "+".join(sorted(types))


def _fingerprint_tokenizer(tokenizer: Any, folder: Path | None) -> str:
    if folder is not None:
        return fingerprint_files({file for pattern in _TOKENIZER_FILES for file in folder.glob(pattern)})
    inner = getattr(tokenizer, "_tokenizer", tokenizer)
    return fingerprint_json([_vocabulary(inner), getattr(inner, "chat_template", None), inner.special_tokens_map])


def _vocabulary(tokenizer: Any) -> Any:
    if not hasattr(tokenizer, "backend_tokenizer"):
        return tokenizer.get_vocab()
    rules = json.loads(tokenizer.backend_tokenizer.to_str())
    return {name: value for name, value in rules.items() if name not in ("truncation", "padding")}  # of the last call


def _fingerprint_adapter(path: str | Path | None, arrays: list[tuple[str, Any]]) -> str:
    if path is None:
        return fingerprint_arrays(arrays) if arrays else ""
    folder = Path(path).expanduser()
    return fingerprint_files(folder / name for name in ("adapter_config.json", "adapters.safetensors"))
