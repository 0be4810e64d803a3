"""The OpenAI-compatible server over the engine."""

from kvblocks.errors import MissingExtraError

try:
    import fastapi  # noqa: F401
    import uvicorn  # noqa: F401
except ImportError as error:
    raise MissingExtraError(error.name or "fastapi", "serve", "the server") from error

from kvblocks.serving.app import create_app
from kvblocks.serving.limits import ServerLimits
from kvblocks.serving.run import check_address, serve

__all__ = ["ServerLimits", "check_address", "create_app", "serve"]
