"""DVC stages of the learnt placement policy: training, evaluation, promotion."""
