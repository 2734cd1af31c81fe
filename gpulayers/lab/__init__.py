"""The cure lab: one deep network, trained once for each combination of what is said to make it healthy or sick.

grid.py         the combinations                      experiment.py   one of them, trained and watched
study.py        all of them, with results on disk     table.py, pictures.py   what came out
"""
