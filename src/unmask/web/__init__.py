"""The page: playground, viewer, and the files that they are made of. Knows no model and no server."""

from unmask.web.document import POLICY, Asset, asset, document, frame

__all__ = ["POLICY", "Asset", "asset", "document", "frame"]
