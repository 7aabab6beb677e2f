"""What a file can hold: `kinds` of values, and records by which a class states what of it is stored."""

from atypicality.stored import kinds
from atypicality.stored.kinds import need
from atypicality.stored.records import Part, Record, declared

__all__ = ["Part", "Record", "declared", "kinds", "need"]
