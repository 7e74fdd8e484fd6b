"""DVC stages of the learnt placement policy: training and evaluation, registration and promotion."""
