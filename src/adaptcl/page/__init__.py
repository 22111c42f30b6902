"""The page: a report of runs as one HTML file, and the same page live."""
