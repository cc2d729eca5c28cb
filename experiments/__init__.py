"""Tables of many runs, comparisons, curves, speed, COIN's step orders: all of it optional."""
