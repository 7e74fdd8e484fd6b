"""What users and operators do to jobs: holds, priorities, requeues, limits and dependencies."""
