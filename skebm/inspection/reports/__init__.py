"""Reports of fitted models: what was fitted, whether it worked, and what to change."""
