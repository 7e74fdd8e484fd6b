"""Reports of running jobs: their progress and their use of compute."""
