"""Tables of many runs, charts, speed, key frames, h on COIN's step orders: all of it optional."""
