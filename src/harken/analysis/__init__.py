"""What vectors say when nobody has labelled them: clusters, how many there are, principal components."""
