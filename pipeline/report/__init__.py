"""Pages of results: one self-contained HTML file with plots as SVG, for light and dark mode.

`document.py` makes the page and its tables, `chart.py` the plots, `place.py` writes it next to the tables.
"""
