"""The run directory: its record, lease and events, readable with the cluster gone."""
