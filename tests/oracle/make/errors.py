"""The one error the search for a seed handles."""


class SeedRejectedError(Exception):
    """A seed is not usable: a near tie, an unused expert, a stop id; the message says which."""
