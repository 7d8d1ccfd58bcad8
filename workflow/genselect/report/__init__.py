"""The report: pictures of every stage, and one page that holds them together with what a reader needs to trust them.

Reads the results folder and nothing else. ``figures_*`` draw, ``page`` sets the page, ``sources`` reads what both need.
"""
