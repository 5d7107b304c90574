"""Use cases: async and short; they decide the order of effects and nothing else."""
