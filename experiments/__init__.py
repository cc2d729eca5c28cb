"""Tables of many runs, comparisons, charts, and the order of real steps: all of it optional."""
