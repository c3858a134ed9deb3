"""Training, comparing, auditing and reporting: the functions behind the verbs of the command line."""
