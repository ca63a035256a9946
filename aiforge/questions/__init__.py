"""Files of questions and of their answers: read as people have them, written as they were read.

A file is read as often as it is needed and never held: `reading.opened` checks every line, and each
iteration over what it returns reads anew. `output` writes answers beside it and continues where an
earlier run ended. The package knows formats; it sends nothing.
"""
