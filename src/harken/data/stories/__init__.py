"""Stories with questions in the bAbI format."""
