"""Every error that a user can cause or meet, as one tree.

AlbertError            something a user can mend; shown as one message, without a traceback
├── ConfigError        a setting is unknown, of the wrong type or impossible
├── SourceError        a source is missing, empty or not what it was declared to be
├── VocabularyError    the text cannot carry the vocabulary asked for
├── IntegrityError     a file is not the one that its manifest describes
├── AccountingError    the counts of a stage do not add up
├── ShapeError         tensors that do not fit each other
├── TaskError          a downstream task's file is missing or malformed
├── TrainingError      a run cannot go on (non-finite loss, no examples, another data set)
├── RegistryError      a model version cannot be registered, promoted or found
├── StageError         a stage's process ended without its manifest
└── OutageError        a store, server or worker is away: the same command goes on later
"""

from albert_core.stage.credentials import redacted


class AlbertError(Exception):
    """Base of all errors with a message for the user: where, what was found, what to do.

    A message is shown and kept: it has no credentials, whatever the texts it is made of.
    """

    def __init__(self, *args: object) -> None:
        super().__init__(*(redacted(arg) if isinstance(arg, str) else arg for arg in args))


class ConfigError(AlbertError):
    """A setting is unknown, of the wrong type or impossible."""


class SourceError(AlbertError):
    """A source is missing, empty or not what it was declared to be."""


class VocabularyError(AlbertError):
    """The text cannot carry the vocabulary asked for."""


class IntegrityError(AlbertError):
    """A file is not the one that its manifest describes."""


class AccountingError(AlbertError):
    """The counts of a stage do not add up."""


class ShapeError(AlbertError):
    """Tensors do not fit each other."""


class TaskError(AlbertError):
    """A downstream task's file is missing or malformed."""


class TrainingError(AlbertError):
    """A run cannot go on."""


class RegistryError(AlbertError):
    """A model version cannot be registered, promoted or found."""


class StageError(AlbertError):
    """A stage's process ended without its manifest."""


class OutageError(AlbertError):
    """A store, server or worker is away for a while: the same command goes on from what is done."""
