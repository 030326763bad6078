"""Values, errors and states that a journal records and reads again."""
