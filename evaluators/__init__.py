"""Problems, prompts and grades; needs no engine."""
