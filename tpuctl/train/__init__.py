"""One training run on one host's share of the devices; imports no ray."""
