"""What was decided: the Plan, how a recipe becomes one, and whether it fits."""
