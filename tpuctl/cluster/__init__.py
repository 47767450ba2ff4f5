"""The slices of a cluster: simulated ones on this machine, and a look at any."""
