"""What makes the modules of this folder importable, and the disks that are too small."""

from disks import small_disk

__all__ = ["small_disk"]
