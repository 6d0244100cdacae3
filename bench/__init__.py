"""The benchmark: `python -m bench`, or `make bench`.

Each measurement is a row with a fixed id (bench/rows). run.py measures rows with measure.py,
progress.py shows how far it is, record.py keeps the results, table.py prints them, and headline.py
picks the rows of the default run and sums them up. kernels.py has the kernels; tests use them too.
"""
