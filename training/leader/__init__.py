"""Leader process of an elastic job: membership, generations and their journal."""
