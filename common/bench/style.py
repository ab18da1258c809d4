"""The look that all figures share, of the notebooks and of README.md: matplotlib's settings by name."""

STYLE = {"svg.hashsalt": "progression", "font.size": 9.5, "font.family": "DejaVu Sans",
         "axes.spines.top": False, "axes.spines.right": False, "axes.axisbelow": True,
         "axes.titlesize": 10, "axes.titlelocation": "left", "axes.titleweight": "bold",
         "grid.color": "#cccccc", "grid.linewidth": 0.7, "hatch.linewidth": 0.7,
         "xaxis.labellocation": "right"}
