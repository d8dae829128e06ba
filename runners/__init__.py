"""From a config to records on disk: plan cells, start servers, generate, grade, record."""
