"""Text to shards: clean corpora, vocabulary and examples (Apache Beam). Never torch."""

import logging

# Beam says on import that a client for BigQuery is missing; nothing here uses one.
logging.getLogger().addFilter(lambda record: "apitools not found" not in record.getMessage())
