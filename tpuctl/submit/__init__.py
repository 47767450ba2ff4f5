"""Handing a Plan to a cluster and following it to its end."""
