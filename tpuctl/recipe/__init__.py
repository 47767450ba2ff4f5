"""What a user may write: the recipe's schema and its strict loader."""
