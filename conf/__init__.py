"""Hydra configs; a package so that `pkg://conf` resolves from a checkout and from a wheel alike."""
