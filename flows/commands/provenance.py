"""What models are made of: `albert lineage`, `albert trace` and `albert rebuild`.

`lineage` goes from a model back to its source files. For a registered version it asks only the
registry, so it works where the work folder is not mounted.

`trace` goes from a document to what was made of it. The document's id is the one in the corpus: the
file, relative to the source, and the record in it. Corpora and examples are searched; the rest
follows from what it was made of and from the order of the examples. After a removal and its purge
the receipts still say what contained the document, and which versions were made of it.

`rebuild` calls every stage as it was called then, with the recipe of that call, in a work folder of
its own, and compares the digests of the results. It needs the registry and the unchanged source
files. Text stages give the same bytes on every engine and any number of workers. The bits of
trained weights depend on the order of sums: on the ranks, the threads of each, the processor's
vector width, the device and torch. Ranks, threads and vectors are set as they were; a difference in
the others is reported.
"""
