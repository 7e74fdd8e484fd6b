"""What runs inside a user's training job: elastic data-parallel training."""
