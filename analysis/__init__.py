"""Records to tables, pictures and the report; needs no engine."""
