"""What commands that send spans share: a connection to the server that a user names."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from kvtrace.viewer.errors import CommandError

if TYPE_CHECKING:
    from kvtrace.exporters.otlp.client import OtlpClient

__all__ = ["connect"]


def connect(endpoint: str, headers: Sequence[str] = (), timeout_s: float | None = None, **options: Any) -> "OtlpClient":
    """Imports OpenTelemetry's SDK. Raises CommandError without the extra, EndpointError for what can't be used."""
    named = _parse_headers(headers)
    try:
        from kvtrace.exporters.otlp.client import OtlpClient
    except ImportError as error:
        raise CommandError(
            f"sending spans needs a package that is not installed: {error.name}", "pip install 'kvtrace[otlp]'"
        ) from error
    return OtlpClient(endpoint, named, timeout_s, **options)


def _parse_headers(texts: Sequence[str]) -> dict[str, str]:
    pairs = [text.partition("=") for text in texts]
    for name, equals, _ in pairs:
        if not (name.strip() and equals):
            raise CommandError("--header wants NAME=VALUE", "for example --header api-key=secret")
    return {name.strip(): value.strip() for name, _, value in pairs}
