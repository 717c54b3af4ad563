"""Studies: a file (schema) is planned as units, which engines run and a store keeps; results are assembled and told from them."""
