"""Finds cache methods, which packages offer through the entry-point group ``kvtrace.cache_methods``.

An entry point's value is a function without arguments that returns ``CacheMethod`` objects.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final

from kvtrace.tracer.methods.method import CacheMethod, MethodError, Option, Settings, failures_told

__all__ = ["GROUP", "ChosenMethod", "LoadFailure", "choose_method", "find_method", "iter_methods"]

GROUP: Final = "kvtrace.cache_methods"

_FIRST: Final = ("mlx_lm", "veloxquant")
_LIST_HINT: Final = "see what there is: kvtrace methods"


@dataclass(frozen=True, slots=True)
class LoadFailure:
    """A plug-in whose methods can't be had, and why."""

    entry_point: str
    reason: str

    def __str__(self) -> str:
        return f"the cache methods of {self.entry_point!r} can't be loaded: {self.reason}"


OnFailure = Callable[[LoadFailure], None]


@dataclass(frozen=True, slots=True)
class ChosenMethod:
    """A method with a value for each of its options."""

    method: CacheMethod
    settings: Settings

    @property
    def bits(self) -> int | None:
        """Bits a number takes, where the method has that option."""
        return None if self.method.bits is None else self.settings[self.method.bits]

    def make_caches(self, model: Any) -> list[Any]:
        """A fresh cache for each slot of the model's list. Raises MethodError."""
        from mlx_lm.models.cache import make_prompt_cache

        with failures_told(f"{self.method.name} can't make caches for this model", _LIST_HINT):
            caches = list(self.method.make(model, self.settings))
            needed = make_prompt_cache(model)
            if len(caches) != len(needed):
                raise ValueError(f"it makes {len(caches)}, and the model takes {len(needed)}")
            if any(cache is None and own is not None for cache, own in zip(caches, needed, strict=True)):
                raise ValueError("it leaves some out")
            if len({id(cache) for cache in caches}) < len(caches):
                raise ValueError("it gives several slots the same one")
        return caches

    def check(self, model: Any) -> None:
        """Try the method on one token. Raises MethodError when it can't serve the model. Never call it while recording.

        Computes nothing that the caches don't: what shapes and classes do wrong shows when a graph is built.
        """
        import mlx.core as mx

        said = f"{self.method.name} can't serve this model"
        if self.method.check_model is not None:
            with failures_told(said, _LIST_HINT):
                self.method.check_model(model, self.settings)
        caches = self.make_caches(model)
        with failures_told(said, _LIST_HINT):
            model(mx.array([[0]]), cache=caches)

    def describe(self) -> dict[str, Any]:
        """JSON types only: ``method``, ``method_source``, ``bits`` (or None) and ``settings``."""
        settings = {name: list(value) if isinstance(value, tuple) else value for name, value in self.settings.items()}
        return {
            "method": self.method.name,
            "method_source": self.method.source,
            "bits": self.bits,
            "settings": settings,
        }


def iter_methods(on_failure: OnFailure = lambda _: None) -> Iterator[CacheMethod]:
    """Every method, mlx-lm's first; a plug-in is loaded when its turn comes, and one that fails is told and left out.

    Where two have the same name the first keeps it, and the other is called ``ENTRYPOINT.NAME``.
    """
    taken: set[str] = set()
    for point in sorted(entry_points(group=GROUP), key=_rank):
        for method in _load(point, on_failure):
            name = method.name if method.name not in taken else f"{point.name}.{method.name}"
            if name in taken:
                on_failure(LoadFailure(point.name, f"it has several methods called {method.name!r}"))
                continue
            taken.add(name)
            yield method if name == method.name else replace(method, name=name)


def _rank(point: EntryPoint) -> tuple[int, str]:
    return (_FIRST.index(point.name) if point.name in _FIRST else len(_FIRST), point.name)


def _load(point: EntryPoint, on_failure: OnFailure) -> list[CacheMethod]:
    try:
        methods = list(point.load()())
        strange = [method for method in methods if not isinstance(method, CacheMethod)]
        if strange:
            raise TypeError(f"{strange[0]!r} is no CacheMethod")
    except (Exception, SystemExit) as error:  # whatever a plug-in can do wrong, as a script that runs when imported
        on_failure(LoadFailure(point.name, f"{type(error).__name__}: {error}"))
        return []
    return methods


def find_method(name: str) -> CacheMethod:
    """The method of that name. Raises MethodError, with the nearest name, when there is none."""
    failures: list[LoadFailure] = []
    known = []
    for method in iter_methods(failures.append):
        if method.name == name:
            return method
        known.append(method.name)
    raise MethodError(f"no cache method {name!r}{_lost(failures)}", _nearest(name, known) or _LIST_HINT)


def _lost(failures: Sequence[LoadFailure]) -> str:
    """What may have had it; the reasons of many are for a list to tell."""
    if len(failures) <= 1:
        return "".join(f"; {failure}" for failure in failures)
    names = ", ".join(repr(failure.entry_point) for failure in failures)
    return f"; those of {names} can't be loaded (`kvtrace methods` says why)"


def choose_method(name: str, bits: int | None = None, settings: Sequence[str] = ()) -> ChosenMethod:
    """The method ``name`` that can serve, set by ``bits`` and by ``settings`` of the form ``FIELD=VALUE``.

    Loads no model. Raises MethodError for whatever can't be done so.
    """
    method = find_method(name)
    if not method.can_serve:
        raise MethodError(
            f"{name} can't serve a model: {method.why_not}", "see those that can: kvtrace methods --servable-only"
        )
    given = _bits_of(method, bits)
    for text in settings:
        option, value = _parse_setting(method, text)
        if option.name in given:
            by_bits = ", once by --bits" if bits is not None and option.name == method.bits else ""
            raise MethodError(f"{option.name} is set twice{by_bits}", "set it once")
        given[option.name] = value
    chosen = ChosenMethod(method, {**method.defaults, **given})
    if method.check_settings is not None:
        with failures_told(f"{name} can't be set so", _options_hint(method)):
            method.check_settings(chosen.settings)
    return chosen


def _bits_of(method: CacheMethod, bits: int | None) -> dict[str, Any]:
    if bits is None:
        return {}
    option = None if method.bits is None else method.find_option(method.bits)
    if option is None:
        raise MethodError(f"{method.name} has no bits to choose", _options_hint(method))
    return {option.name: option.parse(str(bits))}


def _parse_setting(method: CacheMethod, text: str) -> tuple[Option, Any]:
    name, equals, value = text.partition("=")
    name = name.strip()
    if not equals:
        raise MethodError(f"--set takes FIELD=VALUE, not {text!r}", _options_hint(method))
    option = method.find_option(name)
    if option is None:
        near = _nearest(name, [option.name for option in method.options])
        if name == "bits" and method.bits is not None:
            near = f"--bits sets {method.bits!r}"
        raise MethodError(f"{method.name} has no field {name!r}", near or _options_hint(method))
    return option, option.parse(value)


def _options_hint(method: CacheMethod) -> str:
    if not method.options:
        return f"{method.name} has nothing to set"
    names = ", ".join(option.name for option in method.options)
    return f"what {method.name} lets you set: {names}"


def _nearest(name: str, known: Iterable[str]) -> str:
    """In capitals or not."""
    names = {name.casefold(): name for name in known}
    near = get_close_matches(name.casefold(), names, n=1)
    return f"did you mean {names[near[0]]!r}?" if near else ""
