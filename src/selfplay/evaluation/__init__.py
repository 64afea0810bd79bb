"""How good a model is: matches with intervals, exact measures."""
