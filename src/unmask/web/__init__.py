"""The page: playground, viewer, and the files that they are made of. Knows no model and no server."""

from unmask.web.document import FOLDER, POLICY, PUBLIC, document, frame

__all__ = ["FOLDER", "POLICY", "PUBLIC", "document", "frame"]
