"""What runs on the cluster: each entrypoint takes a Plan and nothing else."""
