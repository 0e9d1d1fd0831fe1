"""One batching policy per file; each decides who runs next and on which memory, and nothing else."""
