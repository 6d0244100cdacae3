"""The benchmark: `python -m bench`, or `make bench`.

One stable id per measurement (bench/rows), contenders timed in turns in one process
(measure.py), a table on the terminal and a record in a file (record.py, table.py). The kernels
are in kernels.py, where the tests find them too.
"""
