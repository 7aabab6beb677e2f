"""What a file can hold: `kinds` of values, and `records` by which a class states what of it is stored."""
