"""The parts of differential tests of the grammar engine: random grammars, and both engines."""
