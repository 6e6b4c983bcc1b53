"""Who does the units: this process, a Ray cluster, Slurm jobs."""
