"""The verbs of the command line, a module for each group of them: a command parses, calls the library, prints."""
