"""``kvtrace report``: one HTML file that answers what ran, how fast, where time went and how much memory it took."""
