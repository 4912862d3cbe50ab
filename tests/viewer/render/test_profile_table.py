"""The table of profiles, letter by letter, and the figures over all layers."""

from dataclasses import replace

import pytest

from kvtrace import LayerProfile, ProfileReport, format_profile_table, profile_layers

SPLIT = LayerProfile(
    layer_id=0,
    timing="evaluated",
    is_fused=False,
    n_quantize_calls=1000,
    n_dequantize_calls=10,
    quantize_ms_total=12.3,
    dequantize_ms_total=0.081,
    peak_memory_bytes=1_200_000,
    bytes_written=1_200_000,
    tokens_written=4096,
    fp16_baseline_bytes=8_196_000,
)
FUSED = LayerProfile(
    layer_id=1,
    timing="graph_build",
    is_fused=True,
    n_compute_calls=4,
    compute_ms_total=6000.0,
    peak_memory_bytes=512,
    bytes_written=7,
    tokens_written=40,
    fp16_baseline_bytes=512,
)


def test_a_table_of_caches_whose_operations_are_told_apart() -> None:
    report = ProfileReport([SPLIT, replace(SPLIT, layer_id=1, n_dequantize_calls=0)], elapsed_s=5.042)
    assert format_profile_table(report) == "\n".join(
        [
            "Layer       Quantize    Dequantize   Memory",
            "-----------------------------------------------",
            "Layer 0     12.3 µs     8.1 µs       1.20 MB",
            "Layer 1     12.3 µs     –            1.20 MB",
            "-----------------------------------------------",
            "Total tokens:        4096",
            "Total memory:        2.40 MB",
            "Compression ratio:   6.83x",
            "Tokens/sec:          812.4",
            "Durations:           mean of a call, evaluated (each operation evaluated alone, its inputs first)",
        ]
    )


def test_a_table_of_fused_caches() -> None:
    assert format_profile_table(ProfileReport([FUSED])) == "\n".join(
        [
            "Layer       Compute     Memory",
            "----------------------------------",
            "Layer 1     1.5 s       512 B",
            "----------------------------------",
            "Total tokens:        40",
            "Total memory:        512 B",
            "Compression ratio:   1.00x",
            "Durations:           mean of a call, graph_build (graph building only, not device work)",
        ]
    )


def test_a_table_of_both_kinds_without_totals() -> None:
    assert format_profile_table([SPLIT, replace(FUSED, layer_id="cross attention")]) == "\n".join(
        [
            "Layer                  Quantize    Dequantize   Compute     Memory",
            "----------------------------------------------------------------------",
            "Layer 0                12.3 µs     8.1 µs       –           1.20 MB",
            "Layer cross attention  –           –            1.5 s       512 B",
            "----------------------------------------------------------------------",
            "Durations:           mean of a call, evaluated (each operation evaluated alone, its inputs first);"
            " graph_build (graph building only, not device work)",
        ]
    )


@pytest.mark.parametrize(
    ("mean_us", "duration", "memory_bytes", "memory"),
    [
        (0.04, "40.0 ns", 0, "0 B"),
        (0.99994, "999.9 ns", None, "–"),
        (999.94, "999.9 µs", 999, "999 B"),
        (999.96, "1.0 ms", 1_000, "1.00 KB"),
        (12_345.6, "12.3 ms", 999_994, "999.99 KB"),
        (999_960.0, "1.0 s", 999_996, "1.00 MB"),
        (7_200_000.0, "7.2 s", 12_345_678_901, "12.35 GB"),
        (5e9, "5000.0 s", 5 * 10**15, "5000.00 TB"),
    ],
)
def test_each_amount_has_the_unit_that_fits_it(
    mean_us: float, duration: str, memory_bytes: int | None, memory: str
) -> None:
    layer = replace(FUSED, n_compute_calls=2, compute_ms_total=2 * mean_us / 1000, peak_memory_bytes=memory_bytes)
    row = format_profile_table([layer]).splitlines()[2]
    assert row == f"Layer 1     {duration:<12}{memory}"


def test_a_table_of_nothing() -> None:
    assert format_profile_table([]) == "Layer       Quantize    Dequantize   Memory\n" + "-" * 47


class Profiled:
    def __init__(self, profile: LayerProfile) -> None:
        self._profile = profile

    def profile(self) -> LayerProfile:
        return self._profile


def test_totals_over_layers() -> None:
    layers = [SPLIT, FUSED, replace(FUSED, layer_id=2, fp16_baseline_bytes=None)]
    report = profile_layers([Profiled(layer) for layer in layers], elapsed_s=2)
    assert list(report.layers) == layers
    assert report.total_tokens == 4096  # every layer sees every token
    assert report.tokens_per_sec == 2048
    assert report.total_bytes_written == 1_200_014
    assert report.total_memory_bytes == 1_201_024
    assert report.overall_compression_ratio == pytest.approx((8_196_000 + 512) / (1_200_000 + 512))


def test_what_is_unknown_is_none() -> None:
    report = profile_layers([Profiled(replace(FUSED, bytes_written=None, fp16_baseline_bytes=None))])
    assert (report.elapsed_s, report.tokens_per_sec, report.total_bytes_written) == (None, None, None)
    assert (report.overall_compression_ratio, report.layers[0].compression_ratio) == (None, None)
    assert (report.layers[0].quantize_ms_mean, report.layers[0].compute_ms_mean) == (0.0, 1500.0)
    assert profile_layers([]).total_tokens == 0
