"""Serving many requests at once by mlx-lm's batch generator, measured, recorded and held against each prompt alone."""
