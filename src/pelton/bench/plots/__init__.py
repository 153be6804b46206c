"""Plots of what was measured, as pages that need no network: each is one HTML file with everything in it."""

from pelton.bench.plots.roofline import write_roofline_plot
from pelton.bench.plots.serve import write_serve_plot

__all__ = ["write_roofline_plot", "write_serve_plot"]
