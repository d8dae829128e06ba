"""The embedded default: problem set, EAGLE-3 drafter and its training pipeline."""
