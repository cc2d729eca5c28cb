"""The toy world: a hand-written grammar, rendered as small narrated videos."""
