"""Model families: config keys, tensor names, special tokens and quirks, one file each."""
