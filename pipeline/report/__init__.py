"""Pages of results: one HTML file that loads nothing, with plots as SVG, readable on light and on dark.

`document.py` makes the page and its tables, `chart.py` the plots, `place.py` puts it where the tables are.
"""
