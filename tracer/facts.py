"""What a recording says of its circumstances: versions, device, and the calibrated costs of recording."""

import importlib.metadata
import platform

import mlx.core as mx

from kvtrace.tracer.calibration import cost_per_operation_ns, synchronization_ns
from kvtrace.tracer.formats import Metadata
from kvtrace.tracer.schema import CURRENT_SCHEMA_VERSION, Timing

__all__ = ["device_name", "session_facts"]


def session_facts(timing: Timing) -> Metadata:
    """Facts that hold for the whole session; takes a few milliseconds, most of them for calibration.

    MLX is asked to compute only where the session does so itself: in a child that is forked after that, it hangs.
    """
    floor = {"synchronization_ns": synchronization_ns()} if timing is Timing.EVALUATED else {}
    return {
        "schema_version": CURRENT_SCHEMA_VERSION,
        "timing": timing.label,
        "kvtrace": _version("kvtrace"),
        "mlx": _version("mlx"),
        "mlx_lm": _version("mlx-lm"),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "device": device_name(),
        "cost_per_operation_ns": cost_per_operation_ns(),
        **floor,
    }


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def device_name() -> str:
    """The device MLX computes on, such as ``Apple M3 Max (gpu)`` or ``cpu``."""
    kind = str(mx.default_device().type).rpartition(".")[2]
    try:
        name = mx.device_info().get("device_name")
    except Exception:  # what a backend without this knowledge raises is not documented
        name = None
    return f"{name} ({kind})" if name else kind
