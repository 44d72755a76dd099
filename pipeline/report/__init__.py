"""Pages with results: each is one self-contained HTML file with plots as SVG, for light and dark mode.

`document.py` makes the page and its tables, `chart.py` makes the plots, and `place.py` writes the page next to the
tables.
"""
